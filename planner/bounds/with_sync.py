"""A bound over all strategies that counts what parameters and gradients take to be exchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.all_strategies import AllStrategies, all_strategies_bound_ms
from seqplan.planner.bounds.gpu_time import area_only_bound_ms
from seqplan.planner.placement.fleet import Models, drop_dominated
from seqplan.planner.sync.times import Exchange, Family, layouts_of


@dataclass(frozen=True)
class FamilyRelaxation:
    """The relaxation over all strategies of some layouts, and the least their exchange takes."""

    relaxation: AllStrategies
    exchange_ms: float

    def quick_bound_ms(self, batch: Batch) -> float:
        """Bound step and exchange without a linear program; see ``area_only_bound_ms``."""
        relaxation = self.relaxation
        return area_only_bound_ms(relaxation.classes, batch, relaxation.gpus) + self.exchange_ms


class Families:
    """The relaxations over all strategies, one for each time that their exchange takes.

    Schemes that others of their family replace at no loss are left out of it. ``whole``: the
    relaxation over all strategies, whatever they exchange; ``by_layout``: one for each
    layout alone, ascending.
    """

    def __init__(self, models: Models, gpus: int, exchange: Exchange) -> None:
        self.models = models
        self.whole = AllStrategies(drop_dominated(models), gpus)
        layouts = layouts_of(models)
        relaxations = {layouts: self.whole}

        def of(family: Family) -> FamilyRelaxation:
            if family.layouts not in relaxations:
                members = {s: m for s, m in models.items() if (s.tp, s.pp) in family.layouts}
                relaxations[family.layouts] = AllStrategies(drop_dominated(members), gpus)
            return FamilyRelaxation(relaxations[family.layouts], family.exchange_ms)

        self.members = [of(family) for family in exchange.families(layouts)]
        self.by_layout = [
            of(Family(frozenset({layout}), exchange.compute_exposed_ms([layout])))
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


def exchange_bound_ms(
    families: Families,
    batch: Batch,
    reached_ms: float,
    proven: Callable[[AllStrategies, float], float] | None = None,
) -> float:
    """Prove a lower bound on step and exchange together, over all strategies (ms).

    ``reached_ms`` is a time with exchange that one reaches. Every strategy is in a family that
    takes no longer to exchange than the strategy: the least over the families of their own bound
    and exchange holds for all. ``proven``: bounds a relaxation's strategies without exchange,
    sought below a time; by default ``all_strategies_bound_ms``.
    """
    least = reached_ms
    for family in sorted(families.members, key=lambda member: member.quick_bound_ms(batch)):
        low_ms = family.quick_bound_ms(batch)
        if low_ms >= least:
            break  # and so are those that follow
        sought_ms = least - family.exchange_ms
        if proven is None:
            solved = all_strategies_bound_ms(family.relaxation, batch, sought_ms)
        else:
            solved = proven(family.relaxation, sought_ms)
        least = min(least, max(low_ms, solved + family.exchange_ms))
    return least
