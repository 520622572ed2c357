"""What each rank runs: plans in, exact training steps out.

The names a trainer needs, loaded on first use, so that importing the package does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seqplan.runtime.checkpoint import Cursor, restore, save
    from seqplan.runtime.communicators import Communicators
    from seqplan.runtime.consumer import PlanConsumer, Step
    from seqplan.runtime.errors import DataError, EndOfPlans, PlanError, PlanTimeout
    from seqplan.runtime.fan_out import FanOutSource
    from seqplan.runtime.http_source import HttpSource
    from seqplan.runtime.megatron_tokens import MegatronTokens
    from seqplan.runtime.model import Llama, ModelConfig, token_loss
    from seqplan.runtime.peers import Peers
    from seqplan.runtime.plan_sources import FileSource, PlanSource
    from seqplan.runtime.sharded_states import ShardedStates
    from seqplan.runtime.step_work import MicroBatchWork, preparation
    from seqplan.runtime.token_data import IndexedTokens, SeededTokens, TokenData
    from seqplan.runtime.training import StepResult, run_step
    from seqplan.runtime.unified_attention import AttentionContext, attention, attention_context

_HOMES = {
    "unified_attention": ("AttentionContext", "attention", "attention_context"),
    "checkpoint": ("Cursor", "restore", "save"),
    "communicators": ("Communicators",),
    "consumer": ("PlanConsumer", "Step"),
    "errors": ("DataError", "EndOfPlans", "PlanError", "PlanTimeout"),
    "fan_out": ("FanOutSource",),
    "http_source": ("HttpSource",),
    "megatron_tokens": ("MegatronTokens",),
    "model": ("Llama", "ModelConfig", "token_loss"),
    "peers": ("Peers",),
    "plan_sources": ("FileSource", "PlanSource"),
    "sharded_states": ("ShardedStates",),
    "step_work": ("MicroBatchWork", "preparation"),
    "token_data": ("IndexedTokens", "SeededTokens", "TokenData"),
    "training": ("StepResult", "run_step"),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AttentionContext",
    "Communicators",
    "Cursor",
    "DataError",
    "EndOfPlans",
    "FanOutSource",
    "FileSource",
    "HttpSource",
    "IndexedTokens",
    "Llama",
    "MegatronTokens",
    "MicroBatchWork",
    "ModelConfig",
    "Peers",
    "PlanConsumer",
    "PlanError",
    "PlanSource",
    "PlanTimeout",
    "SeededTokens",
    "ShardedStates",
    "Step",
    "StepResult",
    "TokenData",
    "attention",
    "attention_context",
    "preparation",
    "restore",
    "run_step",
    "save",
    "token_loss",
]


def __getattr__(name: str) -> Any:
    """A name's module is imported when the name is first asked for (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
