"""One scheme on one cluster for the planner: its latency and its capacity."""

from __future__ import annotations

from dataclasses import dataclass

from seqplan.costs.latency import Latency
from seqplan.costs.recomputation_mode import ModeModel
from seqplan.plans.scheme import Scheme


@dataclass(frozen=True)
class SchemeModel:
    """One scheme of a profile, evaluated for a number of GPUs.

    ``max_len``: MaxLen(P) in tokens; ``capacity``: the part of it that padded micro-batches can
    use; ``max_sequence``: the longest single sequence, after padding rules. ``modes``: those of
    recomputation by ascending MaxLen, the last with ``latency`` and ``max_len``; empty in a profile
    of one. ``forward_fraction``: forward's largest share of a micro-batch's time in any mode.
    """

    scheme: Scheme
    latency: Latency
    max_len: int
    modes: tuple[ModeModel, ...] = ()
    forward_fraction: float = 1 / 3

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
    def b_shared(self) -> float:
        """Part of b that the ranks of an expert-parallel block share (ms/token)."""
        return self.latency.b_shared

    @property
    def capacity(self) -> int:
        """Largest Σ padded lengths of a micro-batch (tokens)."""
        return self.scheme.usable_capacity(self.max_len)

    @property
    def max_sequence(self) -> int:
        """Longest sequence (tokens) that a micro-batch can hold."""
        return self.longest(self.max_len)

    def longest(self, max_len: int) -> int:
        """Return the longest sequence (tokens) within a MaxLen, after padding rules."""
        unit = 1 if self.scheme.ring == 1 else 2 * self.scheme.ring
        capacity = self.scheme.usable_capacity(max_len)
        return capacity - capacity % unit

    @property
    def kept_share(self) -> float:
        """Part of a token's bytes that the mode of largest MaxLen keeps until backward."""
        return self.modes[-1].kept_share if self.modes else 1.0

    def find_mode(self, name: str | None) -> SchemeModel | None:
        """Return the model of one recomputation mode; None for a mode that it does not have."""
        if name is None:
            return None if self.modes else self
        mode = next((mode for mode in self.modes if mode.name == name), None)
        if mode is None:
            return None
        forward = mode.forward_fraction
        return SchemeModel(self.scheme, mode.latency, mode.max_len, (mode,), forward)

    @property
    def util_len(self) -> int | None:
        """UtilLen(P) in tokens, None if MaxLen is too short to reach it."""
        util = self.latency.util_len()
        return util if util is not None and util <= self.max_len else None

    def alone_ms(self, length: int) -> float:
        """Compute a pipeline's time for one sequence alone: pp·(a·l² + b·l + c)."""
        latencies = [
            mode.latency for mode in self.modes if length <= self.longest(mode.max_len)
        ] or [self.latency]
        return self.scheme.pp * min(latency.micro_batch_ms([length]) for latency in latencies)
