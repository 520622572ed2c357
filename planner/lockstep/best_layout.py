"""Micro-steps of the layout that is fastest for a step, with its sync."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.errors import Infeasible
from seqplan.planner.lockstep.bounds.micro_step_bounds import (
    fewest_micro_steps,
    micro_steps_bound_ms,
    stage_class,
)
from seqplan.planner.lockstep.micro_steps import MicroSteps
from seqplan.planner.lockstep.plan_micro_steps import plan_micro_steps
from seqplan.planner.lockstep.split_modes import split_modes
from seqplan.planner.sync.times import Layout, SyncTimes
from seqplan.plans.scheme import Scheme


@dataclass(frozen=True)
class LayoutMicroSteps:
    """A step's micro-steps, and the exposed sync of their layout (ms)."""

    layout: Layout
    micro_steps: MicroSteps
    sync_ms: float

    @property
    def total_ms(self) -> float:
        """Return micro-steps and sync together."""
        return self.micro_steps.objective_ms + self.sync_ms


def of_layouts(models: Mapping[Scheme, SchemeModel]) -> dict[Layout, list[SchemeModel]]:
    """Group schemes by layout: micro-steps are of one, as a rank keeps its part of the model."""
    layouts: dict[Layout, list[SchemeModel]] = {}
    for scheme, model in sorted(models.items()):
        layouts.setdefault((scheme.tp, scheme.pp), []).append(model)
    return layouts


def layout_bound_ms(
    batch: Batch, models: Collection[SchemeModel], gpus: int, sync: SyncTimes | None
) -> float | None:
    """Bound micro-steps of one layout and their sync (ms); None if the longest fits no group."""
    if batch.longest > max(model.max_sequence for model in models):
        return None
    scheme = next(iter(models)).scheme
    classes = [of_mode for model in models for of_mode in stage_class(model).by_mode]
    ranks = gpus // scheme.pp
    fewest = fewest_micro_steps(classes, batch, ranks)
    bound = micro_steps_bound_ms(classes, batch, ranks, fewest, scheme.pp)
    return bound + compute_exposed_ms(sync, (scheme.tp, scheme.pp), fewest)


def compute_exposed_ms(sync: SyncTimes | None, layout: Layout, micro_steps: int) -> float:
    """Return the exposed part of a layout's sync; ranks change groups between micro-steps."""
    return 0.0 if sync is None else sync.compute_exposed_ms([layout], regrouping=micro_steps > 1)


def best_micro_steps(
    batch: Batch,
    layouts: Iterable[Collection[SchemeModel]],
    gpus: int,
    sync: SyncTimes | None,
    multiple: int = 1,
) -> LayoutMicroSteps | None:
    """Plan the micro-steps of each layout that may be the best, least bound first.

    None if no layout holds the longest sequence; ``Infeasible`` if sequences are too few for the
    multiple.
    """
    best = list_best_micro_steps(batch, layouts, gpus, sync, multiple)
    return best[-1].start if best else None


@dataclass(frozen=True)
class Finalist:
    """Micro-steps of a layout as they were found, and those to improve: the same or split ones."""

    found: MicroSteps
    start: LayoutMicroSteps


def list_best_micro_steps(
    batch: Batch,
    layouts: Iterable[Collection[SchemeModel]],
    gpus: int,
    sync: SyncTimes | None,
    multiple: int = 1,
) -> list[Finalist]:
    """List the best micro-steps as found, and if they are faster, the best split ones.

    As ``best_micro_steps``; empty if no layout holds the longest sequence.
    """
    bounds = [
        (bound, number, models)
        for number, models in enumerate(layouts)
        if (bound := layout_bound_ms(batch, models, gpus, sync)) is not None
    ]
    as_found: Finalist | None = None
    best: Finalist | None = None
    for bound, _, models in sorted(bounds, key=lambda entry: entry[:2]):
        if best is not None and bound >= best.start.total_ms:
            break
        try:
            found = plan_micro_steps(batch, list(models), gpus, multiple)
        except ValueError as error:
            raise Infeasible(f"step {batch.step}: {error}") from None
        if found is None:
            continue
        scheme = next(iter(models)).scheme
        layout = scheme.tp, scheme.pp
        sync_ms = compute_exposed_ms(sync, layout, len(found.micro_steps))
        planned = Finalist(found, LayoutMicroSteps(layout, found, sync_ms))
        split = split_finalist(planned, batch, sync, multiple)
        if as_found is None or planned.start.total_ms < as_found.start.total_ms:
            as_found = planned
        if best is None or split.start.total_ms < best.start.total_ms:
            best = split
    if as_found is None or best is None:
        return []
    return [as_found] if best.start.micro_steps is best.found else [as_found, best]


def split_finalist(
    planned: Finalist, batch: Batch, sync: SyncTimes | None, multiple: int
) -> Finalist:
    """Split micro-steps (``split_modes``) if the step with its sync then ends earlier."""
    start = planned.start
    micro_steps = split_modes(start.micro_steps, batch, multiple)
    sync_ms = compute_exposed_ms(sync, start.layout, len(micro_steps.micro_steps))
    split = LayoutMicroSteps(start.layout, micro_steps, sync_ms)
    return replace(planned, start=split) if split.total_ms < start.total_ms else planned
