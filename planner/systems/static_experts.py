"""The best static run with experts on several ranks: one degree, mode and scheme throughout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean

from seqplan.costs.profile import Profile
from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.expert_sharing import expert_bound_ms
from seqplan.planner.errors import Infeasible
from seqplan.planner.problem import PlanningOptions, PlanningProblem
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.planner.sync.choice import derive_again
from seqplan.planner.sync.times import SyncTimes
from seqplan.planner.workload import Workload

QUICK = PlanningOptions(prove=False)

SAMPLED = 4
"""Batches that a static run's degree, mode and scheme are chosen by."""


def find_static_expert_run(
    profile: Profile,
    workload: Workload,
    batches: Sequence[Batch],
    longest: int,
    sync: SyncTimes,
    *,
    lockstep: bool,
) -> PlanningProblem | None:
    """Find the degree of expert parallelism, mode and scheme with the least mean iteration.

    By our dispatch and packing, optimizer apart; the problem's profile has nothing else. In the
    order of their bounds, as long as one may be the best. None if none holds ``longest`` tokens.
    """
    best: tuple[float, PlanningProblem] | None = None
    bounded = [
        (_bound_ms(problem, batches), problem)
        for problem in _list_problems(profile, workload, longest, sync, lockstep=lockstep)
    ]
    for bound_ms, problem in sorted(bounded, key=lambda entry: entry[0]):
        if best is not None and bound_ms >= best[0]:
            break
        planner = StepPlanner(problem, QUICK)
        try:
            plans = [planner.plan(batch) for batch in batches]
        except Infeasible:
            continue
        time_ms = mean(plan.predicted_ms + (plan.sync_ms or 0.0) for plan in plans)
        if best is None or time_ms < best[0]:
            best = time_ms, problem
    return None if best is None else best[1]


def _list_problems(
    profile: Profile, workload: Workload, longest: int, sync: SyncTimes, *, lockstep: bool
) -> Iterator[PlanningProblem]:
    """Yield each degree, mode and scheme that holds ``longest`` tokens on all GPUs."""
    for degree in profile.expert_degrees:
        if workload.gpus % degree:
            continue
        at_degree = profile.at_expert_parallel(degree)
        times = derive_again(sync, at_degree, workload.gpus)
        for mode in at_degree.modes:
            of_mode = at_degree.keep_modes({mode.name})
            for scheme, model in workload.models(of_mode).items():
                if model.max_sequence >= longest and workload.gpus % scheme.gpus == 0:
                    yield PlanningProblem(
                        profile=of_mode.keep_schemes({scheme}),
                        workload=workload,
                        sync=None if profile.lockstep else times,
                        execution="lockstep" if lockstep or profile.lockstep else "static",
                    )


def _bound_ms(problem: PlanningProblem, batches: Sequence[Batch]) -> float:
    """Bound the mean iteration of a problem's one scheme (ms)."""
    degree, gpus = problem.profile.expert_parallel, problem.workload.gpus
    models = problem.models
    computing = mean(expert_bound_ms(models.values(), degree, batch, gpus) for batch in batches)
    layouts = [(scheme.tp, scheme.pp) for scheme in models]
    return computing + (problem.sync.compute_exposed_ms(layouts) if problem.sync else 0.0)
