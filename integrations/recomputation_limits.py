"""Recomputation modes for trainers whose plans are made from one cost: the lightest that fits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seqplan.costs.latency import Latency
from seqplan.planner.balance.mode import Mode
from seqplan.plans.recomputation import MODES, rank_mode, split_mode

VARIABLE = "SEQPLAN_RECOMPUTE"
"""Environment variable with the limits, as ``none:4096,full:16384``."""


@dataclass(frozen=True)
class RecomputationLimits:
    """Tokens that a micro-batch holds on a rank under each mode, the lightest mode first.

    ``ValueError`` for an unknown mode, a limit below 1, or a heavier mode that holds less.
    """

    tokens: Mapping[str, int]

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError(f"recomputation modes: none. Give some of {', '.join(MODES)}")
        ordered = sorted(self.tokens.items(), key=lambda item: rank_mode(item[0]))
        before = 0
        for mode, limit in ordered:
            if isinstance(limit, bool) or not isinstance(limit, int) or limit <= before:
                more = f", more than the {before} of the mode before" if before else " above 0"
                raise ValueError(f"tokens of mode {mode}: {limit}. Give a whole number{more}")
            before = limit
        object.__setattr__(self, "tokens", dict(ordered))

    @classmethod
    def from_text(cls, text: str) -> RecomputationLimits:
        """Read ``none:4096,full:16384``. ``ValueError`` if it is nothing of that kind."""
        pairs = [part.strip().partition(":") for part in text.split(",")]
        if not all(limit.strip().isdecimal() for _, _, limit in pairs):
            raise ValueError(f"recomputation limits: {text!r}. Give none:4096,full:16384")
        limits = {mode.strip(): int(limit) for mode, _, limit in pairs}
        if len(limits) < len(pairs):
            raise ValueError(f"recomputation limits: {text!r} has a mode twice. Give each once")
        return cls(limits)

    @classmethod
    def from_environment(cls) -> RecomputationLimits | None:
        """Read ``SEQPLAN_RECOMPUTE``, None if it is not set. ``ValueError`` names it."""
        text = os.environ.get(VARIABLE)
        try:
            return None if not text else cls.from_text(text)
        except ValueError as error:
            raise ValueError(f"{VARIABLE}: {error}") from None

    @classmethod
    def from_value(cls, value: Any) -> RecomputationLimits | None:
        """Take limits, a mapping of them or None."""
        return value if value is None or isinstance(value, cls) else cls(dict(value))

    @property
    def capacity(self) -> int:
        """The most tokens that any mode holds."""
        return max(self.tokens.values())

    def find_lightest(self, tokens: int) -> str:
        """Return the lightest mode that holds so many tokens. ``ValueError`` if none does."""
        for mode, limit in self.tokens.items():
            if tokens <= limit:
                return mode
        raise ValueError(
            f"tokens of a micro-batch: {tokens}. No recomputation mode holds over {self.capacity}"
        )

    def list_modes(self, capacity: int, cost_of: Callable[[str], Latency]) -> list[Mode]:
        """List the modes for a plan of micro-batches of at most ``capacity`` tokens.

        ``cost_of``: the cost of a micro-batch by mode. ``ValueError`` if none holds so many.
        """
        self.find_lightest(capacity)  # rejects more than any mode holds
        return [
            Mode(mode, min(limit, capacity), cost_of(mode)) for mode, limit in self.tokens.items()
        ]


def check_switchable(
    modes: Iterable[str], available: Sequence[str], trainer: str, *, offload: bool = False
) -> None:
    """Reject modes that a trainer cannot switch to. ``ValueError`` names both.

    ``offload``: whether it can offload the activations of layers.
    """
    for mode in modes:
        name, share = split_mode(mode)
        if name not in available or (share and not offload):
            raise ValueError(
                f"{trainer} cannot switch to recomputation mode: {mode}. "
                f"Use {', '.join(available) or 'no mode'}"
            )
