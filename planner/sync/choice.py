"""Which exchange strategies are chosen and compared with: derived, given, or none."""

from __future__ import annotations

from seqplan.costs.profile import Profile
from seqplan.planner.sync.derive import derive_exchange, optimizer_of
from seqplan.planner.sync.times import Exchange, GivenExchange


def exchange_of(
    profile: Profile,
    gpus: int,
    *,
    exchange_ms: tuple[float, float] | None = None,
    overlap: float = 0.0,
    optimizer_ms: float | None = None,
) -> Exchange:
    """Make the exchange on ``gpus`` GPUs: as given (equal replicas, different ones), or derived.

    ``optimizer_ms``: by default as measured or published. Under ZeRO-3 there is no exchange: the
    gathers of every layer are part of the profile's latency.
    """
    if optimizer_ms is None:
        optimizer_ms = optimizer_of(profile, gpus)
    if profile.rounds and exchange_ms is None:
        source = "none, as under ZeRO-3 the gathers are part of the profile's latency"
        return GivenExchange(overlap, optimizer_ms, source, 0.0, 0.0)
    if exchange_ms is not None:
        equal, different = exchange_ms
        source = f"as given: {equal:g} ms, different layouts {different:g}"
        return GivenExchange(overlap, optimizer_ms, source, equal, different)
    return derive_exchange(profile, gpus, overlap=overlap, optimizer_ms=optimizer_ms)


def exchange_to_propose_with(
    profile: Profile,
    gpus: int,
    exchange_ms: tuple[float, float] | None,
    overlap: float,
    *,
    propagation_only: bool = False,
    method: str = "search",
    spelled: tuple[str, str, str] = ("--exchange-ms", "--overlap", "--propagation-only"),
) -> Exchange | None:
    """Make the exchange to choose strategies with; None by propagation alone, and under ZeRO-3.

    Also None for the published ``method`` eq4, which does not weigh it. ``spelled``: how the caller
    writes the three. ``ValueError`` for options that exclude each other, and for an exchange under
    ZeRO-3.
    """
    stated = exchange_ms is not None or overlap > 0
    if propagation_only and stated:
        raise ValueError(
            f"{spelled[2]} leaves the exchange out, {spelled[0]} and {spelled[1]} describe it; "
            "give one or the other"
        )
    if profile.rounds and stated:
        raise ValueError(
            f"{spelled[0]} and {spelled[1]} decide between strategies, but profile {profile.name} "
            "is of ZeRO-3, where there is none to choose; leave them out"
        )
    if propagation_only or profile.rounds or (method == "eq4" and not stated):
        return None
    return exchange_of(profile, gpus, exchange_ms=exchange_ms, overlap=overlap)
