"""Rounds of the layout that is fastest for a step, with its sync."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.plan_rounds import MicroSteps, plan_rounds
from seqplan.planner.lockstep.round_bounds import fewest_rounds, rounds_bound_ms, stage_class
from seqplan.planner.sync.times import Layout, SyncTimes
from seqplan.plans.scheme import Scheme


@dataclass(frozen=True)
class LayoutRounds:
    """A step's rounds, and the exposed sync of their layout (ms)."""

    layout: Layout
    rounds: MicroSteps
    sync_ms: float

    @property
    def total_ms(self) -> float:
        """Return rounds and sync together."""
        return self.rounds.objective_ms + self.sync_ms


def of_layouts(models: Mapping[Scheme, SchemeModel]) -> dict[Layout, list[SchemeModel]]:
    """Group schemes by layout: rounds are of one, as a rank keeps its part of the model."""
    layouts: dict[Layout, list[SchemeModel]] = {}
    for scheme, model in sorted(models.items()):
        layouts.setdefault((scheme.tp, scheme.pp), []).append(model)
    return layouts


def layout_bound_ms(
    batch: Batch, models: Collection[SchemeModel], gpus: int, sync: SyncTimes | None
) -> float | None:
    """Bound rounds of one layout and their sync (ms); None if the longest fits no group."""
    if batch.longest > max(model.max_sequence for model in models):
        return None
    scheme = next(iter(models)).scheme
    classes = [of_mode for model in models for of_mode in stage_class(model).by_mode]
    ranks = gpus // scheme.pp
    fewest = fewest_rounds(classes, batch, ranks)
    bound = rounds_bound_ms(classes, batch, ranks, fewest, scheme.pp)
    return bound + compute_exposed_ms(sync, (scheme.tp, scheme.pp), fewest)


def compute_exposed_ms(sync: SyncTimes | None, layout: Layout, rounds: int) -> float:
    """Return the exposed part of a layout's sync; ranks change groups between rounds."""
    return 0.0 if sync is None else sync.compute_exposed_ms([layout], regrouping=rounds > 1)


def best_rounds(
    batch: Batch,
    layouts: Iterable[Collection[SchemeModel]],
    gpus: int,
    sync: SyncTimes | None,
    multiple: int = 1,
) -> LayoutRounds | None:
    """Plan the rounds of each layout, least bound first, while one may be the best; and return it.

    None if no layout holds the longest sequence; ``ValueError`` as ``plan_rounds``.
    """
    bounds = [
        (bound, number, models)
        for number, models in enumerate(layouts)
        if (bound := layout_bound_ms(batch, models, gpus, sync)) is not None
    ]
    best: LayoutRounds | None = None
    for bound, _, models in sorted(bounds, key=lambda entry: entry[:2]):
        if best is not None and bound >= best.total_ms:
            break
        rounds = plan_rounds(batch, list(models), gpus, multiple)
        if rounds is None:
            continue
        scheme = next(iter(models)).scheme
        layout = scheme.tp, scheme.pp
        planned = LayoutRounds(layout, rounds, compute_exposed_ms(sync, layout, len(rounds.rounds)))
        if best is None or planned.total_ms < best.total_ms:
            best = planned
    return best
