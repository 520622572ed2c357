"""Planning of steps on pipelines that stay."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cached_property

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.certificate import certify
from seqplan.planner.bounds.gpu_time import gpu_time_bound_ms
from seqplan.planner.bounds.linear_program import load_solver
from seqplan.planner.errors import Infeasible
from seqplan.planner.exact.close_gap import (
    EXACT_GAP,
    close_gap,
    closer_bound_ms,
    load_exact_solver,
)
from seqplan.planner.placement.assembly import (
    Selected,
    assemble,
    with_bound,
)
from seqplan.planner.placement.fleet import Models
from seqplan.planner.placement.slowdown import make_fleet_of
from seqplan.planner.problem import PlanningOptions, PlanningProblem
from seqplan.planner.step.selection import select
from seqplan.planner.step.slow_ranks import (
    leave_out_lost,
    list_factors,
    list_layouts,
    select_uneven,
)
from seqplan.planner.strategies.constructive import LayoutSchemes
from seqplan.planner.sync.times import layouts_of
from seqplan.plans.plan import Plan, Provenance
from seqplan.plans.scheme import Strategy


class PipelinePlanner:
    """Plans steps on pipelines that stay the same within a step.

    Making one takes a moment, as the solvers that planning needs are imported.
    """

    def __init__(
        self, problem: PlanningProblem, options: PlanningOptions, provenance: Provenance
    ) -> None:
        self._speeds = list_factors(options.slowdown, problem.workload.gpus)
        self._lost = () if self._speeds is None else self._speeds.lost
        self._world_size = problem.workload.gpus
        self._proposed = list_layouts(problem)
        # Costs, capacities and bounds are those of the ranks that are left.
        self.problem = leave_out_lost(problem, self._lost)
        self.options, self._provenance = options, provenance
        self._forward_fraction = problem.profile.forward_fraction
        if options.prove:
            load_solver()
        if options.exact:
            load_exact_solver()

    @cached_property
    def _layouts(self) -> list[LayoutSchemes]:
        return LayoutSchemes.list_from_models(self._models)

    @cached_property
    def _models(self) -> Models:
        """Return the models of schemes that fit a block of ranks without lost ones."""
        models = self.problem.models
        return self._speeds.keep_fitting(models) if self._speeds and self._lost else models

    def plan(self, batch: Batch) -> Plan:
        """Plan a batch; ``Infeasible`` if no scheme holds a sequence."""
        selected = self.select(batch)
        plan = self.assemble(batch, selected)
        return self.solve(plan, selected, batch) if self.options.exact else plan

    def select(self, batch: Batch) -> Selected:
        """Choose the strategy of a batch and its placement, with a proven bound."""
        if self._speeds is None:
            problem = self.problem
            return select(
                batch,
                problem.strategies,
                self._models,
                problem.workload.gpus,
                sync=problem.sync,
                prove=self.options.prove,
                layouts=self._layouts,
            )
        if not self._models:
            raise Infeasible(
                f"ranks lost: {list(self._lost)}. No scheme fits between them, as groups lie on "
                "blocks of ranks that are aligned to their size. Start the job without lost ranks"
            )
        try:
            return select_uneven(
                self.problem,
                self._models,
                self._layouts,
                batch,
                self._speeds,
                proposed=self._proposed,
                prove=self.options.prove,
            )
        except Infeasible as error:
            if not self._lost:
                raise
            raise Infeasible(f"ranks lost: {list(self._lost)}. {error}") from None

    def assemble(self, batch: Batch, selected: Selected) -> Plan:
        """Make the plan of a selected placement."""
        strategy = selected.placement.strategy
        plan = assemble(
            batch,
            selected,
            self._provenance,
            self._world_size,
            forward_fraction=self._forward_fraction,
            packing=self.options.packing,
            layout_bound_ms=self._layout_bound_ms(strategy, batch),
            placed=None if self._speeds is None else self._speeds.place(strategy),
        )
        return replace(plan, lost_ranks=self._lost) if self._lost else plan

    def solve(self, plan: Plan, selected: Selected, batch: Batch) -> Plan:
        """Solve a step of few sequences that keeps a large gap: a faster plan or a closer bound."""
        if plan.gap <= EXACT_GAP:
            return plan
        # A plan may be packed better than its placement was: then only the bound can gain.
        placement, bound_ms = close_gap(selected.placement, batch, selected.lower_bound_ms)
        solved = self.assemble(
            batch, replace(selected, placement=placement, lower_bound_ms=bound_ms)
        )
        return solved if solved.predicted_ms <= plan.predicted_ms else with_bound(plan, bound_ms)

    def prove(self, plan: Plan) -> Plan:
        """Return the plan with the closest bound that can be proven of its strategy."""
        batch = Batch.from_plan(plan)
        fleet = make_fleet_of(plan, self.problem.models)
        bound_ms = certify(fleet, batch, plan.predicted_ms)
        if self.options.exact:
            bound_ms = closer_bound_ms(fleet, batch, plan.predicted_ms, bound_ms)
        return with_bound(plan, bound_ms)

    def _layout_bound_ms(self, strategy: Strategy, batch: Batch) -> float:
        """Bound all plans of a strategy's layouts, whatever their groups (ms)."""
        layouts: Collection[tuple[int, int]] = layouts_of(scheme for scheme, _ in strategy.counts)
        known = LayoutSchemes.list_from_models(self.problem.models) if self._lost else self._layouts
        classes = [c for entry in known if entry.layout in layouts for c in entry.classes]
        return gpu_time_bound_ms(classes, batch, self.problem.workload.gpus)
