"""A recomputation mode of a profile: what it keeps of a token, and forward's share of the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from seqplan.costs.latency import Latency
from seqplan.plans.recomputation import count_offloaded, count_offloaded_in_flight, split_mode
from seqplan.plans.scheme import Scheme


@dataclass(frozen=True)
class RecomputationMode:
    """Memory of a mode by tensor-parallel degree, before any division over ranks.

    ``kept``: bytes a token keeps until its backward pass, over all layers; ``transient``: bytes a
    token needs on top while its backward pass runs; ``host``: bytes a token keeps in host memory
    until then, without pipeline stages, empty if nothing is offloaded; ``forward_fraction``:
    forward's share of forward and backward.
    """

    name: str
    forward_fraction: float
    kept: Mapping[int, float]
    transient: Mapping[int, float]
    host: Mapping[int, float] = field(default_factory=dict)

    @property
    def activation(self) -> dict[int, float]:
        """Bytes a token needs at most, by tensor-parallel degree."""
        return {tp: kept + self.transient[tp] for tp, kept in self.kept.items()}

    def count_host_bytes(self, scheme: Scheme, layers: int) -> float:
        """Count the bytes in host memory of a token of each micro-batch.

        Of those in flight on a stage, before division by tp·sp. Its number of offloaded layers is
        rounded up.
        """
        if not self.host:
            return 0.0
        share = split_mode(self.name)[1]
        in_flight = count_offloaded_in_flight(share, layers, scheme.pp)
        return self.host.get(scheme.tp, 0.0) * in_flight / count_offloaded(share, layers)


@dataclass(frozen=True)
class ModeModel:
    """A recomputation mode of one scheme on one cluster.

    ``max_len``: MaxLen(P, mode) in tokens. ``kept_share``: the part of a token's bytes that it
    keeps until its backward pass; ``forward_fraction``: forward's share of forward and backward.
    """

    name: str
    latency: Latency
    max_len: int
    kept_share: float = 1.0
    forward_fraction: float = 1 / 3
