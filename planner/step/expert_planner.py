"""Planning of steps whose experts are split over ranks (expert parallelism E).

Two kinds of plans are made, and the faster one is taken. In the first every stage of a pipeline
consists of whole blocks of E ranks, so that pipelines run independently, as without experts. In the
second groups may be smaller than a block: components of blocks run in lockstep
(``planner.experts``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.expert_sharing import expert_bound_ms
from seqplan.planner.errors import Infeasible
from seqplan.planner.execution import ExecutionKind
from seqplan.planner.experts.component_planner import ComponentSteps
from seqplan.planner.experts.components import NEAR, plan_components, replan_components
from seqplan.planner.experts.coupled_pipelines import (
    couple_pipelines,
    list_parts,
    merge_pipelines,
    price_micro_batch,
)
from seqplan.planner.experts.modes import choose_modes
from seqplan.planner.lockstep.assemble import assemble_micro_steps
from seqplan.planner.lockstep.best_layout import of_layouts
from seqplan.planner.placement.assembly import floor_us, gap, plan_of
from seqplan.planner.problem import PlanningOptions, PlanningProblem
from seqplan.planner.step.pipeline_planner import PipelinePlanner
from seqplan.planner.step.robust_planner import PlannerOfSteps
from seqplan.planner.sync.times import NO_SYNC, Layout, layouts_of
from seqplan.plans.experts import holds_whole_blocks
from seqplan.plans.plan import Considered, Plan, PlannedPipeline, Provenance
from seqplan.plans.schedule import schedule
from seqplan.plans.scheme import Strategy


def keep_whole_blocks(problem: PlanningProblem) -> PlanningProblem:
    """Return the problem with the schemes whose stages consist of whole blocks of experts."""
    degree = problem.profile.expert_parallel
    strategies = tuple(
        strategy
        for strategy in problem.strategies
        if all(scheme.stage_gpus % degree == 0 for scheme, _ in strategy.counts)
    )
    return replace(
        problem, whole_blocks=True, strategies=strategies, proposal_digest=problem.digest
    )


class ExpertPlanner:
    """Plans steps of a problem whose profile has experts on several ranks.

    ``whole``: planner of pipelines of whole blocks, None if no scheme has them. Components whose
    groups change are planned only if ``execution`` is ``regroup``. ``quick``: one component alone.
    """

    def __init__(
        self,
        problem: PlanningProblem,
        provenance: Provenance,
        whole: PlannerOfSteps | None,
        execution: ExecutionKind,
        *,
        quick: bool = False,
    ) -> None:
        self._problem, self._provenance, self._whole = problem, provenance, whole
        self._execution, self._quick = execution, quick
        self._independent = None
        if not problem.in_lockstep:
            plain = PlanningOptions(seed=provenance.seed, prove=False)
            self._independent = PipelinePlanner(problem, plain, provenance)
        self._degree = problem.profile.expert_parallel
        self._layouts = of_layouts(problem.models)

    def plan(self, batch: Batch) -> Plan:
        """Plan a batch; ``Infeasible`` if no scheme holds a sequence."""
        best, error = None, None
        if self._whole is not None:
            try:
                best = self._bound_layout(self._whole.plan(batch), batch)
            except Infeasible as why:
                error = why
        candidates = () if best is None else best.selection
        if self._independent is not None:
            best = self._plan_apart(self._independent, batch, best)
        best = self._plan_coupled(batch, best, candidates)
        if best is None:
            raise error or Infeasible(self._describe_longest(batch))
        return best

    def _plan_apart(self, planner: PipelinePlanner, batch: Batch, best: Plan | None) -> Plan | None:
        """Plan pipelines as if they ran by themselves, then the components that they form anew."""
        coupled = self._couple(planner, batch)
        if coupled is None:
            return best
        best = coupled if best is None else _choose_faster(best, coupled)
        if best is coupled and not self._quick:
            best = self.prove(best)
        if self._execution == "regroup":
            best = _choose_faster(best, self._replan_components(coupled, batch, best))
        return best

    def prove(self, plan: Plan) -> Plan:
        """Return the plan with the closest bound that can be proven."""
        coupled = any(
            not holds_whole_blocks(pipeline.scheme, pipeline.ranks, self._degree)
            for pipeline in plan.pipelines
        )
        if coupled or self._whole is None:
            return plan
        return replace(self._whole.prove(plan), expert_parallel=self._degree)

    def _plan_coupled(
        self, batch: Batch, best: Plan | None, candidates: tuple[Considered, ...]
    ) -> Plan | None:
        """Plan components in lockstep, of layouts without stages that have smaller groups.

        In the order of their bounds, as far as they may be faster than ``best``.
        """
        choices = (*self._list_choices(), *self._list_of_one_mode(batch.longest))
        bounds = [self._layout_bound_ms({layout}, batch) for layout, _ in choices]
        least = [
            bound + self._expose(layout) for bound, (layout, _) in zip(bounds, choices, strict=True)
        ]
        for place in sorted(range(len(choices)), key=least.__getitem__):
            if best is not None and least[place] >= _total_ms(best):
                break
            plan = self._plan_layout(*choices[place], batch, bounds[place], candidates)
            best = plan if best is None else _choose_faster(best, plan)
        return best

    def _expose(self, layout: Layout) -> float:
        """Return the sync of a layout that nothing hides (ms)."""
        return (self._problem.sync or NO_SYNC).compute_exposed_ms([layout], regrouping=True)

    def _plan_layout(
        self,
        layout: Layout,
        models: list[SchemeModel],
        batch: Batch,
        bound: float,
        candidates: tuple[Considered, ...],
    ) -> Plan | None:
        """Plan components in lockstep, of one layout; None if no size holds a sequence."""
        problem = self._problem
        components = plan_components(
            batch,
            models,
            problem.workload.gpus,
            self._degree,
            bound_ms=bound,
            one=problem.in_lockstep or self._quick,
            multiple=problem.micro_step_multiple,
        )
        if components is None:
            return None
        return self._plan_of(components, layout, batch, bound, candidates, len(models) == 1)

    def _replan_components(self, coupled: Plan, batch: Batch, best: Plan) -> Plan | None:
        """Plan the components of coupled pipelines anew, each from its sequences.

        None if pipelines have stages or several layouts, or if little is left to the bound.
        """
        layouts = layouts_of(pipeline.scheme for pipeline in coupled.pipelines)
        bound = coupled.layout_lower_bound_ms
        if len(layouts) > 1 or bound is None or best.predicted_ms <= NEAR * bound:
            return None
        (layout,) = layouts
        if layout[1] > 1:
            return None
        divided = list_parts(coupled.pipelines, self._degree, self._problem.workload.gpus)
        if divided is None:
            return None
        planned = replan_components(
            batch, self._layouts[layout], *divided, self._degree, best.predicted_ms
        )
        if planned is None:
            return None
        return self._plan_of(planned, layout, batch, bound, (), False)

    def _plan_of(
        self,
        components: Sequence[ComponentSteps],
        layout: Layout,
        batch: Batch,
        bound: float,
        candidates: tuple[Considered, ...],
        merged: bool,
    ) -> Plan:
        """Make the plan of components of one layout."""
        problem = self._problem
        pipelines = [p for component in components for p in self._assemble(component)]
        if merged and not problem.in_lockstep:
            pipelines = merge_pipelines(pipelines)
        predicted = round(schedule(pipelines, expert_parallel=self._degree).makespan_ms, 3)
        strategy = Strategy.from_counts(Counter(pipeline.scheme for pipeline in pipelines))
        plan = plan_of(
            batch,
            self._provenance,
            problem.workload.gpus,
            pipelines,
            predicted_ms=predicted,
            bound_ms=min(floor_us(bound), predicted),
            selection=tuple(c for c in candidates if c.strategy != strategy),
            sync_ms=None if problem.sync is None else round(self._expose(layout), 3),
            layout_bound_ms=bound,
        )
        return replace(plan, expert_parallel=self._degree)

    def _couple(self, planner: PipelinePlanner, batch: Batch) -> Plan | None:
        """Plan pipelines as if they ran by themselves, then in micro-steps of their components."""
        try:
            plan = planner.plan(batch)
        except Infeasible:
            return None
        pipelines = couple_pipelines(plan, batch, self._problem.models, self._degree)
        if pipelines is None:
            return None
        predicted = round(schedule(pipelines, expert_parallel=self._degree).makespan_ms, 3)
        coupled = replace(plan, pipelines=tuple(pipelines), predicted_ms=predicted, selection=())
        layouts = layouts_of(pipeline.scheme for pipeline in pipelines)
        bound_ms = min(floor_us(self._layout_bound_ms(layouts, batch)), predicted)
        return replace(
            coupled,
            expert_parallel=self._degree,
            lower_bound_ms=bound_ms,
            gap=gap(predicted, bound_ms),
            layout_lower_bound_ms=bound_ms,
        )

    def _list_choices(self) -> Iterator[tuple[Layout, list[SchemeModel]]]:
        """Yield the schemes that groups of components may have, with their layout.

        All of a layout, or each alone if groups stay. Without those that planners of whole blocks
        plan.
        """
        for layout, models in self._layouts.items():
            if layout[1] > 1:
                continue
            small = [model for model in models if model.scheme.gpus % self._degree]
            if self._problem.in_lockstep:
                yield layout, models
            elif self._execution != "regroup":
                for model in small:
                    yield layout, [model]
            elif small and self._problem.regroup_layout in (None, layout):
                yield layout, models

    def _list_of_one_mode(self, longest: int) -> Iterator[tuple[Layout, list[SchemeModel]]]:
        """Yield the schemes in lockstep with the mode that recomputes least and holds ``longest``.

        Each micro-step takes the mode of its fullest group, so that groups for several modes may be
        slower than groups for one.
        """
        problem = self._problem
        if not problem.in_lockstep or len(problem.profile.modes) == 1:
            return
        for mode in problem.profile.modes:
            models = problem.workload.models(problem.profile.keep_modes({mode.name}))
            reach = max((model.max_sequence for model in models.values()), default=0)
            if reach >= longest:
                for layout, of_layout in of_layouts(models).items():
                    if layout[1] == 1:
                        yield layout, of_layout
                return

    def _assemble(self, component: ComponentSteps) -> Iterator[PlannedPipeline]:
        """Make the pipelines of a component, in the order of its micro-steps.

        Without lockstep those with idle ranks come last: groups take the first ranks, so that each
        is in the first micro-step in which its ranks are free.
        """
        plan = assemble_micro_steps(
            component.batch,
            component.micro_steps,
            self._provenance,
            self._problem.workload.gpus,
            forward_fraction=self._problem.profile.modes[0].forward_fraction,  # of one stage
        )
        numbered = self._problem.in_lockstep
        modes = self._choose_modes(plan.pipelines, component)
        assembled = list(enumerate(plan.pipelines))
        if not numbered:
            busy = Counter(group.micro_step for group in plan.pipelines for _ in group.ranks)
            assembled.sort(key=lambda entry: -busy[entry[1].micro_step])
        for place, pipeline in assembled:
            ranks = tuple(component.first + rank for rank in pipeline.ranks)
            whole = holds_whole_blocks(pipeline.scheme, ranks, self._degree)
            model = self._problem.models[pipeline.scheme]
            batches = []
            for micro in pipeline.micro_batches:
                of_mode = model.find_mode(modes[place]) or model
                lengths = [component.batch.lengths[i] for i in micro.sequences]
                priced = price_micro_batch(micro, of_mode, lengths, modes[place], whole=whole)
                positions = tuple(component.positions[i] for i in micro.sequences)
                batches.append(replace(priced, sequences=positions))
            yield replace(
                pipeline,
                ranks=ranks,
                micro_step=pipeline.micro_step if numbered else None,
                micro_batches=tuple(batches),
                predicted_ms=round(sum(micro.cost_ms for micro in batches), 3),
            )

    def _choose_modes(
        self, pipelines: Sequence[PlannedPipeline], component: ComponentSteps
    ) -> list[str | None]:
        """Choose the recomputation mode of each pipeline's one micro-batch."""
        of_step: dict[int | None, list[int]] = {}
        for place, pipeline in enumerate(pipelines):
            of_step.setdefault(pipeline.micro_step, []).append(place)
        modes: list[str | None] = [None] * len(pipelines)
        for places in of_step.values():
            held = [
                (
                    self._problem.models[pipelines[place].scheme],
                    [
                        component.batch.lengths[i]
                        for micro in pipelines[place].micro_batches
                        for i in micro.sequences
                    ],
                )
                for place in places
            ]
            for place, mode in zip(places, choose_modes(held), strict=True):
                modes[place] = mode
        return modes

    def _bound_layout(self, plan: Plan, batch: Batch) -> Plan:
        """Return a plan of whole blocks with a bound over smaller groups, too."""
        layouts = layouts_of(scheme for scheme, _ in plan.strategy.counts)
        layout_ms = min(floor_us(self._layout_bound_ms(layouts, batch)), plan.predicted_ms)
        bound_ms = max(layout_ms, 0.0 if plan.regroups else plan.lower_bound_ms)
        return replace(
            plan,
            expert_parallel=self._degree,
            lower_bound_ms=bound_ms,
            gap=gap(plan.predicted_ms, bound_ms),
            layout_lower_bound_ms=layout_ms,
        )

    def _layout_bound_ms(self, layouts: set[Layout] | frozenset[Layout], batch: Batch) -> float:
        models = [m for layout in layouts for m in self._layouts[layout]]
        return expert_bound_ms(models, self._degree, batch, self._problem.workload.gpus)

    def _describe_longest(self, batch: Batch) -> str:
        longest = batch.longest
        sample = batch.ids[batch.lengths.index(longest)]
        return (
            f"step {batch.step}: sequence {sample} has {longest} tokens, but no scheme holds it "
            f"with experts on {self._degree} ranks; truncate it or use more GPUs"
        )


def _choose_faster(best: Plan, plan: Plan | None) -> Plan:
    """Choose the plan with the smaller total, the first of equal ones."""
    return best if plan is None else min(best, plan, key=_total_ms)


def _total_ms(plan: Plan) -> float:
    return plan.predicted_ms + (plan.sync_ms or 0.0)
