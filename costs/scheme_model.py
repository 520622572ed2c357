"""One scheme on one cluster for the planner: its latency and its capacity."""

from __future__ import annotations

from dataclasses import dataclass

from seqplan.costs.latency import Latency
from seqplan.plans.scheme import Scheme


@dataclass(frozen=True)
class SchemeModel:
    """One scheme of a profile, evaluated for a number of GPUs.

    ``max_len``: MaxLen(P) in tokens; ``capacity``: the part of it that padded micro-batches can
    use; ``max_sequence``: the longest single sequence, after padding rules.
    """

    scheme: Scheme
    latency: Latency
    max_len: int

    @property
    def a(self) -> float:
        """ms/token² of one stage."""
        return self.latency.a

    @property
    def b(self) -> float:
        """ms/token of one stage."""
        return self.latency.b

    @property
    def c(self) -> float:
        """ms per micro-batch of one stage."""
        return self.latency.c

    @property
    def capacity(self) -> int:
        """Largest Σ padded lengths of a micro-batch (tokens)."""
        return self.scheme.usable_capacity(self.max_len)

    @property
    def max_sequence(self) -> int:
        """Longest sequence (tokens) that a micro-batch can hold."""
        unit = 1 if self.scheme.ring == 1 else 2 * self.scheme.ring
        return self.capacity - self.capacity % unit

    @property
    def util_len(self) -> int | None:
        """UtilLen(P) in tokens, None if MaxLen is too short to reach it."""
        util = self.latency.util_len()
        return util if util is not None and util <= self.max_len else None

    def alone_ms(self, length: int) -> float:
        """Compute a pipeline's time for one sequence alone: pp·(a·l² + b·l + c)."""
        return self.scheme.pp * self.latency.micro_batch_ms([length])
