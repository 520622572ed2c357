"""Steps whose micro-batches have few sizes, as captured graphs and compiled kernels want."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from math import gcd, lcm

from seqplan.costs.recomputation_mode import ModeModel
from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.argument_checks import read_whole_number
from seqplan.planner.balance.shapes import choose_shapes
from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.certificate import certify
from seqplan.planner.bounds.gpu_time import cheap_bound_ms, gpu_time_bound_ms
from seqplan.planner.bounds.linear_program import load_solver
from seqplan.planner.errors import OptionError
from seqplan.planner.placement.assembly import (
    Selected,
    assemble,
    deal,
    floor_us,
    with_bound,
)
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.fill import Filler, Placement
from seqplan.planner.placement.fleet import Fleet, Models, PipelineClass
from seqplan.planner.placement.shapes.assign_shapes import SizedClass
from seqplan.planner.placement.shapes.fill_shapes import fill_shapes
from seqplan.planner.placement.slowdown import make_fleet_of
from seqplan.planner.problem import PlanningOptions, PlanningProblem
from seqplan.planner.step.selection import select_within
from seqplan.planner.strategies.constructive import LayoutSchemes
from seqplan.planner.strategies.local_search import swap
from seqplan.planner.sync.times import layouts_of
from seqplan.plans.plan import Considered, Plan, Provenance, check_plan
from seqplan.plans.scheme import Scheme, Strategy

ABOUT_AS_FULL = 0.9
"""Schemes whose fullest micro-batch is at least this share of the fullest of all get one size."""

GOOD = 0.03
"""Share of the time of free sizes up to which no other strategies are tried."""


class ShapesPlanner:
    """Plans steps on pipelines that stay, with micro-batches padded to the sizes of the options.

    Each scheme holds no more than the largest size within its MaxLen. Bounds are for free sizes, so
    that gaps state the price of few sizes. ``OptionError`` for options and profiles that shapes
    rule out: schemes have no stages, and their tp and ring divide every size.
    """

    def __init__(
        self, problem: PlanningProblem, options: PlanningOptions, provenance: Provenance
    ) -> None:
        self.problem, self.options, self._provenance = problem, options, provenance
        self._models = limit_to_shapes(problem.models, options.shapes)
        longest = max((model.max_sequence for model in self._models.values()), default=0)
        if longest < problem.workload.max_len:
            raise OptionError(
                "{0}: sequences have up to {1} {most} tokens, and no scheme without stages holds "
                "more than {held} in them. Give larger ones that each tp divides, even for rings",
                "shapes",
                "max_len",
                most=problem.workload.max_len,
                held=longest,
            )
        self._layouts = LayoutSchemes.list_from_models(self._models)
        self._find_sized = cache(self._make_sized)
        if options.prove:
            load_solver()

    def plan(self, batch: Batch) -> Plan:
        """Plan a batch; ``Infeasible`` if no scheme holds a sequence."""
        selected = select_within(self.problem, self._models, self._layouts, batch)
        best = min(self._list_plans(selected, batch), key=_rate)
        if best.predicted_ms > (1 + GOOD) * selected.placement.objective_ms:
            others = sorted(
                self._list_swapped(selected, batch), key=lambda o: o.placement.objective_ms
            )
            for other in others:
                least_ms = other.placement.objective_ms + (other.considered[-1].sync_ms or 0.0)
                if least_ms * sum(batch.lengths) < _rate(best):
                    best = min([best, *self._list_plans(other, batch)], key=_rate)
        bound_ms, layout_bound_ms = self._bound(best.strategy, batch, best.predicted_ms)
        layout_bound_ms = min(floor_us(layout_bound_ms), best.predicted_ms)
        best = replace(best, layout_lower_bound_ms=layout_bound_ms)
        return with_bound(best, max(bound_ms, layout_bound_ms))

    def _list_plans(self, selected: Selected, batch: Batch) -> list[Plan]:
        """List plans without bounds: as placed, then with sizes filled."""
        placement, shapes = selected.placement, self.options.shapes
        placed = deal(batch, placement)
        classes = [self._find_sized(scheme) for scheme in placement.strategy]
        return [
            assemble(
                batch,
                replace(selected, lower_bound_ms=0.0, positions=way),
                self._provenance,
                self.problem.workload.gpus,
                forward_fraction=self.problem.profile.forward_fraction,
                shapes=shapes,
            )
            for way in [placed, *fill_shapes(classes, batch, placed, placement.objective_ms)]
        ]

    def _make_sized(self, scheme: Scheme) -> SizedClass:
        k = PipelineClass.from_model(self._models[scheme], 1)
        sizes = [n * scheme.sp for n in self.options.shapes]
        return SizedClass(k, [size for size in sizes if size <= k.capacity])

    def _list_swapped(self, selected: Selected, batch: Batch) -> Iterator[Selected]:
        """Place the batch on strategies with a few pipelines of another scheme."""
        strategy, gpus = selected.placement.strategy, self.problem.workload.gpus
        layouts = layouts_of(scheme for scheme, _ in strategy.counts)
        schemes = [s for s in self._models if (s.tp, s.pp) in layouts]
        for (outgoing, _), incoming in product(strategy.counts, schemes):
            swapped = swap(strategy, outgoing, incoming, 1, gpus)
            if swapped is None or incoming == outgoing:
                continue
            fleet = Fleet.from_strategy(swapped, self._models)
            bound_ms = cheap_bound_ms(fleet.classes, batch)
            filling = dispatch(Filler(fleet, batch), bound_ms)
            if filling is not None:
                sync = self.problem.sync
                sync_ms = None if sync is None else round(sync.of_strategy_ms(swapped), 3)
                row = Considered(swapped, bound_ms, filling.objective_ms, sync_ms)
                considered = (*selected.considered, row)
                yield Selected(Placement(fleet, filling), bound_ms, considered)

    def prove(self, plan: Plan) -> Plan:
        """Return the plan with the closest bound that can be proven of its strategy."""
        fleet = make_fleet_of(plan, self.problem.models)
        return with_bound(plan, certify(fleet, Batch.from_plan(plan), plan.predicted_ms))

    def _bound(self, strategy: Strategy, batch: Batch, time_ms: float) -> tuple[float, float]:
        """Bound plans of the strategy, and of its layouts, with micro-batches of any size (ms)."""
        models = self.problem.models
        fleet = Fleet.from_strategy(strategy, models)
        if self.options.prove:
            bound_ms = certify(fleet, batch, time_ms)
        else:
            bound_ms = min(cheap_bound_ms(fleet.classes, batch), time_ms)
        classes = _list_classes(models, strategy)
        return bound_ms, gpu_time_bound_ms(classes, batch, self.problem.workload.gpus)


def limit_to_shapes(models: Models, shapes: Sequence[int]) -> dict[Scheme, SchemeModel]:
    """Return the schemes that fit shapes (tokens a rank); each holds no more than one."""
    return {
        scheme: limited
        for scheme, model in models.items()
        if (limited := _limit_to_shapes(model, shapes)) is not None
    }


def _limit_to_shapes(model: SchemeModel, shapes: Sequence[int]) -> SchemeModel | None:
    scheme = model.scheme
    if scheme.pp > 1 or any(size % _unit_of_shapes(scheme) for size in shapes):
        return None
    sizes = [size * scheme.sp for size in shapes]

    def find_largest(max_len: int) -> int:
        return max((size for size in sizes if size <= max_len), default=0)

    modes: list[ModeModel] = []
    for mode in model.modes:
        if held := find_largest(mode.max_len):
            modes.append(replace(mode, max_len=held))
    held = find_largest(model.max_len)
    return replace(model, max_len=held, modes=tuple(modes)) if held else None


def _unit_of_shapes(scheme: Scheme) -> int:
    """Return the tokens of a rank whose multiples a scheme can run: tp and the ring divide them."""
    return lcm(scheme.tp, scheme.unit // gcd(scheme.unit, scheme.sp))


def choose_plan_shapes(plans: Sequence[Plan], number: int) -> tuple[int, ...]:
    """Choose sizes (tokens a rank) with the least padding of these plans.

    ``plans``: of steps drawn from the data, such as a hundred; pipelines with stages do not count,
    as plans with shapes have none. ``number``: of sizes, at most. All are multiples that the
    schemes of these pipelines can run. ``ValueError`` if there are no micro-batches, if all have
    stages, or if ``number`` is below 1.
    """
    number = read_whole_number("number of shapes", number)
    for plan in plans:
        check_plan(plan)
    of_plans = [pipeline for plan in plans for pipeline in plan.pipelines]
    pipelines = [pipeline for pipeline in of_plans if pipeline.scheme.pp == 1]
    if of_plans and not pipelines:
        raise ValueError(
            "plans: all pipelines have stages, and none has with shapes. Give plans of a layout "
            "without stages, such as layout='tp4'"
        )
    unit = lcm(*(_unit_of_shapes(pipeline.scheme) for pipeline in pipelines))
    by_mode: dict[tuple[Scheme, str | None], list[int]] = {}
    for pipeline in pipelines:
        for batch in pipeline.micro_batches:
            size = -(-batch.padded_tokens // (pipeline.scheme.sp * unit)) * unit
            by_mode.setdefault((pipeline.scheme, batch.recompute), []).append(size)
    sizes = [size for of_mode in by_mode.values() for size in of_mode]
    if not sizes:
        raise ValueError("plans: have no micro-batches. Give plans of some steps")
    # Schemes hold about as much a rank, and one that just misses the largest size would not get it.
    by_scheme: dict[Scheme, int] = {}
    for (scheme, _), of_mode in by_mode.items():
        by_scheme[scheme] = max(by_scheme.get(scheme, 0), *of_mode)
    fullest = by_scheme.values()
    most = min(size for size in fullest if size >= ABOUT_AS_FULL * max(fullest))
    # So would a mode that just misses a size.
    limits = sorted(max(of_mode) for of_mode in by_mode.values())

    def lower(size: int) -> int:
        near = (limit for limit in limits if ABOUT_AS_FULL * size <= limit < size)
        return most if size >= most else next(near, size)

    return choose_shapes([lower(size) for size in sizes], number)


def count_padded_tokens(plan: Plan) -> int:
    """Count the tokens of all micro-batches with their padding."""
    return sum(b.padded_tokens for pipeline in plan.pipelines for b in pipeline.micro_batches)


def _rate(plan: Plan) -> float:
    """Rate a plan by time and padding; the least is the best."""
    return (plan.predicted_ms + (plan.sync_ms or 0.0)) * count_padded_tokens(plan)


def _list_classes(models: Models, strategy: Strategy) -> list[PipelineClass]:
    layouts = layouts_of(scheme for scheme, _ in strategy.counts)
    return [
        PipelineClass.from_model(model, 1)
        for scheme, model in models.items()
        if (scheme.tp, scheme.pp) in layouts
    ]
