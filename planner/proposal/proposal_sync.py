"""The sync that a proposal's strategies are chosen with: derived, given, or none."""

from __future__ import annotations

from typing import Literal

from seqplan.costs.profile import Profile
from seqplan.planner.errors import OptionError
from seqplan.planner.proposal.backends import uses_collectives
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import SyncTimes


def choose_proposal_sync(
    profile: Profile,
    gpus: int,
    sync: tuple[float, float] | Literal["derived"] | None = "derived",
    overlap: float = 0.0,
    *,
    method: str = "search",
    trainer: str | None = None,
) -> SyncTimes | None:
    """Make the sync to choose strategies with; None by forward and backward alone.

    ``sync``: times (ms) between equal replicas and between different ones, derived for each layout,
    or left out; ``trainer``: that runs the plans. Also None under ZeRO-3, and for the published
    ``method`` eq4, which does not weigh it. ``OptionError`` for options that exclude each other.
    """
    stated = isinstance(sync, tuple) or overlap > 0
    if sync is None and overlap > 0:
        raise OptionError(
            "{0} is the share of the sync that is hidden, and {1} is none. Leave {0} out",
            "overlap",
            "sync",
        )
    if profile.lockstep and stated:
        raise OptionError(
            "{0} and {1} decide between strategies, but profile {profile} is of ZeRO-3, whose "
            "gathers are part of its latency. Leave them out",
            "sync",
            "overlap",
            profile=profile.name,
        )
    if sync is None or profile.lockstep or (method == "eq4" and not stated):
        return None
    times = sync if isinstance(sync, tuple) else None
    return choose_sync(
        profile,
        gpus,
        sync_ms=times,
        overlap=overlap,
        collectives=uses_collectives(trainer),
    )
