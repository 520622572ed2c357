"""A bound over all strategies that counts what parameters and gradients take to be synchronized."""

from __future__ import annotations

from dataclasses import dataclass

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.all_strategies import AllStrategies, all_strategies_bound_ms
from seqplan.planner.placement.dominance import drop_dominated
from seqplan.planner.placement.fleet import Models
from seqplan.planner.sync.times import SIMILAR, Family, SyncTimes, layouts_of


@dataclass(frozen=True)
class FamilyRelaxation:
    """The relaxation over all strategies of some layouts, and the least their sync takes."""

    relaxation: AllStrategies
    sync_ms: float

    def quick_bound_ms(self, batch: Batch) -> float:
        """Bound step and sync without a linear program; see ``area_only_bound_ms``."""
        return self.relaxation.area_bound_ms(batch) + self.sync_ms


class Families:
    """The relaxations over all strategies, one for each time that their sync takes.

    Schemes that others of their family replace at no loss are left out of it. ``whole``: the
    relaxation over all strategies, whatever they sync; ``by_layout``: one for each
    layout alone, ascending. ``similar``: share within which times make one family.
    """

    def __init__(
        self, models: Models, gpus: int, sync: SyncTimes, similar: float = SIMILAR
    ) -> None:
        self.models = models
        self.whole = AllStrategies(drop_dominated(models), gpus)
        layouts = layouts_of(models)
        relaxations = {layouts: self.whole}

        def of(family: Family) -> FamilyRelaxation:
            if family.layouts not in relaxations:
                members = {s: m for s, m in models.items() if (s.tp, s.pp) in family.layouts}
                relaxations[family.layouts] = AllStrategies(drop_dominated(members), gpus)
            return FamilyRelaxation(relaxations[family.layouts], family.sync_ms)

        self.members = [of(family) for family in sync.families(layouts, similar)]
        self.by_layout = [
            of(Family(frozenset({layout}), sync.compute_exposed_ms([layout])))
            for layout in sorted(layouts)
        ]

    @property
    def spaces(self) -> list[FamilyRelaxation]:
        """List each layout alone, then the families of several layouts."""
        single = {id(alone.relaxation) for alone in self.by_layout}
        return [
            *self.by_layout,
            *(member for member in self.members if id(member.relaxation) not in single),
        ]


def sync_bound_ms(families: Families, batch: Batch, reached_ms: float) -> float:
    """Prove a lower bound on step and sync together, over all strategies (ms).

    ``reached_ms`` is a time with sync that one reaches. Every strategy is in a family that
    takes no longer to synchronize than the strategy: the least over the families of their bound
    and sync holds for all.
    """
    least = reached_ms
    for family in sorted(families.members, key=lambda member: member.quick_bound_ms(batch)):
        low_ms = family.quick_bound_ms(batch)
        if low_ms >= least:
            break  # and so are those that follow
        solved = all_strategies_bound_ms(family.relaxation, batch, least - family.sync_ms)
        least = min(least, max(low_ms, solved + family.sync_ms))
    return least
