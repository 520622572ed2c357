"""Planning of steps on pipelines that stay, or on groups that change within the step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import gpu_time_bound_ms
from seqplan.planner.exact.close_gap import (
    EXACT_GAP,
)
from seqplan.planner.exact.regrouping import close_regrouping_gap
from seqplan.planner.lockstep.without_waiting import plan_without_waiting
from seqplan.planner.placement.assembly import (
    cut_evenly,
    floor_us,
    plan_of,
    plan_pipeline,
    with_bound,
)
from seqplan.planner.placement.fleet import Models
from seqplan.planner.problem import PACKINGS, PlanningOptions, PlanningProblem
from seqplan.planner.step.pipeline_planner import PipelinePlanner
from seqplan.planner.strategies.regrouping import (
    Regrouping,
    RegroupLayout,
    find_regrouping,
    make_regroup_layouts,
)
from seqplan.planner.sync.times import layouts_of
from seqplan.plans.plan import Considered, Plan, PlannedPipeline, Provenance
from seqplan.plans.schedule import schedule
from seqplan.plans.scheme import Strategy

REFORMING_GAIN = 0.005
"""Share by which regrouping groups have to be faster: every change of groups costs a little."""


class RegroupPlanner:
    """Plans steps on pipelines that stay, or on groups that change within the step."""

    def __init__(
        self, problem: PlanningProblem, options: PlanningOptions, provenance: Provenance
    ) -> None:
        self._problem, self._options = problem, options
        self._pipelines = PipelinePlanner(problem, options, provenance)

    @cached_property
    def _layouts(self) -> list[RegroupLayout]:
        return find_regroup_layouts(self._problem)

    def plan(self, batch: Batch) -> Plan:
        """Plan a batch; ``Infeasible`` if no scheme holds a sequence."""
        options, selected = self._options, self._pipelines.select(batch)
        static = self._pipelines.assemble(batch, selected)
        plan = with_regrouping(
            static, batch, self._layouts, self._problem.models, options.seed, options.packing
        )
        if not options.exact or plan.gap <= EXACT_GAP:
            return plan
        if plan.regroups:
            return self._solve(plan, static, batch)
        return self._pipelines.solve(plan, selected, batch)

    def prove(self, plan: Plan) -> Plan:
        """Return the plan with the closest bound that can be proven.

        Groups that change have it already, but for steps that ``exact`` solves.
        """
        if not plan.regroups:
            return self._pipelines.prove(plan)
        if not self._options.exact:
            return plan
        batch = Batch.from_plan(plan)
        for layout in self._layouts_of(plan):
            _, bound_ms = close_regrouping_gap(
                layout, batch, plan.world_size, plan.predicted_ms, plan.lower_bound_ms
            )
            plan = with_bound(plan, bound_ms)
        return plan

    def _solve(self, plan: Plan, static: Plan, batch: Batch) -> Plan:
        """Solve a step whose groups change: a faster plan, or one with a closer bound."""
        (layout,) = self._layouts_of(plan)
        solution, bound_ms = close_regrouping_gap(
            layout, batch, plan.world_size, plan.predicted_ms, plan.lower_bound_ms
        )
        if solution is not None:
            faster = assemble_regrouping(solution, static, batch, layout, self._options.packing)
            plan = faster if faster.predicted_ms < plan.predicted_ms else plan
        return with_bound(plan, bound_ms)

    def _layouts_of(self, plan: Plan) -> list[RegroupLayout]:
        layouts = layouts_of(scheme for scheme, _ in plan.strategy.counts)
        return [entry for entry in self._layouts if entry.layout in layouts]


def find_regroup_layouts(problem: PlanningProblem) -> list[RegroupLayout]:
    """List the layouts in which groups may change within a step.

    Each with all its schemes: the one that the proposal chose, or if it chose several, each. None
    without a sync.
    """
    if problem.sync is None:
        return []
    layouts = make_regroup_layouts(problem.models, problem.sync)
    chosen = problem.regroup_layout
    return [entry for entry in layouts if chosen in (None, entry.layout)]


def with_regrouping(
    static: Plan,
    batch: Batch,
    layouts: Sequence[RegroupLayout],
    models: Models,
    seed: int,
    packing: str = PACKINGS[0],
) -> Plan:
    """Return a plan whose groups regroup if it is faster by ``REFORMING_GAIN``, else ``static``.

    With the sync of each of these layouts, and of the static plan. If the step stays far above the
    bound, micro-steps that do not wait for each other are tried too (``plan_without_waiting``). Its
    bound is over all plans of the layout, whatever their groups; ``selection`` keeps the static
    strategies that were considered.
    """
    best, gpus = static, static.world_size
    limit_ms = static.predicted_ms / (1 + REFORMING_GAIN) + (static.sync_ms or 0.0)
    bounds = {entry.layout: entry.bound_ms(batch, gpus) for entry in layouts}
    for layout in sorted(layouts, key=lambda entry: bounds[entry.layout]):
        if bounds[layout.layout] >= limit_ms:
            break
        if layout.max_sequence < batch.longest:
            continue
        below_ms = limit_ms - layout.sync_ms
        regrouped = find_regrouping(layout.classes, batch, gpus, below_ms, seed)
        if regrouped is None:
            continue
        plan = assemble_regrouping(regrouped, static, batch, layout, packing)
        if plan.predicted_ms < below_ms:
            best, limit_ms = plan, plan.predicted_ms + layout.sync_ms
    for layout in sorted(layouts, key=lambda entry: bounds[entry.layout]):
        below_ms = limit_ms - layout.sync_ms
        planned = plan_without_waiting(batch, layout, models, gpus, below_ms)
        if planned is not None:
            plan = _plan_of(static, batch, layout, planned[0])
            if plan.predicted_ms < below_ms:
                best, limit_ms = plan, plan.predicted_ms + layout.sync_ms
    return best


def assemble_regrouping(
    regrouped: Regrouping,
    static: Plan,
    batch: Batch,
    layout: RegroupLayout,
    packing: str = PACKINGS[0],
) -> Plan:
    """Make the plan of a placement: a pipeline for each run, in order of their start.

    Ranks run their pipelines in this one order, so that none waits for another for ever. What does
    not follow from the placement (planner, world, candidates) is as in ``static``.
    """
    pools = [iter(positions) for positions in batch.positions]
    pipelines = []
    for run in regrouped.runs:
        scheme, pipeline_class = layout.schemes[run.class_index], layout.classes[run.class_index]
        micro_batches = [
            [next(pools[i]) for i, n in bin_ for _ in range(n)] for bin_ in run.micro_batches
        ]
        if packing == "even":
            micro_batches = cut_evenly(pipeline_class, micro_batches, batch.lengths)
        ranks = tuple(range(run.first, run.first + scheme.gpus))
        pipelines.append(
            plan_pipeline(
                scheme, pipeline_class, ranks, micro_batches, batch, forward_fraction=1 / 3
            )
        )
    return _plan_of(static, batch, layout, pipelines)


def _plan_of(
    static: Plan, batch: Batch, layout: RegroupLayout, pipelines: Sequence[PlannedPipeline]
) -> Plan:
    """Make the plan of pipelines in order of their start."""
    predicted = round(schedule(pipelines).makespan_ms, 3)
    bound = gpu_time_bound_ms(layout.classes, batch, static.world_size)
    strategy = Strategy.from_counts(Counter(pipeline.scheme for pipeline in pipelines))
    return plan_of(
        batch,
        static.provenance,
        static.world_size,
        pipelines,
        predicted_ms=predicted,
        bound_ms=min(floor_us(bound), predicted),
        selection=_list_candidates(static.selection, strategy, predicted),
        sync_ms=None if static.sync_ms is None else round(layout.sync_ms, 3),
        layout_bound_ms=bound,
    )


def _list_candidates(
    candidates: Sequence[Considered], strategy: Strategy, predicted_ms: float
) -> tuple[Considered, ...]:
    """List the static candidates; one that these groups are, as no rank regroups, at its time."""
    return tuple(
        replace(
            candidate,
            predicted_ms=predicted_ms,
            lower_bound_ms=min(candidate.lower_bound_ms, predicted_ms),
        )
        if candidate.strategy == strategy
        else candidate
        for candidate in candidates
    )
