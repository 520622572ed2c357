"""Micro-steps in which all ranks work, in groups of the degrees that a trainer can form.

For trainers that change the context parallelism of each micro-batch: no rank is idle in a
micro-step, a group is aligned to its size, and micro-steps come in multiples where the trainer
requires that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from seqplan.costs.latency import Latency
from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.bounds.micro_step_bounds import (
    Sequences,
    fewest_micro_steps,
    in_stages_ms,
    micro_steps_bound_ms,
    one_by_one_bound_ms,
)
from seqplan.planner.lockstep.filling.busy_ranks import BusyRanks, Group
from seqplan.planner.lockstep.filling.few_groups import FEW, FewGroups
from seqplan.planner.lockstep.filling.filled_micro_steps import FilledMicroSteps
from seqplan.planner.lockstep.filling.filler import MicroStepsFiller
from seqplan.planner.lockstep.filling.search import SearchSettings, TargetFiller, search
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.simulation.one_f_one_b import order_micro_batches

MOST_NUMBERS = 1_000
"""Numbers of micro-steps that are tried at most; one sequence a micro-step would do."""

EXTRA_MICRO_STEPS = 2
"""Numbers tried without a gain with stages: the best may be far from the fewest, as more
micro-steps shorten the drain."""

EXTRA_ONE_BY_ONE = 2
"""The same for groups that run sequences one by one: the fewest is always one micro-step."""

SETTINGS = SearchSettings(extra=0, improved=2, fills=40, deepened=1, deep_fills=200)
"""Measured on 21 batches of 12 to 400 sequences: ``deepened`` 0 slows one by 0.2 %, ``extra`` 1 and
``fills`` 20 change nothing, ``fills`` 100 gains 0.03 % in the mean and takes 8 % more CPU. Of 192
schedules of 192 to 768 sequences, ``improved`` 1 leaves 0.14 % in the mean and 4.9 % at most."""

LAID_OUT = 5
"""Of the best found, how many are laid out."""

CLEARLY = 1e-3
"""If a group runs sequences one by one, more micro-steps must be faster by this share: each ends in
a barrier that no cost model has."""


@dataclass(frozen=True)
class RankGroup:
    """Ranks ``first`` to ``first + degree − 1`` with one micro-batch: positions in the lengths."""

    first: int
    degree: int
    positions: tuple[int, ...]


@dataclass(frozen=True)
class GroupedMicroSteps:
    """Micro-steps of groups; times in ms, ``lower_bound_ms`` over all micro-steps of such groups.

    ``micro_steps_ms``: of each group at one of the ``stages`` that the micro-steps go through.
    """

    micro_steps: tuple[tuple[RankGroup, ...], ...]
    micro_steps_ms: tuple[tuple[float, ...], ...]
    ranks: int
    lower_bound_ms: float
    stages: int = 1

    @property
    def predicted_ms(self) -> float:
        """Return Σ over micro-steps of the slowest group, and (stages − 1) times the longest."""
        return in_stages_ms([max(times) for times in self.micro_steps_ms], self.stages)

    @property
    def gap(self) -> float:
        """Return predicted / bound − 1: no other micro-steps are faster by more."""
        return self.predicted_ms / self.lower_bound_ms - 1 if self.lower_bound_ms else 0.0

    @cached_property
    def imbalance(self) -> float:
        """Return by what share the slowest rank computes longer than the mean."""
        busy = [0.0] * self.ranks
        for groups, times in zip(self.micro_steps, self.micro_steps_ms, strict=True):
            for group, time in zip(groups, times, strict=True):
                for rank in range(group.first, group.first + group.degree):
                    busy[rank] += time
        return max(busy) / (sum(busy) / self.ranks) - 1

    def by_rank(self) -> list[list[list[int]]]:
        """List positions by micro-step and rank; all ranks of a group have the same."""
        return [
            [list(group.positions) for group in groups for _ in range(group.degree)]
            for groups in self.micro_steps
        ]


def plan_groups(
    lengths: Sequence[int],
    ranks: int,
    capacity: int,
    costs: Mapping[int, Latency],
    *,
    one_each: bool = False,
    multiple: int = 1,
    stages: int = 1,
    known: Sequence[Sequence[tuple[int, Sequence[int]]]] | None = None,
) -> GroupedMicroSteps:
    """Find good micro-steps of groups for sequences of these lengths (tokens).

    ``costs``: by degree, of a micro-batch on a group of so many ranks; degrees are those that may
    be formed, each dividing the next larger or all ``ranks``. ``capacity``: tokens of a micro-batch
    a rank. ``one_each``: groups run their sequences one by one instead of packed, so that capacity
    limits each alone. ``multiple``: of which the number of micro-steps is. ``stages``: of the
    pipeline that the micro-steps go through, in an order that rises to the longest and falls; costs
    and ranks are those of one. ``known``: micro-steps that another rule made, each of groups
    (degree, positions): the result is no slower.

    ``ValueError`` for groups that run sequences one by one with stages, for a length below 1 or
    beyond all ranks, and if sequences are fewer than the micro-steps that the trainer requires.
    """
    if one_each and stages > 1:
        raise ValueError(
            "groups that run their sequences one by one do not go through stages"
            ". Give stages a whole micro-batch"
        )
    batch = Batch.from_lengths(lengths)
    if batch.longest > capacity * ranks:
        raise ValueError(
            f"a sequence has {batch.longest} tokens; {ranks} ranks hold {capacity * ranks}"
        )
    classes = [
        PipelineClass(1, cost.a, cost.b, cost.c, capacity * degree, 1, 1, degree)
        for degree, cost in sorted(costs.items(), reverse=True)
    ]
    busy = BusyRanks(classes, lengths, ranks, one_each=one_each)
    tried, bound = _search_numbers(
        classes, batch, ranks, multiple, one_each=one_each, stages=stages
    )
    plans = busy.in_multiples([filled.groups(batch) for filled in tried], multiple)
    working = [
        [_with_work_for_all(busy, groups) for groups in micro_steps] for micro_steps in plans
    ]
    few = FewGroups(classes, lengths, ranks, stages, one_each=one_each)
    if not one_each:
        if len(lengths) <= FEW:
            # The shortest of each number of micro-steps.
            longest_first = sorted(working, key=few.total_ms, reverse=True)
            of_numbers = {len(micro_steps): micro_steps for micro_steps in longest_first}
            working = [few.improve(micro_steps) for micro_steps in of_numbers.values()]
        working = [few.relieve(min(working, key=few.total_ms))]
    working += _price_known(known, classes)
    shortest = min(working, key=few.total_ms)
    best = [_on_ranks(busy, classes, groups) for groups in shortest]
    order = order_micro_batches([max(times) for _, times in best], stages)
    ordered = [best[place] for place in order]
    grouped = GroupedMicroSteps(
        tuple(groups for groups, _ in ordered),
        tuple(times for _, times in ordered),
        ranks,
        bound,
        stages,
    )
    # A bound holds for any micro-steps; ours may differ from it by rounding only.
    return replace(grouped, lower_bound_ms=min(bound, grouped.predicted_ms))


def _price_known(
    micro_steps: Sequence[Sequence[tuple[int, Sequence[int]]]] | None,
    classes: Sequence[PipelineClass],
) -> list[list[list[Group]]]:
    """Return micro-steps that are known, if each of their degrees has a cost."""
    places = {degree.gpus: k for k, degree in enumerate(classes)}
    if micro_steps is None or not {degree for of in micro_steps for degree, _ in of} <= set(places):
        return []
    return [[[(places[degree], tuple(part)) for degree, part in of] for of in micro_steps]]


def _search_numbers(
    classes: Sequence[PipelineClass],
    batch: Batch,
    ranks: int,
    multiple: int,
    *,
    one_each: bool,
    stages: int,
) -> tuple[list[FilledMicroSteps], float]:
    """Search numbers of micro-steps from the fewest on, while that gains; with a bound (ms)."""
    sequences = Sequences(batch.distinct, batch.multiplicity)
    filler = TargetFiller(
        MicroStepsFiller(classes, sequences, ranks, one_each=one_each, stages=stages),
        full=not one_each,
    )
    settings = replace(SETTINGS, extra=EXTRA_MICRO_STEPS if stages > 1 else SETTINGS.extra)
    if one_each:  # capacity limits no micro-step
        fewest, least_ms = 1, one_by_one_bound_ms(classes, batch, ranks)
        settings = replace(settings, extra=EXTRA_ONE_BY_ONE, gain=1 - CLEARLY)
    else:
        fewest = fewest_micro_steps(classes, batch, ranks)
    first = ceil(fewest / multiple) * multiple

    def bound_ms(number: int) -> float:
        """Bound plans of at least so many micro-steps."""
        if one_each:
            return least_ms
        return micro_steps_bound_ms(classes, batch, ranks, number, stages)

    candidates, _ = search(
        [filler],
        range(first, first + MOST_NUMBERS * multiple, multiple),
        bound_ms,
        settings,
        further=[] if one_each else filler.list_least_waste(multiple),
    )
    return candidates[:LAID_OUT], bound_ms(first)


def _with_work_for_all(busy: BusyRanks, groups: Sequence[Group]) -> list[Group]:
    """Give every rank work; ``ValueError`` if degrees do not divide each other and it cannot be."""
    working = busy.with_work_for_all(groups)
    if working is None:
        idle = busy.idle(busy.occupy_idle_ranks(busy.rebalance_groups(groups)))
        raise ValueError(
            f"{idle} of {busy.ranks} ranks cannot be given work"
            ". Lower the number of ranks or add sequences"
        )
    return working


def _on_ranks(
    busy: BusyRanks, classes: Sequence[PipelineClass], groups: Sequence[Group]
) -> tuple[tuple[RankGroup, ...], tuple[float, ...]]:
    """Give groups consecutive ranks, the largest first; and their times."""
    full = sorted(groups, key=lambda group: -classes[group[0]].gpus)
    first, placed = 0, []
    for k, positions in full:
        placed.append(RankGroup(first, classes[k].gpus, positions))
        first += classes[k].gpus
    return tuple(placed), tuple(busy.time_ms(*group) for group in full)
