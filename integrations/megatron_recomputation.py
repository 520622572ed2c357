"""Megatron-Core's recomputation, switched before each forward of a transformer block.

A block reads ``recompute_granularity`` at every forward, and backward does not read it. So each
micro-batch runs under ``none`` or ``full``, the lightest that holds its tokens on a rank. The ranks
of a tensor or context group have the same tokens, and so the same mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

from seqplan.integrations.recomputation_limits import RecomputationLimits, check_switchable
from seqplan.integrations.replacement import find_original, replace
from seqplan.integrations.versions import import_with

AVAILABLE = ("none", "full")
"""Modes that a block reads at its forward; others are fixed when layers are made."""

BLOCK = "megatron.core.transformer.transformer_block"

_FULL = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
_NONE = {"recompute_granularity": None}


def install_recomputation(recompute: Mapping[str, int] | RecomputationLimits) -> None:
    """Let transformer blocks switch by ``recompute``: tokens on a rank by mode.

    Before or after models are made. ``ValueError`` for modes other than none and full, at once, and
    for settings under which ranks would wait for each other, when a block is made or first run.
    ``UnsupportedVersion`` if Megatron has no such block.
    """
    limits = RecomputationLimits.from_value(recompute)
    assert limits is not None
    check_switchable(limits.tokens, AVAILABLE, "Megatron")
    known = "0.16.1 has it"
    block = import_with("megatron-core", BLOCK, "TransformerBlock", known=known).TransformerBlock
    make, compute = find_original(block.__init__), find_original(block.forward)

    @wraps(make)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        check_settings(self.config)

    @wraps(compute)
    def forward(self: Any, hidden_states: Any, *arguments: Any, **named: Any) -> Any:
        if not self.training:
            return compute(self, hidden_states, *arguments, **named)
        check_settings(self.config)
        tokens = count_tokens(self, hidden_states)
        with _settings(self.config, limits.find_lightest(tokens)):
            return compute(self, hidden_states, *arguments, **named)

    replace(block, "__init__", __init__)
    replace(block, "forward", forward)


def check_settings(config: Any) -> None:
    """Reject settings that do not go with modes per micro-batch. ``ValueError`` in one line."""
    if config.recompute_granularity == "selective":
        raise ValueError(
            "recompute_granularity with recomputation modes: selective. Set it to full or to none"
        )
    checks = {
        "expert_model_parallel_size": (getattr(config, "expert_model_parallel_size", 1), 1),
        "cuda_graph_impl": (getattr(config, "cuda_graph_impl", "none"), "none"),
        "cpu_offloading": (getattr(config, "cpu_offloading", False), False),
    }
    for name, (value, allowed) in checks.items():
        if value not in (allowed, None):
            raise ValueError(f"{name} with recomputation modes: {value}. Set it to {allowed}")


def count_tokens(block: Any, hidden_states: Any) -> int:
    """Count the tokens of a block's micro-batch on this rank, all tensor ranks together."""
    hidden = hidden_states if block.pre_process else block.input_tensor
    split = block.config.tensor_model_parallel_size if block.config.sequence_parallel else 1
    return int(hidden.shape[0] * hidden.shape[1] * split)


@contextmanager
def _settings(config: Any, mode: str) -> Iterator[None]:
    """Change the configuration within: models share it."""
    changes = _FULL if mode == "full" else _NONE
    before = {name: getattr(config, name) for name in changes}
    try:
        for name, value in changes.items():
            setattr(config, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)
