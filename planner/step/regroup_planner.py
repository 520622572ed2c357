"""Plans of steps whose groups may change within the step, if that is faster."""

from __future__ import annotations

from functools import cached_property

from seqplan.planner.batches.batch import Batch
from seqplan.planner.exact.close_gap import EXACT_GAP
from seqplan.planner.exact.regrouping import close_regrouping_gap
from seqplan.planner.problem import PlanningOptions, PlanningProblem
from seqplan.planner.step.assemble import with_bound
from seqplan.planner.step.pipeline_planner import PipelinePlanner
from seqplan.planner.step.regrouping_plan import (
    assemble_regrouping,
    find_regroup_layouts,
    with_regrouping,
)
from seqplan.planner.strategies.regrouping import RegroupLayout
from seqplan.planner.sync.times import layouts_of
from seqplan.plans.plan import Plan, Provenance


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
        batch = Batch(plan.step, plan.ids, plan.lengths, plan.loss_tokens)
        for layout in self._layouts_of(plan):
            _, bound_ms = close_regrouping_gap(
                layout, batch, plan.world_size, plan.predicted_ms, plan.lower_bound_ms
            )
            plan = with_bound(plan, bound_ms)
        return plan

    def _solve(self, plan: Plan, static: Plan, batch: Batch) -> Plan:
        """Solve a step whose groups change: a faster plan, or one with a closer bound."""
        (layout,) = self._layouts_of(plan)
        found, bound_ms = close_regrouping_gap(
            layout, batch, plan.world_size, plan.predicted_ms, plan.lower_bound_ms
        )
        if found is not None:
            faster = assemble_regrouping(found, static, batch, layout, self._options.packing)
            plan = faster if faster.predicted_ms < plan.predicted_ms else plan
        return with_bound(plan, bound_ms)

    def _layouts_of(self, plan: Plan) -> list[RegroupLayout]:
        layouts = layouts_of(scheme for scheme, _ in plan.strategy.counts)
        return [entry for entry in self._layouts if entry.layout in layouts]
