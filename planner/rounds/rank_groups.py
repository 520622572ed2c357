"""Rounds in which all ranks work, in groups of the degrees that a host can form.

For hosts that change the context parallelism of each micro-batch: no rank is idle in a round, a
group is aligned to its size, and rounds come in multiples where the host wants that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush, heapreplace
from math import ceil

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.rounds.filler import FilledRounds, RoundsFiller, Sequences
from seqplan.planner.rounds.plan_rounds import fewest_rounds, rounds_bound_ms
from seqplan.planner.rounds.search import common_target, full_rounds, improved
from seqplan.profiler.latency import Latency

MOST_NUMBERS = 1_000
"""Numbers of rounds that are tried at most; one sequence a round would do."""

EXTRA_ROUNDS = 2
"""Rounds tried beyond the fewest, in multiples of what the host wants."""

FILLS = 40
"""Rounds filled to improve one plan, about: groups of several degrees leave more to gain."""

CLEARLY = 1e-3
"""Where a group runs sequences one by one, more rounds must be faster by this share: each ends in
a barrier that no cost model has."""


_Group = tuple[int, tuple[int, ...]]
"""Index of the class, and the positions of its sequences."""


@dataclass(frozen=True)
class RankGroup:
    """Ranks ``first`` to ``first + degree − 1`` with one micro-batch: positions in the lengths."""

    first: int
    degree: int
    positions: tuple[int, ...]


@dataclass(frozen=True)
class GroupedRounds:
    """Rounds of groups; times in ms, ``lower_bound_ms`` over all rounds of such groups."""

    rounds: tuple[tuple[RankGroup, ...], ...]
    rounds_ms: tuple[tuple[float, ...], ...]
    ranks: int
    lower_bound_ms: float

    @property
    def predicted_ms(self) -> float:
        """Return Σ over rounds of the slowest group."""
        return sum(max(times) for times in self.rounds_ms)

    @property
    def gap(self) -> float:
        """Return predicted / bound − 1: no other rounds are faster by more."""
        return self.predicted_ms / self.lower_bound_ms - 1 if self.lower_bound_ms else 0.0

    @cached_property
    def imbalance(self) -> float:
        """Return by what share the slowest rank computes longer than the mean."""
        busy = [0.0] * self.ranks
        for groups, times in zip(self.rounds, self.rounds_ms, strict=True):
            for group, time in zip(groups, times, strict=True):
                for rank in range(group.first, group.first + group.degree):
                    busy[rank] += time
        return max(busy) / (sum(busy) / self.ranks) - 1

    def by_rank(self) -> list[list[list[int]]]:
        """List positions by round and rank; all ranks of a group have the same."""
        return [
            [list(group.positions) for group in groups for _ in range(group.degree)]
            for groups in self.rounds
        ]


def plan_groups(
    lengths: Sequence[int],
    ranks: int,
    capacity: int,
    costs: Mapping[int, Latency],
    *,
    one_each: bool = False,
    multiple: int = 1,
) -> GroupedRounds:
    """Find good rounds of groups for sequences of these lengths (tokens).

    ``costs``: by degree, of a micro-batch on a group of so many ranks; degrees are those that may
    be formed, each dividing the next larger or all ``ranks``. ``capacity``: tokens of a micro-batch
    a rank. ``one_each``: groups run their sequences one by one instead of packed, so that capacity
    limits each alone. ``multiple``: of which the number of rounds is.

    ``ValueError`` for a length below 1 or beyond all ranks, and where sequences are fewer than
    the rounds that the host wants.
    """
    batch = Batch.of_lengths(lengths)
    if batch.longest > capacity * ranks:
        raise ValueError(
            f"a sequence has {batch.longest} tokens; {ranks} ranks hold {capacity * ranks}"
        )
    classes = [
        PipelineClass(1, cost.a, cost.b, cost.c, capacity * degree, 1, 1, degree)
        for degree, cost in sorted(costs.items(), reverse=True)
    ]
    layout = _Layout(classes, lengths, ranks, one_each=one_each)
    tried, bound = _filled_rounds(classes, batch, ranks, multiple, one_each=one_each)
    laid_out = [_laid_out(layout, filled, batch, multiple) for filled in tried]
    best = min(laid_out, key=lambda rounds: sum(max(times) for _, times in rounds))
    done = GroupedRounds(
        tuple(groups for groups, _ in best), tuple(times for _, times in best), ranks, bound
    )
    # A bound holds for any rounds; ours may differ from it by rounding only.
    return replace(done, lower_bound_ms=min(bound, done.predicted_ms))


def _laid_out(
    layout: _Layout, filled: FilledRounds, batch: Batch, multiple: int
) -> list[tuple[tuple[RankGroup, ...], tuple[float, ...]]]:
    """Give all ranks work in every round, and groups their ranks; with each group's time (ms)."""
    pools = [iter(positions) for positions in batch.positions]
    rounds = [
        [(k, tuple(next(pools[i]) for i, n in micro for _ in range(n))) for k, micro in r.groups]
        for r in filled.rounds()
    ]
    return [layout.on_ranks(groups) for groups in layout.in_multiples(rounds, multiple)]


def _filled_rounds(
    classes: Sequence[PipelineClass], batch: Batch, ranks: int, multiple: int, *, one_each: bool
) -> tuple[list[FilledRounds], float]:
    """Search numbers of rounds from the fewest on, while that gains; and bound all rounds (ms)."""
    sequences = Sequences(batch.distinct, batch.multiplicity)
    filler = RoundsFiller(classes, sequences, ranks, one_each=one_each)
    if one_each:
        # Capacity limits no round: bounded by all work, and by the longest sequence.
        fewest, least = 1, max(filler.area_ms, filler.longest_ms)
    else:
        fewest = fewest_rounds(classes, batch, ranks)
        least = rounds_bound_ms(classes, batch, ranks, fewest)
    gain = 1 - CLEARLY if one_each else 1.0
    best: list[FilledRounds] = []
    number = ceil(fewest / multiple) * multiple
    for _ in range(MOST_NUMBERS):
        bound = least if one_each else rounds_bound_ms(classes, batch, ranks, number)
        if best and (bound >= best[-1].total_ms * gain or len(best) > EXTRA_ROUNDS):
            break
        starts = [common_target(filler, number, bound)]
        if not one_each:
            starts.append(full_rounds(filler, number))
        there = [start for start in starts if start is not None]
        if there:
            start = min(there, key=lambda filled: filled.total_ms)
            filled = improved(filler, start, bound, FILLS)
            if best and filled.total_ms >= best[-1].total_ms * gain:
                break
            best.append(filled)
        number += multiple
    return best, least


class _Layout:
    """Gives idle ranks work: groups are split or take more ranks, the slowest first."""

    def __init__(
        self,
        classes: Sequence[PipelineClass],
        lengths: Sequence[int],
        ranks: int,
        *,
        one_each: bool,
    ) -> None:
        self._classes, self._lengths, self._ranks = classes, lengths, ranks
        self._one_each = one_each

    def time_ms(self, k: int, positions: Sequence[int]) -> float:
        """Time a group of class ``k`` with its sequences (ms)."""
        degree = self._classes[k]
        work = sum(self._lengths[i] * (degree.a * self._lengths[i] + degree.b) for i in positions)
        return work + degree.c * (len(positions) if self._one_each else 1)

    def on_ranks(self, groups: Sequence[_Group]) -> tuple[tuple[RankGroup, ...], tuple[float, ...]]:
        """Give groups consecutive ranks, the largest first, after none is idle; and their times."""
        working = self._without_idle_ranks(self._evened(groups))
        full = sorted(working, key=lambda g: -self._classes[g[0]].gpus)
        first, placed = 0, []
        for k, positions in full:
            placed.append(RankGroup(first, self._classes[k].gpus, positions))
            first += self._classes[k].gpus
        return tuple(placed), tuple(self.time_ms(*group) for group in full)

    def _evened(self, groups: Sequence[_Group]) -> list[_Group]:
        """Deal the sequences of each class's groups anew where its slowest then takes less.

        Longest first, each to the group with least work that has room.
        """
        evened: list[_Group] = []
        for k in dict.fromkeys(k for k, _ in groups):
            own = [group for group in groups if group[0] == k]
            dealt = self._dealt(k, [i for _, positions in own for i in positions], len(own))
            slowest = max(self.time_ms(*group) for group in own)
            if dealt and max(self.time_ms(*group) for group in dealt) < slowest:
                own = dealt
            evened += own
        return evened

    def _dealt(self, k: int, positions: Sequence[int], number: int) -> list[_Group] | None:
        """Deal sequences to ``number`` groups of a class; None where one finds no room."""
        degree, lengths = self._classes[k], self._lengths
        loads = [(0.0, place) for place in range(number)]
        room = [len(positions) * degree.capacity if self._one_each else degree.capacity] * number
        dealt: list[list[int]] = [[] for _ in loads]
        overhead = degree.c if self._one_each else 0.0
        for i in sorted(positions, key=lambda i: (-lengths[i], i)):
            full = []
            while loads and room[loads[0][1]] < lengths[i]:
                full.append(heappop(loads))
            if not loads:
                return None
            load, place = loads[0]
            work = lengths[i] * (degree.a * lengths[i] + degree.b)
            heapreplace(loads, (load + work + overhead, place))
            room[place] -= lengths[i]
            dealt[place].append(i)
            for skipped in full:
                heappush(loads, skipped)
        return [(k, tuple(own)) for own in dealt if own]

    def _without_idle_ranks(self, groups: Sequence[_Group]) -> list[_Group]:
        """Split or widen groups, each time where the round then lasts least, until all work.

        ``ValueError`` where that cannot be, with degrees that do not divide each other.
        """
        left = list(groups)
        times = [self.time_ms(*group) for group in left]
        while idle := self._ranks - sum(self._classes[k].gpus for k, _ in left):
            order = sorted(range(len(left)), key=lambda g: -times[g])
            best: tuple[float, float, int, list[_Group]] | None = None
            for place in order:
                others = times[order[1] if place == order[0] else order[0]] if left[1:] else 0.0
                for option in self._larger(left[place], idle):
                    time = max(self.time_ms(*group) for group in option)
                    if best is None or (max(time, others), time) < best[:2]:
                        best = (max(time, others), time, place, option)
            if best is None:
                left, times = [(0, self._together(left, idle))], [0.0]
                continue
            _, _, place, option = best
            left[place : place + 1] = option
            times[place : place + 1] = [self.time_ms(*group) for group in option]
        return left

    def _together(self, groups: Sequence[_Group], idle: int) -> tuple[int, ...]:
        """Return all sequences, for one group of all ranks; ``ValueError`` beyond its memory."""
        together = tuple(i for _, positions in groups for i in positions)
        tokens = sum(self._lengths[i] for i in together)
        if tokens > self._classes[0].capacity or self._classes[0].gpus != self._ranks:
            raise ValueError(f"{idle} of {self._ranks} ranks cannot be given work")
        return together

    def _larger(self, group: _Group, idle: int) -> list[list[_Group]]:
        """List what a group can become with up to ``idle`` more ranks."""
        k, positions = group
        options: list[list[_Group]] = []
        degree = self._classes[k].gpus
        if k and self._classes[k - 1].gpus - degree <= idle:
            options.append([(k - 1, positions)])
        if degree <= idle and len(positions) > 1:
            options.append([(k, half) for half in self._halves(positions)])
        return options

    def _halves(self, positions: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Split sequences into two parts of about equal work, longest first."""
        halves: tuple[list[int], list[int]] = ([], [])
        loads = [0.0, 0.0]
        for i in sorted(positions, key=lambda i: (-self._lengths[i], i)):
            lesser = int(loads[1] < loads[0])
            halves[lesser].append(i)
            loads[lesser] += self.time_ms(0, [i])
        return tuple(halves[0]), tuple(halves[1])

    def in_multiples(self, rounds: list[list[_Group]], multiple: int) -> list[list[_Group]]:
        """Split rounds, the longest first, until their number is a multiple.

        ``ValueError`` where there are fewer sequences than rounds.
        """
        left = list(rounds)
        wanted = ceil(len(left) / multiple) * multiple
        while len(left) < wanted:
            order = sorted(range(len(left)), key=lambda r: (-self._round_ms(left[r]), r))
            place = next((r for r in order if sum(len(p) for _, p in left[r]) > 1), None)
            if place is None:
                raise ValueError(f"{len(left)} sequences cannot fill {wanted} micro-batches")
            left[place : place + 1] = self._two_rounds(left[place])
        return left

    def _round_ms(self, groups: Sequence[_Group]) -> float:
        return max(self.time_ms(*group) for group in groups)

    def _two_rounds(self, groups: Sequence[_Group]) -> list[list[_Group]]:
        if len(groups) == 1:
            ((k, positions),) = groups
            return [[(k, half)] for half in self._halves(positions)]
        ordered = sorted(groups, key=lambda group: -self.time_ms(*group))
        half = len(ordered) // 2
        return [ordered[:half], ordered[half:]]
