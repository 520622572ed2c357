"""Plans that stay good at other costs within an interval: never slower there than uniform."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from seqplan.costs.cost_errors import list_corners
from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import gpu_time_bound_ms
from seqplan.planner.placement.assembly import (
    Selected,
    assemble,
    floor_us,
    list_candidates,
    plan_of,
)
from seqplan.planner.placement.fleet import Models, PipelineClass
from seqplan.planner.placement.recost import recost_pipelines, simulate_at_costs_ms
from seqplan.planner.problem import PlanningOptions, PlanningProblem
from seqplan.planner.step.selection import select
from seqplan.planner.strategies.homogeneous import best_homogeneous
from seqplan.planner.sync.times import NO_SYNC, layouts_of
from seqplan.plans.plan import Considered, Plan, Provenance
from seqplan.plans.schedule import schedule
from seqplan.plans.scheme import Strategy


class PlannerOfSteps(Protocol):
    """A planner of one kind of execution."""

    def plan(self, batch: Batch) -> Plan: ...

    def prove(self, plan: Plan) -> Plan: ...


def list_corner_problems(problem: PlanningProblem, share: float) -> tuple[PlanningProblem, ...]:
    """List the problem at each corner of the interval of its costs."""
    return tuple(
        replace(problem, profile=corner.apply(problem.profile)) for corner in list_corners(share)
    )


@dataclass(frozen=True)
class _Judged:
    """A plan and its times at every corner, the profile's costs first (ms, with sync)."""

    plan: Plan
    times: tuple[float, ...]

    def compare(self, other: _Judged) -> float:
        """Return its mean time over that of ``other``, by corner; 1 where neither takes time."""
        pairs = zip(self.times, other.times, strict=True)
        return sum(mine / theirs if theirs else 1.0 for mine, theirs in pairs) / len(self.times)

    def is_never_slower(self, other: _Judged) -> bool:
        """Return whether it is at no corner slower than ``other``."""
        return all(mine <= theirs for mine, theirs in zip(self.times, other.times, strict=True))


class RobustPlanner:
    """Plans each step at the corners of the costs' interval, and chooses.

    Of the plans that lose nothing to uniform execution at their worst corner, the one with the
    least mean time over the corners. Uniform execution is one of them. A plan's times are those of
    the profile's costs.
    """

    def __init__(
        self,
        problem: PlanningProblem,
        options: PlanningOptions,
        provenance: Provenance,
        nominal: PlannerOfSteps,
        corners: Sequence[tuple[PlanningProblem, PlannerOfSteps]],
    ) -> None:
        self._problem, self._options, self._provenance = problem, options, provenance
        self._nominal, self._corners = nominal, corners

    def plan(self, batch: Batch) -> Plan:
        """Plan a batch; ``Infeasible`` if no scheme holds a sequence."""
        nominal = self._nominal.plan(batch)
        uniform = self._plan_uniform(batch)
        plans = [nominal, *([] if uniform is None else [uniform])]
        for _, planner in self._corners:
            plans.append(self._recost(planner.plan(batch), nominal, batch))
        judged = [self._judge(plan, batch) for plan in plans]
        # Without a uniform strategy all are compared with the plan at the profile's costs.
        reference = judged[0 if uniform is None else 1]
        safe = judged if uniform is None else [of for of in judged if of.is_never_slower(reference)]
        # The first of equal ones: the plan at the profile's costs, then the uniform one.
        chosen = min(safe, key=lambda of: of.compare(reference)).plan
        return replace(chosen, provenance=self._provenance)

    def prove(self, plan: Plan) -> Plan:
        """Return the plan with the closest bound that can be proven."""
        return self._nominal.prove(plan)

    def _plan_uniform(self, batch: Batch) -> Plan | None:
        """Plan the uniform strategy of the proposal, or the best one for this batch."""
        problem, gpus = self._problem, self._problem.workload.gpus
        models, sync = problem.models, problem.sync or NO_SYNC
        strategy = problem.uniform
        if strategy is None or batch.longest > models[strategy.counts[0][0]].max_sequence:
            best = best_homogeneous([batch], models, gpus, sync)
            if best is None:
                return None
            strategy = best[0]
        selected: Selected = select(
            batch, [strategy], models, gpus, tailor=False, sync=problem.sync, prove=False
        )
        return assemble(
            batch,
            selected,
            self._provenance,
            gpus,
            forward_fraction=problem.profile.forward_fraction,
            packing=self._options.packing,
            layout_bound_ms=_bound_layouts_ms(strategy, batch, models, gpus),
        )

    def _judge(self, plan: Plan, batch: Batch) -> _Judged:
        fraction = self._problem.profile.forward_fraction
        problems = [self._problem, *(problem for problem, _ in self._corners)]
        return _Judged(
            plan,
            tuple(
                simulate_at_costs_ms(plan.pipelines, batch.lengths, problem.models, fraction)
                + (plan.sync_ms or 0.0)
                for problem in problems
            ),
        )

    def _recost(self, plan: Plan, nominal: Plan, batch: Batch) -> Plan:
        """Return a plan of other costs as a plan at the profile's costs."""
        models, gpus = self._problem.models, self._problem.workload.gpus
        pipelines = recost_pipelines(
            plan.pipelines, batch.lengths, models, self._problem.profile.forward_fraction
        )
        predicted = round(schedule(pipelines).makespan_ms, 3)
        strategy = Strategy.from_counts(Counter(pipeline.scheme for pipeline in pipelines))
        bound = _bound_layouts_ms(strategy, batch, models, gpus)
        low = min(floor_us(bound), predicted)
        selection = nominal.selection
        if not plan.regroups and strategy not in {entry.strategy for entry in selection}:
            selection = (*selection, Considered(strategy, low, predicted, plan.sync_ms))
        return plan_of(
            batch,
            self._provenance,
            gpus,
            pipelines,
            predicted_ms=predicted,
            bound_ms=low,
            selection=list_candidates(selection, strategy, predicted, low),
            sync_ms=plan.sync_ms,
            layout_bound_ms=bound,
        )


def _bound_layouts_ms(strategy: Strategy, batch: Batch, models: Models, gpus: int) -> float:
    """Bound all plans of a strategy's layouts, whatever their groups (ms)."""
    layouts = layouts_of(scheme for scheme, _ in strategy.counts)
    classes = [
        PipelineClass.from_model(model, 1)
        for scheme, model in models.items()
        if (scheme.tp, scheme.pp) in layouts
    ]
    return gpu_time_bound_ms(classes, batch, gpus)
