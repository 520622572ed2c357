"""How experts are split over ranks, and by which software their tokens reach them."""

from __future__ import annotations

from dataclasses import dataclass

from seqplan.plans.percent import percent


@dataclass(frozen=True, kw_only=True, slots=True)
class Dispatcher:
    """Software that exchanges tokens between the ranks of experts.

    - ``deduplicated``: whether a token goes once to each node, and to each rank, that has any of
      its experts; otherwise once for each of its experts.
    - ``rate``: share of the links' rates (``LINK_EFFICIENCY``) that it reaches.
    - ``passes``: times that it reads or writes a row of a token in memory, of a whole exchange
      there and back, beyond the exchange itself.
    """

    name: str
    deduplicated: bool
    rate: float
    passes: float


DISPATCHERS = {
    dispatcher.name: dispatcher
    for dispatcher in (
        Dispatcher(name="nccl", deduplicated=False, rate=0.7, passes=10.0),
        Dispatcher(name="deepep", deduplicated=True, rate=0.7, passes=7.5),
        Dispatcher(name="hybridep", deduplicated=True, rate=0.7, passes=5.0),
    )
}
"""Dispatchers by the names of ``--dispatcher``."""

DEFAULT_DISPATCHER = "nccl"

MOST_IMBALANCE = 1000.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertParallelism:
    """Ranks of experts and the exchange between them; ``ValueError`` for values that are unknown.

    - ``degree``: ranks that hold all experts together, neighbors ``tensor`` apart; 1: each rank of
      tp holds a part of every expert.
    - ``tensor``: ranks that each expert is split over, with a ``degree`` above 1.
    - ``imbalance``: largest load of a rank over the mean of its block, 1 or more.
    - ``overlap``: share of the exchanges that other kernels hide.
    """

    degree: int = 1
    tensor: int = 1
    dispatcher: str = DEFAULT_DISPATCHER
    imbalance: float = 1.0
    overlap: float = 0.0

    def __post_init__(self) -> None:
        for name in ("degree", "tensor"):
            if not 1 <= getattr(self, name) <= 10**6:
                raise ValueError(f"experts: {name} must be 1 or more: {getattr(self, name)}")
        if self.tensor > 1 and self.degree == 1:
            raise ValueError(
                f"expert_tensor_parallel {self.tensor}: requires expert_parallel above 1. "
                "Without it experts are split as tp"
            )
        if self.imbalance > 1 and self.degree == 1:
            raise ValueError(
                f"expert_imbalance {self.imbalance:g}: requires expert_parallel above 1. "
                "Without it every rank has experts for all of its tokens"
            )
        if self.dispatcher not in DISPATCHERS:
            raise ValueError(
                f"dispatcher must be one of {', '.join(DISPATCHERS)}, not {self.dispatcher!r}"
            )
        if (self.dispatcher, self.overlap) != (DEFAULT_DISPATCHER, 0.0) and self.degree == 1:
            raise ValueError(
                f"dispatcher {self.dispatcher}: requires expert_parallel above 1. "
                "Without it no token is sent to an expert"
            )
        if not 1 <= self.imbalance <= MOST_IMBALANCE:
            raise ValueError(
                f"expert_imbalance must be a number from 1 to {MOST_IMBALANCE:g}: "
                f"{self.imbalance:g}"
            )
        if not 0 <= self.overlap <= 1:
            raise ValueError(f"expert_overlap must be a share from 0 to 1: {self.overlap:g}")

    @property
    def ranks(self) -> int:
        """Ranks of a block: neighbors that hold all experts together; 1 without a block."""
        return self.degree * self.tensor

    @property
    def rates(self) -> Dispatcher:
        """Its dispatcher."""
        return DISPATCHERS[self.dispatcher]

    @property
    def description(self) -> str:
        """Describe other than default options; empty without any."""
        if self.degree == 1:
            return ""
        parts = [f"experts over {self.degree} ranks by {self.dispatcher}"]
        if self.tensor > 1:
            parts.append(f"each over {self.tensor}")
        parts.append(f"load of the fullest ×{self.imbalance:g}")
        if self.overlap:
            parts.append(f"{percent(self.overlap, 0)} of exchanges hidden")
        return ", ".join(parts)
