"""The sync that strategies are chosen and compared with: derived, or given."""

from __future__ import annotations

from seqplan.costs.profile import Profile
from seqplan.planner.sync.derive import derive_sync, optimizer_of
from seqplan.planner.sync.times import GivenSyncTimes, LayoutSyncTimes, SyncTimes


def choose_sync(
    profile: Profile,
    gpus: int,
    *,
    sync_ms: tuple[float, float] | None = None,
    overlap: float = 0.0,
    optimizer_ms: float | None = None,
    collectives: bool = False,
) -> SyncTimes:
    """Make the sync on ``gpus`` GPUs: as given (equal replicas, different ones), or derived.

    ``optimizer_ms``: by default as measured, published or derived; ``collectives``: as trainers
    whose replicas are equal. Under ZeRO-3 there is no sync: the gathers of every layer are part of
    the profile's latency.
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
    return derive_sync(
        profile, gpus, overlap=overlap, optimizer_ms=optimizer_ms, collectives=collectives
    )


def check_sync(sync: object) -> None:
    """Check an argument ``sync``; ``TypeError`` for another kind."""
    if not (sync is None or isinstance(sync, SyncTimes) or str(sync) == "derived"):
        raise TypeError(f"sync: {sync!r:.60}. Give a GivenSyncTimes, 'derived' or None")


def derive_again(sync: SyncTimes, profile: Profile, gpus: int) -> SyncTimes:
    """Derive a sync by layout for another profile of the model; return one that is given."""
    if not isinstance(sync, LayoutSyncTimes):
        return sync
    return derive_sync(
        profile,
        gpus,
        overlap=sync.overlap,
        optimizer_ms=sync.optimizer_ms,
        collectives=sync.collectives,
    )
