"""Which sync strategies are chosen and compared with: derived, given, or none."""

from __future__ import annotations

from seqplan.costs.profile import Profile
from seqplan.planner.sync.derive import derive_sync, optimizer_of
from seqplan.planner.sync.times import GivenSyncTimes, SyncTimes


def choose_sync(
    profile: Profile,
    gpus: int,
    *,
    sync_ms: tuple[float, float] | None = None,
    overlap: float = 0.0,
    optimizer_ms: float | None = None,
) -> SyncTimes:
    """Make the sync on ``gpus`` GPUs: as given (equal replicas, different ones), or derived.

    ``optimizer_ms``: by default as measured or published. Under ZeRO-3 there is no sync: the
    gathers of every layer are part of the profile's latency.
    """
    if optimizer_ms is None:
        optimizer_ms = optimizer_of(profile, gpus)
    if profile.lockstep and sync_ms is None:
        source = "none, as under ZeRO-3 the gathers are part of the profile's latency"
        return GivenSyncTimes(overlap, optimizer_ms, source, 0.0, 0.0)
    if sync_ms is not None:
        equal, different = sync_ms
        source = f"as given: {equal:g} ms, different layouts {different:g}"
        return GivenSyncTimes(overlap, optimizer_ms, source, equal, different)
    return derive_sync(profile, gpus, overlap=overlap, optimizer_ms=optimizer_ms)


def choose_proposal_sync(
    profile: Profile,
    gpus: int,
    sync_ms: tuple[float, float] | None,
    overlap: float,
    *,
    propagation_only: bool = False,
    method: str = "search",
    spelled: tuple[str, str, str] = ("--sync-ms", "--overlap", "--propagation-only"),
) -> SyncTimes | None:
    """Make the sync to choose strategies with; None by computation alone, and under ZeRO-3.

    Also None for the published ``method`` eq4, which does not weigh it. ``spelled``: how the caller
    writes the three. ``ValueError`` for options that exclude each other, and for a sync under
    ZeRO-3.
    """
    stated = sync_ms is not None or overlap > 0
    if propagation_only and stated:
        raise ValueError(
            f"{spelled[2]} leaves the sync out, {spelled[0]} and {spelled[1]} describe it; "
            "give one or the other"
        )
    if profile.lockstep and stated:
        raise ValueError(
            f"{spelled[0]} and {spelled[1]} decide between strategies, but profile {profile.name} "
            "is of ZeRO-3, which has none to choose; leave them out"
        )
    if propagation_only or profile.lockstep or (method == "eq4" and not stated):
        return None
    return choose_sync(profile, gpus, sync_ms=sync_ms, overlap=overlap)
