"""Execution of plans on each rank: plans in, exact training steps out.

Read ``sources`` first (a rank's views of the plans), then ``data`` (their tokens),
``sequence_parallel`` (attention over ranks), ``states`` (parameters, gradients and optimizer
states), ``training`` (a step with whole parameters) and ``losses``, ``experts``,
``tensor_parallel`` and ``pipeline`` (steps of any strategies), ``models`` and ``checkpoint``;
``check`` compares all of it with plain torch. ``communicators``, ``dtypes``, ``errors``,
``stopwatch``, ``recomputation`` (modes of layers) and ``saved_tensors`` (the bytes that they keep)
are shared.

The names that every trainer needs are here, the rest in the namespaces ``checkpoint``, ``data``,
``errors``, ``losses``, ``models``, ``sequence_parallel``, ``sources`` and ``training``. All load on
first use, so that importing the package does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.runtime import (
        checkpoint,
        data,
        errors,
        losses,
        models,
        sequence_parallel,
        sources,
        training,
    )
    from seqplan.runtime.communicators import Communicators
    from seqplan.runtime.data.micro_batch import MicroBatchWork
    from seqplan.runtime.pipeline.staged_llama import StagedLlama
    from seqplan.runtime.sequence_parallel.context import AttentionContext
    from seqplan.runtime.sequence_parallel.peers import Peers
    from seqplan.runtime.sequence_parallel.unified import attention
    from seqplan.runtime.sources.consumer import Step
    from seqplan.runtime.sources.iterate_steps import steps
    from seqplan.runtime.states.optimizers import JoinedOptimizer
    from seqplan.runtime.states.sharded_states import ShardedStates
    from seqplan.runtime.training.prepare import make_preparer
    from seqplan.runtime.training.run_step import run_step

_HOMES = {
    "communicators": ("Communicators",),
    "data.micro_batch": ("MicroBatchWork",),
    "pipeline.staged_llama": ("StagedLlama",),
    "sequence_parallel.context": ("AttentionContext",),
    "sequence_parallel.peers": ("Peers",),
    "sequence_parallel.unified": ("attention",),
    "sources.consumer": ("Step",),
    "sources.iterate_steps": ("steps",),
    "states.optimizers": ("JoinedOptimizer",),
    "states.sharded_states": ("ShardedStates",),
    "training.prepare": ("make_preparer",),
    "training.run_step": ("run_step",),
}

_NAMESPACES = (
    "checkpoint",
    "data",
    "errors",
    "losses",
    "models",
    "sequence_parallel",
    "sources",
    "training",
)

__all__ = [
    "AttentionContext",
    "Communicators",
    "JoinedOptimizer",
    "MicroBatchWork",
    "Peers",
    "ShardedStates",
    "StagedLlama",
    "Step",
    "attention",
    "checkpoint",
    "data",
    "errors",
    "losses",
    "make_preparer",
    "models",
    "run_step",
    "sequence_parallel",
    "sources",
    "steps",
    "training",
]

if not TYPE_CHECKING:  # names that are not here are errors to type checkers
    __getattr__ = lazy_names(__name__, _HOMES, _NAMESPACES)
