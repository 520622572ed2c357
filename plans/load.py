"""Work that sequences have before the language model, such as that of a vision encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seqplan.plans.scheme import Scheme


@dataclass(frozen=True)
class PhaseLoad:
    """Work of each sequence of a step in one phase, which precedes the language model.

    ``tokens``: of each sequence in the phase, such as patches; ``work_ms``: time of each on one
    rank; ``overhead_ms``: of a micro-batch in which some sequence has work. The ranks of a pipeline
    compute equal parts. ``capacity``: tokens of a micro-batch on a rank, None for any number.
    ``ValueError`` for a sequence with more than that.
    """

    name: str
    tokens: tuple[int, ...]
    work_ms: tuple[float, ...]
    overhead_ms: float
    capacity: int | None = None

    def __post_init__(self) -> None:
        if self.capacity is not None and self.capacity < (most := max(self.tokens, default=0)):
            raise ValueError(
                f"load {self.name}: sequence {self.tokens.index(most)} has {most} tokens, a rank "
                f"holds {self.capacity}. Split it or give more capacity"
            )

    def time_micro_batch(self, scheme: Scheme, positions: Sequence[int]) -> float:
        """Return the time of a micro-batch's sequences on a pipeline without slow ranks (ms)."""
        work_ms = sum([self.work_ms[position] for position in positions])
        return work_ms / scheme.gpus + self.overhead_ms if work_ms > 0 else 0.0

    def holds(self, scheme: Scheme, positions: Sequence[int]) -> bool:
        """Whether the ranks of a pipeline hold the tokens of a micro-batch's sequences."""
        if self.capacity is None:
            return True
        held = self.capacity * scheme.gpus
        return sum([self.tokens[position] for position in positions]) <= held


def time_loads(loads: Sequence[PhaseLoad], scheme: Scheme, positions: Sequence[int]) -> float:
    """Sum the time of a micro-batch in all phases before the language model (ms)."""
    return sum(load.time_micro_batch(scheme, positions) for load in loads)
