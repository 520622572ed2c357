"""Bounds of a plan, proven anew from the profile: a digest made anew does not make a bound true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.expert_sharing import expert_bound_ms, permits_scheme, relax_sharing
from seqplan.planner.bounds.gpu_time import cheap_bound_ms, gpu_time_bound_ms
from seqplan.planner.bounds.loads import bound_fleet_ms, bound_gpus_ms
from seqplan.planner.bounds.witness import describe_class, find_witness, write_witness
from seqplan.planner.exact.close_gap import EXACT_GAP, closer_bound_ms
from seqplan.planner.exact.model import LEAST_GAIN
from seqplan.planner.exact.regrouping import close_regrouping_gap
from seqplan.planner.lockstep.plan_micro_steps import plan_micro_steps
from seqplan.planner.lockstep.proof import CLOSE, QUICK, prove_micro_steps
from seqplan.planner.placement.fleet import Fleet, Models, PipelineClass
from seqplan.planner.placement.slowdown import make_fleet_of
from seqplan.planner.step.shapes_planner import limit_to_shapes
from seqplan.planner.strategies.regrouping import make_regroup_layouts
from seqplan.planner.sync.times import NO_SYNC, layouts_of
from seqplan.plans.plan import Plan
from seqplan.plans.scheme import Scheme, Strategy

ROUNDING_MS = 1e-3
"""Bounds are written in whole microseconds, rounded down; times that they are cut to are not."""


def find_unproven(
    plan: Plan, models: Models, multiple: int = 1, *, exact: bool = False
) -> Iterator[str]:
    """Yield a line for each bound of the plan that the models do not prove.

    ``multiple``: of which the number of micro-steps is, in lockstep. ``exact``: solve steps of few
    sequences again for bounds that prices do not prove, which takes seconds for each.
    """
    batch = Batch.from_plan(plan)
    in_lockstep = any(pipeline.micro_step is not None for pipeline in plan.pipelines)
    proven = _Proven(batch, models, plan, multiple, exact=exact)
    if in_lockstep:
        layout_ms = proven.of_micro_steps(plan.strategy, plan.predicted_ms, plan.lower_bound_ms)
    else:
        layout_ms = proven.of_layouts(plan.strategy)
    stated_ms = plan.layout_lower_bound_ms
    if stated_ms is not None and stated_ms > layout_ms + ROUNDING_MS:
        yield _line("layout_lower_bound_ms", stated_ms, layout_ms)
    if plan.regroups and exact and plan.lower_bound_ms > layout_ms + ROUNDING_MS:
        layout_ms = proven.of_groups(plan, layout_ms)
    if plan.lower_bound_ms > layout_ms + ROUNDING_MS:
        whole = in_lockstep or plan.regroups
        if whole or not proven.holds(plan.strategy, plan.lower_bound_ms, plan.predicted_ms):
            yield _line("lower_bound_ms", plan.lower_bound_ms, layout_ms if whole else None)
    if plan.shapes:  # bounds of candidates hold for micro-batches of these sizes, above for all
        limited = limit_to_shapes(models, plan.shapes)
        proven = _Proven(batch, limited, plan, multiple, exact=exact)
    for place, entry in enumerate(plan.selection):
        # Candidates may end before a plan of their strategy that was found in another way.
        reached_ms = entry.predicted_ms or plan.predicted_ms
        if not in_lockstep and not proven.holds(entry.strategy, entry.lower_bound_ms, reached_ms):
            yield _line(f"selection {place} ({entry.strategy})", entry.lower_bound_ms, None)


def witness_of(plan: Plan, models: Models) -> dict[str, Any]:
    """Return what proves a plan's bound, as JSON values; see ``examples/check_bound``.

    Values and prices for the bound of a strategy, or for that of a layout what its schemes cost, as
    GPU-time alone proves it, each recomputation mode as a scheme. ``ValueError`` if neither does,
    as for an exact solver's bound.
    """
    batch = Batch.from_plan(plan)
    models = _relax_models(models, plan)
    of_layouts = _of_layouts(models, plan.strategy)
    claim_ms = plan.lower_bound_ms - ROUNDING_MS
    named = [
        (f"{scheme} {of_mode.mode or ''}".strip(), of_mode)
        for scheme, model in of_layouts.items()
        for of_mode in PipelineClass.from_model(model, 1).by_mode
    ]
    classes = [pipeline_class for _, pipeline_class in named]
    if claim_ms <= gpu_time_bound_ms(classes, batch, plan.gpus_left):
        return {
            "proof": "gpu_time",
            "bound_ms": claim_ms,
            "gpus": plan.gpus_left,
            "lengths": batch.distinct.tolist(),
            "counts": batch.multiplicity.tolist(),
            "classes": [{"gpus": k.gpus, **describe_class(name, k)} for name, k in named],
        }
    witness = None
    if not plan.regroups:
        witness = find_witness(make_fleet_of(plan, models), batch, claim_ms)
    if witness is None:
        raise ValueError(
            f"step {plan.step}: no prices prove its bound of {plan.lower_bound_ms} ms, as for one "
            "of an exact solver, or of experts over ranks. Give seqplan check plans --prove"
        )
    return write_witness(witness)


def _relax_models(models: Models, plan: Plan) -> Models:
    """Return costs that bound a pipeline from below, as blocks of experts share work."""
    if plan.expert_parallel == 1:
        return models
    return {
        scheme: relax_sharing(model, plan.expert_parallel)
        for scheme, model in models.items()
        if permits_scheme(plan.expert_parallel, scheme)
    }


def _of_layouts(models: Models, strategy: Strategy) -> dict[Scheme, SchemeModel]:
    """Return the models of a strategy's layouts."""
    layouts = layouts_of(scheme for scheme, _ in strategy.counts)
    return {s: model for s, model in models.items() if (s.tp, s.pp) in layouts}


def _line(field: str, stated_ms: float, proven_ms: float | None) -> str:
    found = "" if proven_ms is None else f"; the profile proves {proven_ms:.3f}"
    return f"{field}: {stated_ms} is not proven{found}"


def _list_targets(
    claim_ms: float, reached_ms: float, low_ms: float
) -> Iterator[tuple[float, float]]:
    """Yield times to beat, each with a lower bound, to prove a claim (all ms).

    A solver mostly finds at once that no placement ends before a time just after the claim, and
    then proves that time less ``LEAST_GAIN``. If it does not decide that, it begins with the time
    that was reached, as for the plan.
    """
    just_after_ms = claim_ms * (1 + 2 * LEAST_GAIN)
    yield just_after_ms, min(low_ms, just_after_ms / (1 + 2 * EXACT_GAP))
    yield reached_ms, low_ms


class _Proven:
    """Bounds that the models prove for one batch."""

    def __init__(
        self, batch: Batch, models: Models, plan: Plan, multiple: int, *, exact: bool
    ) -> None:
        self._batch, self._models, self._gpus = batch, models, plan.gpus_left
        self._plan = plan
        self._multiple, self._exact = multiple, exact
        self._held: dict[tuple[Strategy, float], bool] = {}

    def of_layouts(self, strategy: Strategy, *, whole: bool = False) -> float:
        """Bound all plans of a strategy's layouts (ms); ``whole``: those of whole blocks alone."""
        degree = self._plan.expert_parallel
        of_layouts = [
            model
            for scheme, model in _of_layouts(self._models, strategy).items()
            if not whole or scheme.stage_gpus % degree == 0
        ]
        bound_ms = expert_bound_ms(of_layouts, degree, self._batch, self._gpus)
        if not self._batch.loads:
            return bound_ms
        classes = [
            PipelineClass.from_model(model, 1) for model in of_layouts if model.scheme.pp == 1
        ]
        return max(bound_ms, bound_gpus_ms(classes, self._batch, self._gpus))

    def of_groups(self, plan: Plan, bound_ms: float) -> float:
        """Bound all plans of a plan's layout on aligned groups, by an exact solver (ms)."""
        for layout in make_regroup_layouts(self._models, NO_SYNC):
            if layout.layout in layouts_of(scheme for scheme, _ in plan.strategy.counts):
                for time_ms, low_ms in _list_targets(
                    plan.lower_bound_ms, plan.predicted_ms, bound_ms
                ):
                    if bound_ms + ROUNDING_MS < plan.lower_bound_ms:
                        _, proven_ms = close_regrouping_gap(
                            layout, self._batch, self._gpus, time_ms, low_ms
                        )
                        bound_ms = max(bound_ms, proven_ms)
        return bound_ms

    def of_micro_steps(self, strategy: Strategy, predicted_ms: float, stated_ms: float) -> float:
        """Bound all micro-steps of a strategy's layout (ms)."""
        if self._plan.expert_parallel > 1:
            return min(self.of_layouts(strategy), predicted_ms)
        of_layouts = list(_of_layouts(self._models, strategy).values())
        micro_steps = plan_micro_steps(self._batch, of_layouts, self._gpus, self._multiple)
        if micro_steps is None:
            return 0.0
        for settings in (QUICK, CLOSE):
            if micro_steps.lower_bound_ms + ROUNDING_MS < stated_ms:
                micro_steps = prove_micro_steps(micro_steps, self._batch, settings)
        return min(micro_steps.lower_bound_ms, predicted_ms)

    def holds(self, strategy: Strategy, stated_ms: float, reached_ms: float) -> bool:
        """Whether no placement of a strategy ends before a stated bound (ms)."""
        key = strategy, stated_ms
        if key not in self._held:
            self._held[key] = self._proves(strategy, stated_ms, reached_ms)
        return self._held[key]

    def _proves(self, strategy: Strategy, stated_ms: float, reached_ms: float) -> bool:
        if any(scheme not in self._models for scheme, _ in strategy.counts):
            return False
        models = _relax_models(self._models, self._plan)
        fleet = (
            make_fleet_of(self._plan, models)
            if strategy == self._plan.strategy
            else Fleet.from_strategy(strategy, models)
        )
        claim_ms = stated_ms - ROUNDING_MS
        if self._batch.loads and claim_ms <= bound_fleet_ms(fleet.classes, self._batch):
            return True
        degree = self._plan.expert_parallel
        whole = all(scheme.stage_gpus % degree == 0 for scheme, _ in strategy.counts)
        layout_ms = self.of_layouts(strategy, whole=whole)
        if claim_ms <= max(cheap_bound_ms(fleet.classes, self._batch), layout_ms):
            return True
        if find_witness(fleet, self._batch, claim_ms) is not None:
            return True
        if not self._exact:
            return False
        low_ms = cheap_bound_ms(fleet.classes, self._batch)
        return any(
            closer_bound_ms(fleet, self._batch, time_ms, lower_ms) >= claim_ms
            for time_ms, lower_ms in _list_targets(claim_ms, reached_ms, low_ms)
        )
