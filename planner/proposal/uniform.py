"""The one scheme of uniform execution: on all ranks, the same at every step."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.costs.profile import Profile
from seqplan.planner.batches.batch import Batch
from seqplan.planner.cluster import Cluster
from seqplan.planner.proposal.static_rounds import best_static_rounds
from seqplan.planner.strategies.homogeneous import best_homogeneous
from seqplan.planner.sync.times import NO_SYNC, SyncTimes


def keep_best_scheme(
    profile: Profile,
    cluster: Cluster,
    batches: Sequence[Batch],
    longest: int,
    sync: SyncTimes | None,
    *,
    lockstep: bool,
    micro_step_multiple: int,
) -> Profile:
    """Return the profile with the one scheme that is fastest on ``batches`` throughout.

    Of those that hold ``longest`` tokens, of which there is one, by our dispatch and packing, with
    its sync.
    """
    models, gpus = cluster.models(profile), cluster.gpus
    if lockstep:
        weighed = None if profile.lockstep else sync or NO_SYNC
        rounds = best_static_rounds(batches, models, gpus, longest, weighed, micro_step_multiple)
        best = None if rounds is None else rounds[0]
    else:
        static = best_homogeneous(batches, models, gpus, sync or NO_SYNC, longest)
        best = None if static is None else static[0]
    assert best is not None  # by check_feasible
    ((scheme, _),) = best.counts
    return profile.keep_schemes({scheme})
