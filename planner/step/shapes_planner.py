"""Steps whose micro-batches have few sizes, as captured graphs and compiled kernels want."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seqplan.costs.recomputation_mode import ModeModel
from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.balance.shapes import choose_shapes, list_filled
from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.certificate import certify
from seqplan.planner.bounds.gpu_time import cheap_bound_ms, gpu_time_bound_ms
from seqplan.planner.bounds.linear_program import load_solver
from seqplan.planner.errors import OptionError
from seqplan.planner.placement.assembly import Selected, assemble, deal, with_bound
from seqplan.planner.placement.exchange_positions import exchange_positions
from seqplan.planner.placement.fill import Placement
from seqplan.planner.placement.fleet import Fleet, Models, PipelineClass
from seqplan.planner.placement.slowdown import make_fleet_of
from seqplan.planner.problem import PlanningOptions, PlanningProblem
from seqplan.planner.step.selection import select
from seqplan.planner.strategies.constructive import LayoutSchemes
from seqplan.planner.sync.times import layouts_of
from seqplan.plans.plan import Plan, Provenance
from seqplan.plans.scheme import Scheme, Strategy

ABOUT_AS_FULL = 0.9
"""Schemes whose fullest micro-batch is at least this share of the fullest of all get one size."""

AS_FAST = 5e-3
"""Plans within this of the fastest are equal, so that padding decides."""


class ShapesPlanner:
    """Plans steps on pipelines that stay, with micro-batches padded to the sizes of the options.

    Each scheme holds no more than the largest size within its MaxLen. Bounds are for free sizes, so
    that gaps state the price of few sizes. ``OptionError`` for options and profiles that shapes
    rule out: schemes have no stages, and their tp divides every size.
    """

    def __init__(
        self, problem: PlanningProblem, options: PlanningOptions, provenance: Provenance
    ) -> None:
        self.problem, self.options, self._provenance = problem, options, provenance
        self._models = {
            scheme: limited
            for scheme, model in problem.models.items()
            if (limited := limit_to_shapes(model, options.shapes)) is not None
        }
        longest = max((model.max_sequence for model in self._models.values()), default=0)
        if longest < problem.workload.max_len:
            raise OptionError(
                "{0}: sequences have up to {1} {most} tokens, and no scheme without stages holds "
                "more than {held} in them. Give larger ones that each tp divides",
                "shapes",
                "max_len",
                most=problem.workload.max_len,
                held=longest,
            )
        self._layouts = LayoutSchemes.list_from_models(self._models)
        if options.prove:
            load_solver()

    def plan(self, batch: Batch) -> Plan:
        """Plan a batch; ``Infeasible`` if no scheme holds a sequence."""
        problem, shapes = self.problem, self.options.shapes
        gpus = problem.workload.gpus
        candidates = [
            strategy
            for strategy in problem.strategies
            if all(scheme in self._models for scheme, _ in strategy.counts)
        ]
        selected = select(
            batch,
            candidates,
            self._models,
            gpus,
            sync=problem.sync,
            prove=False,
            layouts=self._layouts,
        )
        bounds = self._bound(selected.placement, batch)
        plans = [
            assemble(
                batch,
                replace(selected, lower_bound_ms=bounds[0], positions=way),
                self._provenance,
                gpus,
                forward_fraction=problem.profile.forward_fraction,
                layout_bound_ms=bounds[1],
                shapes=shapes,
            )
            for way in self._list_ways(selected, batch, bounds[0])
        ]
        limit_ms = min(plan.predicted_ms for plan in plans) * (1 + AS_FAST)
        near = [plan for plan in plans if plan.predicted_ms <= limit_ms]
        return min(near, key=count_padded_tokens)

    def _list_ways(
        self, selected: Selected, batch: Batch, bound_ms: float
    ) -> list[list[list[list[int]]]]:
        placement, shapes = selected.placement, self.options.shapes
        ways = list_ways_to_fill(selected, batch, shapes)
        classes, schemes = placement.fleet.pipelines, list(placement.strategy)
        return ways + [
            exchange_positions(classes, schemes, batch, way, bound_ms, shapes)[0] for way in ways
        ]

    def prove(self, plan: Plan) -> Plan:
        """Return the plan with the closest bound that can be proven of its strategy."""
        fleet = make_fleet_of(plan, self.problem.models)
        return with_bound(plan, certify(fleet, Batch.from_plan(plan), plan.predicted_ms))

    def _bound(self, placement: Placement, batch: Batch) -> tuple[float, float]:
        """Bound plans of the strategy, and of its layouts, with micro-batches of any size (ms)."""
        models, strategy = self.problem.models, placement.strategy
        fleet = Fleet.from_strategy(strategy, models)
        if self.options.prove:
            bound_ms = certify(fleet, batch, placement.objective_ms)
        else:
            bound_ms = min(cheap_bound_ms(fleet.classes, batch), placement.objective_ms)
        classes = _list_classes(models, strategy)
        return bound_ms, gpu_time_bound_ms(classes, batch, self.problem.workload.gpus)


def limit_to_shapes(model: SchemeModel, shapes: Sequence[int]) -> SchemeModel | None:
    """Return a scheme that holds no more than a shape (tokens a rank); None if it fits none."""
    scheme = model.scheme
    sizes = [size * scheme.sp for size in shapes if size % scheme.tp == 0]
    if scheme.pp > 1 or len(sizes) < len(shapes) or any(size % scheme.unit for size in sizes):
        return None

    def find_largest(max_len: int) -> int:
        return max((size for size in sizes if size <= max_len), default=0)

    modes: list[ModeModel] = []
    for mode in model.modes:
        if held := find_largest(mode.max_len):
            modes.append(replace(mode, max_len=held))
    held = find_largest(model.max_len)
    return replace(model, max_len=held, modes=tuple(modes)) if held else None


def list_ways_to_fill(
    selected: Selected, batch: Batch, shapes: Sequence[int]
) -> list[list[list[list[int]]]]:
    """List positions by pipeline and micro-batch, first as placed, then exchanged to fill shapes.

    Sequences are exchanged among the pipelines of a scheme.
    """
    placed = deal(batch, selected.placement)
    placement = selected.placement
    in_order = list(zip(placement.strategy, placement.fleet.pipelines, strict=True))
    ways = [placed]
    by_scheme: dict[Scheme, list[int]] = {}
    for place, (scheme, _) in enumerate(in_order):
        by_scheme.setdefault(scheme, []).append(place)
    for scheme, places in by_scheme.items():
        k = in_order[places[0]][1]
        sizes = tuple(size * scheme.sp for size in shapes if size * scheme.sp <= k.capacity)
        held = sorted(i for place in places for micro in placed[place] for i in micro)
        if not held or not sizes:
            continue
        number = {position: j for j, position in enumerate(held)}
        parts = [[[number[i] for i in micro] for micro in placed[place]] for place in places]
        tokens = [k.pad(batch.lengths[i]) for i in held]
        filled = list_filled(parts, tokens, sizes, k.capacity)[1:]
        while len(ways) <= len(filled):
            ways.append([list(of) for of in ways[0]])
        for way, (of_scheme, _) in zip(ways[1:], filled, strict=False):
            for place, of in zip(places, of_scheme, strict=True):
                way[place] = [[held[j] for j in micro] for micro in of]
    return ways


def choose_plan_shapes(plans: Sequence[Plan], number: int) -> tuple[int, ...]:
    """Choose sizes (tokens a rank) with the least padding of these plans.

    ``plans``: of steps drawn from the data, such as a hundred; ``number``: of sizes, at most. All
    are multiples of the largest tp in them. ``ValueError`` if there are no micro-batches or
    ``number`` is below 1.
    """
    if type(number) is not int or number < 1:
        raise ValueError(f"number of shapes must be a whole number of 1 or more, not {number!r}")
    pipelines = [pipeline for plan in plans for pipeline in plan.pipelines]
    unit = max((pipeline.scheme.tp for pipeline in pipelines), default=1)
    by_scheme: dict[Scheme, list[int]] = {}
    for pipeline in pipelines:
        by_scheme.setdefault(pipeline.scheme, []).extend(
            -(-batch.padded_tokens // (pipeline.scheme.sp * unit)) * unit
            for batch in pipeline.micro_batches
        )
    sizes = [size for of_scheme in by_scheme.values() for size in of_scheme]
    if not sizes:
        raise ValueError("plans: have no micro-batches. Give plans of some steps")
    # Schemes hold about as much a rank, and one that just misses the largest size would not get it.
    fullest = [max(of_scheme) for of_scheme in by_scheme.values() if of_scheme]
    most = min(size for size in fullest if size >= ABOUT_AS_FULL * max(fullest))
    return choose_shapes([min(size, most) for size in sizes], number)


def count_padded_tokens(plan: Plan) -> int:
    """Count the tokens of all micro-batches with their padding."""
    return sum(b.padded_tokens for pipeline in plan.pipelines for b in pipeline.micro_batches)


def _list_classes(models: Models, strategy: Strategy) -> list[PipelineClass]:
    layouts = layouts_of(scheme for scheme, _ in strategy.counts)
    return [
        PipelineClass.from_model(model, 1)
        for scheme, model in models.items()
        if (scheme.tp, scheme.pp) in layouts
    ]
