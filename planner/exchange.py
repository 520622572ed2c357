"""What an iteration takes beside propagation: parameter pull, gradient push, optimizer.

Published for one setting (Hydraulis, arXiv 2412.07894, Table 1; LLaMA-32B on 64 A800): 1,110 ms of
pull and push with equal replicas, 1,710 ms with different ones, of which overlapping hides 530;
20 ms of optimizer. Bytes over bandwidth explain only part of it: four replicas of 16 GPUs move
2·2 bytes · 32e9/16 · 3/4 = 6 GB per GPU, 240 ms at 25 GB/s (InfiniBand of 200 GB/s per node of 8),
so 22 % of the bandwidth is used. The published times are therefore taken as they are, in proportion
to the parameters, rather than derived.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from seqplan.plans.scheme import Scheme, Strategy
from seqplan.profiler.model_sizes import parameters
from seqplan.profiler.profile import Profile

PUBLISHED_PARAMETERS = 32.3e9
HOMOGENEOUS_MS, HETEROGENEOUS_MS, OPTIMIZER_MS = 1110.0, 1710.0, 20.0

NODE_SPEED_UP = 400 / 25
"""NVLink's 400 GB/s over a GPU's share of InfiniBand: replicas of one node exchange inside it."""


@dataclass(frozen=True)
class Exchange:
    """Times of one iteration in ms; ``overlap``: share of the exchange hidden by propagation.

    ``source``: where the times come from, a sentence for people. ``ValueError`` for a negative time
    or a share outside 0 … 1.
    """

    homogeneous_ms: float
    heterogeneous_ms: float
    overlap: float
    optimizer_ms: float
    source: str

    def __post_init__(self) -> None:
        for name in ("homogeneous_ms", "heterogeneous_ms", "optimizer_ms"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a number of 0 or more, not {getattr(self, name)}")
        if not 0 <= self.overlap <= 1:
            raise ValueError(f"overlap must be a share from 0 to 1, not {self.overlap}")

    def exposed_ms(self, heterogeneous: bool) -> float:
        """Return what propagation does not hide of pull and push."""
        whole = self.heterogeneous_ms if heterogeneous else self.homogeneous_ms
        return whole * (1 - self.overlap)

    def of_strategy_ms(self, strategy: Strategy) -> float:
        """Return what an iteration of a strategy takes beside propagation and optimizer."""
        return self.exposed_ms(replicas_differ(scheme for scheme, _ in strategy.counts))

    def extra_ms(self, strategy: Strategy, than: Strategy) -> float:
        """Return how much more one strategy's exchange takes than another's; may be negative."""
        return self.of_strategy_ms(strategy) - self.of_strategy_ms(than)

    @property
    def decides(self) -> bool:
        """Whether it can decide between strategies: different replicas take longer than equal."""
        return self.exposed_ms(True) > self.exposed_ms(False)


NO_EXCHANGE = Exchange(0.0, 0.0, 0.0, 0.0, "no exchange")
"""Choose by propagation alone."""


def replicas_differ(schemes: Iterable[Scheme]) -> bool:
    """Whether replicas of these schemes split their parameters differently: by tp or by pp."""
    return len({(scheme.tp, scheme.pp) for scheme in schemes}) > 1


def exchange_of(
    profile: Profile,
    gpus: int,
    *,
    exchange_ms: tuple[float, float] | None = None,
    overlap: float = 0.0,
    optimizer_ms: float = OPTIMIZER_MS,
) -> Exchange:
    """Make the exchange on ``gpus`` GPUs: given (equal replicas, different ones), or as published.

    Under ZeRO-3 there is none: the gathers of every layer are part of the profile's latency.
    """
    if profile.rounds and exchange_ms is None:
        source = "no exchange: under ZeRO-3 the gathers are part of the profile's latency"
        return Exchange(0.0, 0.0, overlap, optimizer_ms, source)
    if exchange_ms is not None:
        source = f"exchange as given: {exchange_ms[0]:g} ms, different replicas {exchange_ms[1]:g}"
        return Exchange(*exchange_ms, overlap, optimizer_ms, source)
    weights = parameters(profile.shape)
    scale = 1.0 if weights is None else weights / PUBLISHED_PARAMETERS
    of = "as published" if weights is None else "as published, in proportion to the parameters"
    where = ""
    if gpus <= profile.gpus_per_node:
        scale /= NODE_SPEED_UP
        where = f", {NODE_SPEED_UP:g} times faster within one node"
    times = (round(HOMOGENEOUS_MS * scale, 3), round(HETEROGENEOUS_MS * scale, 3))
    source = (
        f"exchange {of} (Hydraulis Table 1: 32B on 64 A800){where}: {times[0]:,.0f} ms between "
        f"equal replicas, {times[1]:,.0f} ms between different ones, {overlap:.0%} of it hidden"
    )
    return Exchange(*times, overlap, optimizer_ms, source)


def proposed_with(
    profile: Profile,
    gpus: int,
    exchange_ms: tuple[float, float] | str | None,
    overlap: float,
    spelled: tuple[str, str] = ("--exchange-ms", "--overlap"),
) -> Exchange | None:
    """Make the exchange to choose strategies with; None where ``exchange_ms`` was not given.

    ``exchange_ms``: as ``published_or_times`` reads it; ``spelled``: how the caller writes the two.
    ``ValueError`` for an overlap of nothing, one beyond 1, and under ZeRO-3.
    """
    if exchange_ms is None:
        if overlap:
            raise ValueError(f"{spelled[1]} is of the exchange; give {spelled[0]} too")
        return None
    if profile.rounds:
        raise ValueError(
            f"{spelled[0]} decides between strategies, but profile {profile.name} is of ZeRO-3, "
            "where there is none to choose; leave it out"
        )
    times = exchange_ms if isinstance(exchange_ms, tuple) else None
    return exchange_of(profile, gpus, exchange_ms=times, overlap=overlap)
