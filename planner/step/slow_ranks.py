"""Steps on ranks that are slow or lost: factors, the problem of those left, and a selection."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from seqplan.planner.batches.batch import Batch
from seqplan.planner.errors import Infeasible
from seqplan.planner.placement.assembly import Selected
from seqplan.planner.placement.fleet import Models
from seqplan.planner.placement.slowdown import Slowdown
from seqplan.planner.problem import PlanningProblem
from seqplan.planner.step.selection import list_considered, select, select_within
from seqplan.planner.strategies.constructive import LayoutSchemes
from seqplan.planner.strategies.search import Search
from seqplan.planner.sync.times import NO_SYNC, Layout, layouts_of


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
    layouts = list_layouts(problem)
    profile = problem.profile
    if not any(not layouts or (s.tp, s.pp) in layouts for s in rest.models):
        raise Infeasible(
            f"ranks lost: {', '.join(map(str, lost))}. {gpus} of {problem.workload.gpus} ranks are "
            f"left, and no scheme of {profile.name} in the proposal's layouts fits so few. Start "
            "the job without them"
        )
    return rest


def list_layouts(problem: PlanningProblem) -> frozenset[Layout]:
    """List the layouts of a problem's strategies."""
    return layouts_of(s for strategy in problem.strategies for s, _ in strategy.counts)


def select_uneven(
    problem: PlanningProblem,
    models: Models,
    layouts: Sequence[LayoutSchemes],
    batch: Batch,
    speeds: Slowdown,
    *,
    proposed: Collection[Layout],
    prove: bool,
) -> Selected:
    """Plan a batch on ranks of different speeds, on schemes of ``models`` alone.

    In the ``proposed`` layouts, if there are any and one of them holds the longest sequence.

    The search begins at the best on equal ranks, of all schemes and of each of ``layouts``, those
    of ``models``, and at the best on the fastest ranks alone. The bound is of the chosen strategy
    with its slow pipelines; candidates keep bounds of equal ranks, which are lower. ``Infeasible``
    if no scheme holds a sequence.
    """
    holding = [s for s, model in models.items() if model.max_sequence >= batch.longest]
    if any((scheme.tp, scheme.pp) in proposed for scheme in holding):
        models = {s: model for s, model in models.items() if (s.tp, s.pp) in proposed}
        layouts = [layout for layout in layouts if layout.layout in proposed]
    sync = problem.sync or NO_SYNC
    search = Search(batch, models, problem.workload.gpus, sync, speeds)
    first = select_within(problem, models, layouts, batch)
    starts = [search.begin(first.placement.strategy, models)]
    fast = speeds.leave_out_slow()
    if fast != speeds:
        with suppress(Infeasible):
            fitting = fast.keep_fitting(models)
            gpus = len(fast.order)
            alone = select(batch, (), fitting, gpus, sync=problem.sync, prove=False)
            starts.append(search.begin(fast.fit(alone.placement.strategy, fitting), models))
    for layout in layouts:
        bound_ms = layout.bound_ms(batch, problem.workload.gpus)
        bound_ms += sync.compute_exposed_ms([layout.layout])
        if bound_ms < min(search.total_ms(start.placement) for start in starts):
            with suppress(Infeasible):
                selected = select_within(problem, layout.models, [layout], batch)
                strategy = selected.placement.strategy
                starts.append(search.begin(strategy, layout.models, bound_ms))
    best, bound_ms = search.run(starts, prove=prove)
    considered = [
        replace(entry, predicted_ms=search.times.get(entry.strategy)) for entry in first.considered
    ]
    if all(entry.strategy != best.strategy for entry in considered):
        considered.append(list_considered(best.strategy, bound_ms, best.objective_ms, problem.sync))
    return Selected(best, bound_ms, tuple(considered))
