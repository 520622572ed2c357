"""Steps on pipelines of which some have a slow rank and get less work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import cheap_bound_ms
from seqplan.planner.errors import Infeasible
from seqplan.planner.placement.assembly import Selected
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.fill import Filler, Placement
from seqplan.planner.placement.fleet import Models
from seqplan.planner.placement.slowdown import Slowdown, make_slow_fleet
from seqplan.planner.problem import PlanningProblem
from seqplan.planner.step.selection import list_considered
from seqplan.planner.strategies.polishing import polish
from seqplan.planner.sync.times import NO_SYNC, SyncTimes, layouts_of
from seqplan.plans.scheme import Strategy

MOST_STRATEGIES = 6
"""Strategies, the fastest on equal ranks, that are placed around slow ranks."""


def list_factors(slow: Sequence[tuple[int, float | None]], gpus: int) -> Slowdown | None:
    """List the factors of all ranks, given the slow and lost ones; None if all are equal.

    ``ValueError`` for a rank beyond ``gpus`` or there twice, and for factors that cannot be.
    """
    if not slow:
        return None
    factors: list[float | None] = [1.0] * gpus
    for rank, factor in slow:
        if not 0 <= rank < gpus:
            raise ValueError(f"slowdown of rank {rank}: ranks are 0 to {gpus - 1}. Name one")
        factors[rank] = factor
    if len(dict(slow)) < len(slow):
        raise ValueError("slowdown: a rank is there twice. Name each once")
    return Slowdown.from_value(factors, gpus)


def leave_out_lost(problem: PlanningProblem, lost: Sequence[int]) -> PlanningProblem:
    """Return the problem of the ranks that are left, in the layouts of its strategies.

    Its strategies are those that fit them; with none, each step constructs one. ``Infeasible`` if
    no scheme fits.
    """
    if not lost:
        return problem
    workload = problem.workload.leave_out(len(lost))
    gpus = workload.gpus
    rest = replace(
        problem,
        workload=workload,
        strategies=tuple(s for s in problem.strategies if s.gpus <= gpus),
        proposal_digest=problem.digest,
    )
    layouts = layouts_of(s for strategy in problem.strategies for s, _ in strategy.counts)
    profile = problem.profile
    if not any(not layouts or (s.tp, s.pp) in layouts for s in rest.models):
        raise Infeasible(
            f"ranks lost: {', '.join(map(str, lost))}. {gpus} of {problem.workload.gpus} ranks are "
            f"left, and no scheme of {profile.name} in the proposal's layouts fits so few. Start "
            "the job without them"
        )
    return rest


def place_around(
    selected: Selected,
    batch: Batch,
    models: Models,
    speeds: Slowdown,
    sync: SyncTimes | None,
    *,
    used: Slowdown,
    prove: bool,
) -> Selected | None:
    """Choose a strategy for ranks of different speeds, given the selection for equal ones.

    Of the strategies considered, the fastest on equal ranks are placed so that slow ranks are in
    few GPUs' pipelines, and the batch is assigned anew; if lost ranks leave them no block, with
    smaller groups (``Slowdown.fit``). ``used``: the same speeds, of which some ranks may count as
    lost, so that their pipelines, if any, are the smallest (``Slowdown.fill_up``). The bound is of
    the chosen strategy with these slow pipelines; candidates keep bounds of equal ranks, which are
    lower. None if no strategy can be placed without the lost ranks.
    """
    times = sync or NO_SYNC
    timed = {
        entry.strategy: entry.predicted_ms + times.of_strategy_ms(entry.strategy)
        for entry in selected.considered
        if entry.predicted_ms is not None
    }
    ranked = sorted(timed, key=lambda strategy: timed[strategy])[:MOST_STRATEGIES]
    chosen = [selected.placement.strategy, *ranked]
    fitted = [s if used.place(s) is not None else used.fit(s, models) for s in chosen]
    if used != speeds:
        fitted += [speeds.fill_up(strategy, models) for strategy in fitted]
    best: Placement | None = None
    best_ms = float("inf")
    reached: dict[Strategy, float] = {}
    for strategy in dict.fromkeys(fitted):
        placed = speeds.place(strategy)
        if not placed:
            continue
        fleet = make_slow_fleet(strategy, models, [factor for _, factor in placed])
        filler = Filler(fleet, batch)
        filling = dispatch(filler, cheap_bound_ms(fleet.classes, batch))
        if filling is None:
            continue
        reached[strategy] = filling.objective_ms
        with_sync_ms = filling.objective_ms + times.of_strategy_ms(strategy)
        if with_sync_ms < best_ms:
            best, best_ms = Placement(fleet, filling), with_sync_ms
    if best is None:
        return None
    best, bound_ms = polish(batch, best, prove=prove)
    reached[best.strategy] = best.objective_ms
    considered = [
        replace(entry, predicted_ms=reached.get(entry.strategy)) for entry in selected.considered
    ]
    if all(entry.strategy != best.strategy for entry in considered):
        considered.append(list_considered(best.strategy, bound_ms, best.objective_ms, sync))
    return Selected(best, bound_ms, tuple(considered))
