"""The one scheme of uniform execution: on all ranks, the same at every step."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.costs.profile import Profile
from seqplan.planner.batches.batch import Batch
from seqplan.planner.proposal.static_micro_steps import best_static_micro_steps
from seqplan.planner.strategies.homogeneous import best_homogeneous
from seqplan.planner.sync.times import NO_SYNC, SyncTimes
from seqplan.planner.workload import Workload
from seqplan.plans.scheme import Scheme


def keep_best_scheme(
    profile: Profile,
    workload: Workload,
    batches: Sequence[Batch],
    longest: int,
    sync: SyncTimes | None,
    *,
    lockstep: bool,
    micro_step_multiple: int,
) -> Profile:
    """Return the profile with the one scheme that is fastest on ``batches`` throughout.

    Of those that hold ``longest`` tokens, of which there is one.
    """
    best = find_uniform_scheme(
        profile,
        workload,
        batches,
        longest,
        sync,
        lockstep=lockstep,
        micro_step_multiple=micro_step_multiple,
    )
    assert best is not None  # by check_feasible
    return profile.keep_schemes({best[0]})


def find_uniform_scheme(
    profile: Profile,
    workload: Workload,
    batches: Sequence[Batch],
    longest: int,
    sync: SyncTimes | None,
    *,
    lockstep: bool,
    micro_step_multiple: int = 1,
) -> tuple[Scheme, float] | None:
    """Find the scheme with the least mean time (ms), by our dispatch and packing.

    With its sync, optimizer apart. None if no scheme holds ``longest`` tokens.
    """
    models, gpus = workload.models(profile), workload.gpus
    if lockstep:
        weighed = None if profile.lockstep else sync or NO_SYNC
        micro_steps = best_static_micro_steps(
            batches, models, gpus, longest, weighed, micro_step_multiple
        )
        if micro_steps is None:
            return None
        ((scheme, _),) = micro_steps[0].counts
        return scheme, micro_steps[1]
    static = best_homogeneous(batches, models, gpus, sync or NO_SYNC, longest)
    if static is None:
        return None
    strategy, times = static
    ((scheme, _),) = strategy.counts
    return scheme, sum(times) / len(times) + (sync or NO_SYNC).of_strategy_ms(strategy)
