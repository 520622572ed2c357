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
    from seqplan.runtime import checkpoint as checkpoint
    from seqplan.runtime import data as data
    from seqplan.runtime import errors as errors
    from seqplan.runtime import losses as losses
    from seqplan.runtime import models as models
    from seqplan.runtime import sequence_parallel as sequence_parallel
    from seqplan.runtime import sources as sources
    from seqplan.runtime import training as training
    from seqplan.runtime.communicators import Communicators as Communicators
    from seqplan.runtime.data.micro_batch import MicroBatchWork as MicroBatchWork
    from seqplan.runtime.pipeline.staged_llama import StagedLlama as StagedLlama
    from seqplan.runtime.sequence_parallel.context import AttentionContext as AttentionContext
    from seqplan.runtime.sequence_parallel.peers import Peers as Peers
    from seqplan.runtime.sequence_parallel.unified import attention as attention
    from seqplan.runtime.sources.consumer import Step as Step
    from seqplan.runtime.sources.iterate_steps import steps as steps
    from seqplan.runtime.states.optimizers import JoinedOptimizer as JoinedOptimizer
    from seqplan.runtime.states.sharded_states import ShardedStates as ShardedStates
    from seqplan.runtime.training.prepare import make_preparer as make_preparer
    from seqplan.runtime.training.run_step import run_step as run_step

if not TYPE_CHECKING:  # names that are not here are errors to type checkers
    __getattr__, __all__ = lazy_names(__name__, __file__)
