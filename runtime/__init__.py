"""What each rank runs: plans in, exact training steps out.

Read ``steps`` first (a rank's views of the plans), then ``data`` (their tokens),
``sequence_parallel`` (attention over ranks), ``states`` (parameters, gradients and optimizer
states), ``training`` (a step with whole parameters), ``tensor_parallel`` and ``pipeline`` (steps of
any strategies); ``train_check`` holds all of it against plain torch.
``communicators``, ``dtypes`` and ``errors`` are shared.

The names a trainer needs, loaded on first use, so that importing the package does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.runtime.communicators import Communicators
    from seqplan.runtime.data.megatron import MegatronTokens
    from seqplan.runtime.data.targets import IndexedTargets, TargetData, Targets
    from seqplan.runtime.data.tokens import IndexedTokens, SeededTokens, TokenData
    from seqplan.runtime.errors import (
        CheckpointError,
        DataError,
        EndOfPlans,
        PlanError,
        PlanTimeout,
        RankLost,
    )
    from seqplan.runtime.pipeline.staged_llama import StagedLlama
    from seqplan.runtime.sequence_parallel.context import (
        AttentionContext,
        attention_context,
        local_context,
    )
    from seqplan.runtime.sequence_parallel.peers import Peers
    from seqplan.runtime.sequence_parallel.unified import attention
    from seqplan.runtime.states.checkpoint import Cursor, restore, save
    from seqplan.runtime.states.optimizers import JoinedOptimizer
    from seqplan.runtime.states.sharded_states import ShardedStates
    from seqplan.runtime.steps.consumer import PlanConsumer, Step
    from seqplan.runtime.steps.fan_out import FanOutSource, open_job
    from seqplan.runtime.steps.http_source import HttpSource
    from seqplan.runtime.steps.in_process import iterate_agreed_steps
    from seqplan.runtime.steps.source import FileSource, PlanSource
    from seqplan.runtime.training.loss import (
        compute_chunked_loss,
        label_loss,
        log_probabilities,
        loss_divisor,
        token_loss,
    )
    from seqplan.runtime.training.model import Llama, ModelConfig
    from seqplan.runtime.training.prepare import MicroBatchWork, make_preparer
    from seqplan.runtime.training.run_step import StepResult, run_step
    from seqplan.runtime.training.token_values import SequenceValues, token_values

_HOMES = {
    "sequence_parallel.peers": ("Peers",),
    "sequence_parallel.context": ("AttentionContext", "attention_context", "local_context"),
    "sequence_parallel.unified": ("attention",),
    "communicators": ("Communicators",),
    "pipeline.staged_llama": ("StagedLlama",),
    "data.megatron": ("MegatronTokens",),
    "data.targets": ("IndexedTargets", "TargetData", "Targets"),
    "data.tokens": ("IndexedTokens", "SeededTokens", "TokenData"),
    "errors": (
        "CheckpointError",
        "DataError",
        "EndOfPlans",
        "PlanError",
        "PlanTimeout",
        "RankLost",
    ),
    "steps.consumer": ("PlanConsumer", "Step"),
    "steps.fan_out": ("FanOutSource", "open_job"),
    "steps.http_source": ("HttpSource",),
    "steps.in_process": ("iterate_agreed_steps",),
    "steps.source": ("FileSource", "PlanSource"),
    "states.checkpoint": ("Cursor", "restore", "save"),
    "states.optimizers": ("JoinedOptimizer",),
    "training.loss": (
        "compute_chunked_loss",
        "label_loss",
        "log_probabilities",
        "loss_divisor",
        "token_loss",
    ),
    "training.model": ("Llama", "ModelConfig"),
    "training.prepare": ("MicroBatchWork", "make_preparer"),
    "training.run_step": ("StepResult", "run_step"),
    "training.token_values": ("SequenceValues", "token_values"),
    "states.sharded_states": ("ShardedStates",),
}

__all__ = [
    "AttentionContext",
    "CheckpointError",
    "Communicators",
    "Cursor",
    "DataError",
    "EndOfPlans",
    "FanOutSource",
    "FileSource",
    "HttpSource",
    "IndexedTargets",
    "IndexedTokens",
    "JoinedOptimizer",
    "Llama",
    "MegatronTokens",
    "MicroBatchWork",
    "ModelConfig",
    "Peers",
    "PlanConsumer",
    "PlanError",
    "PlanSource",
    "PlanTimeout",
    "RankLost",
    "SeededTokens",
    "SequenceValues",
    "ShardedStates",
    "StagedLlama",
    "Step",
    "StepResult",
    "TargetData",
    "Targets",
    "TokenData",
    "attention",
    "attention_context",
    "compute_chunked_loss",
    "iterate_agreed_steps",
    "label_loss",
    "local_context",
    "log_probabilities",
    "loss_divisor",
    "make_preparer",
    "open_job",
    "restore",
    "run_step",
    "save",
    "token_loss",
    "token_values",
]


__getattr__ = lazy_names(__name__, _HOMES)
