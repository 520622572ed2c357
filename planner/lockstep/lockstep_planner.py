"""Plans of steps in lockstep: micro-steps of groups, of whichever layout is fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.linear_program import load_solver
from seqplan.planner.errors import Infeasible
from seqplan.planner.lockstep.assemble import assemble_micro_steps
from seqplan.planner.lockstep.best_layout import (
    Finalist,
    LayoutMicroSteps,
    list_best_micro_steps,
    of_layouts,
    split_finalist,
)
from seqplan.planner.lockstep.plan_micro_steps import plan_micro_steps
from seqplan.planner.lockstep.proof import CLOSE, QUICK, prove_micro_steps
from seqplan.planner.lockstep.replan_pairs import replan_pairs
from seqplan.planner.placement.assembly import with_bound
from seqplan.planner.problem import PlanningOptions, PlanningProblem
from seqplan.planner.sync.times import Layout, layouts_of
from seqplan.plans.plan import Plan, Provenance

CLEARLY = 0.99
"""If split micro-steps take less than this share of the time of those found, both are improved;
else only those found, which are split at the end."""


class LockstepPlanner:
    """Plans steps whose ranks all run their k-th micro-batches together."""

    def __init__(
        self, problem: PlanningProblem, options: PlanningOptions, provenance: Provenance
    ) -> None:
        self._problem, self._provenance = problem, provenance
        quick = QUICK if options.prove else None
        self._proof = CLOSE if options.prove_lockstep else quick
        if self._proof:
            load_solver()

    @cached_property
    def _layouts(self) -> list[list[SchemeModel]]:
        """Schemes of each layout that micro-steps may have: of the candidates, or all."""
        models = self._problem.models
        schemes = [s for strategy in self._problem.strategies for s, _ in strategy.counts]
        chosen = layouts_of(schemes or models)
        return [some for layout, some in of_layouts(models).items() if layout in chosen]

    def plan(self, batch: Batch) -> Plan:
        """Plan the micro-steps of a batch; ``Infeasible`` if no group holds a sequence."""
        problem = self._problem
        gpus = problem.workload.gpus
        finalists = list_best_micro_steps(
            batch, self._layouts, gpus, problem.sync, problem.micro_step_multiple
        )
        if not finalists:
            limit = max(model.max_sequence for models in self._layouts for model in models)
            sample = batch.ids[batch.lengths.index(batch.longest)]
            raise Infeasible(
                f"step {batch.step}: sequence {sample} has {batch.longest} tokens, but no group of "
                f"{gpus} GPUs holds more than {limit}; truncate it or use more GPUs"
            )
        first_ms, last_ms = finalists[0].start.total_ms, finalists[-1].start.total_ms
        if self._proof and last_ms > first_ms * CLEARLY:
            finalists = finalists[:1]
        improved = [self._improve(finalist, batch) for finalist in finalists]
        best = min(improved, key=lambda planned: planned.total_ms)
        return assemble_micro_steps(
            batch,
            best.micro_steps,
            self._provenance,
            gpus,
            forward_fraction=problem.profile.forward_fraction,
            sync_ms=None if problem.sync is None else round(best.sync_ms, 3),
        )

    def _improve(self, finalist: Finalist, batch: Batch) -> LayoutMicroSteps:
        """Bound a finalist, plan its pairs anew, and split what remains of few groups."""
        problem, start = self._problem, finalist.start
        if not self._proof:
            return start
        gpus, multiple = problem.workload.gpus, problem.micro_step_multiple
        proven = prove_micro_steps(finalist.found, batch, self._proof)
        micro_steps = start.micro_steps.with_bound(proven.lower_bound_ms)
        if multiple == 1:
            micro_steps = replan_pairs(micro_steps, batch, self._models_of(start.layout), gpus)
        improved = replace(finalist, start=replace(start, micro_steps=micro_steps))
        return split_finalist(improved, batch, problem.sync, multiple).start

    def prove(self, plan: Plan) -> Plan:
        """Return the plan with the closest bound over its layout that can be proven."""
        batch, (layout,) = Batch.from_plan(plan), layouts_of(k for k, _ in plan.strategy.counts)
        micro_steps = plan_micro_steps(
            batch, self._models_of(layout), plan.world_size, self._problem.micro_step_multiple
        )
        if micro_steps is None:
            return plan
        bound_ms = prove_micro_steps(micro_steps, batch).lower_bound_ms
        proven = with_bound(plan, bound_ms)
        return replace(proven, layout_lower_bound_ms=proven.lower_bound_ms)

    def _models_of(self, layout: Layout) -> list[SchemeModel]:
        return next(models for models in self._layouts if _layout_of(models) == layout)


def _layout_of(models: Sequence[SchemeModel]) -> Layout:
    """Return the layout of schemes that share one."""
    return models[0].scheme.tp, models[0].scheme.pp
