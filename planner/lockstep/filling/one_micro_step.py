"""One micro-step of few given sequences: the groups, and the sequences of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from seqplan.planner.lockstep.filling.busy_ranks import BusyRanks, Group
from seqplan.planner.placement.fleet import PipelineClass

MOST_SETS, MOST_TRIED = 40, 240
"""Sets of groups at most that are all tried, and sets times sequences at most."""

RELIEVED = 24
"""Moves at most from the slowest group of a micro-step to others."""


class OpenGroup:
    """A group of class ``k`` while it is filled: positions, work (ms) and padded tokens."""

    __slots__ = ("k", "positions", "tokens", "work_ms")

    def __init__(self, k: int) -> None:
        self.k, self.work_ms, self.tokens = k, 0.0, 0
        self.positions: list[int] = []


class OneMicroStep:
    """Lays out micro-steps of few sequences; ``classes`` and ``lengths`` as ``BusyRanks``."""

    def __init__(
        self,
        classes: Sequence[PipelineClass],
        lengths: Sequence[int],
        ranks: int,
        *,
        one_each: bool = False,
    ) -> None:
        self.busy = BusyRanks(classes, lengths, ranks, one_each=one_each)
        self.ranks, self.lengths = ranks, lengths
        array = np.asarray(lengths, dtype=np.int64)
        self.work_ms: list[list[float]] = [k.work_ms(array).tolist() for k in classes]
        self.padded: list[list[int]] = [k.padded(array).tolist() for k in classes]
        self.overhead_ms = [k.c for k in classes]
        self.capacity = [k.capacity for k in classes]
        self.sizes = [k.gpus for k in classes]
        self._formed = [k for k, degree in enumerate(classes) if degree.gpus <= ranks]
        self._sets: dict[int, list[tuple[int, ...]]] = {}
        self._known: dict[tuple[int, ...], tuple[float, list[Group]] | None] = {}
        self.laid_out = 0

    def longest_first(self, positions: Iterable[int]) -> list[int]:
        """Sort positions by length, longest first."""
        return sorted(positions, key=lambda i: (-self.lengths[i], i))

    def add(self, group: OpenGroup, position: int) -> None:
        """Give a group one more sequence."""
        group.positions.append(position)
        group.work_ms += self.work_ms[group.k][position]
        group.tokens += self.padded[group.k][position]

    def time_ms(self, group: OpenGroup) -> float:
        """Time a group (ms)."""
        return group.work_ms + self.overhead_ms[group.k]

    def has_room(self, group: OpenGroup, position: int) -> bool:
        """Whether a group has the memory for one more sequence."""
        return group.tokens + self.padded[group.k][position] <= self.capacity[group.k]

    def smallest(self, position: int) -> int:
        """Return the smallest class that the ranks can form with memory for a sequence."""
        return max(k for k in self._formed if self.padded[k][position] <= self.capacity[k])

    def lay_out(self, groups: Sequence[Group]) -> list[Group] | None:
        """Find a short layout of a micro-step's sequences that gives all ranks work.

        Of the groups as they are, if they fit the ranks, and of every set of groups if these are
        few.
        """
        positions = tuple(sorted(i for _, members in groups for i in members))
        if positions not in self._known:
            self.laid_out += 1
            tried = [self._with_work_for_all(groups)] if self.busy.idle(groups) >= 0 else []
            tried += [self._with_work_for_all(option) for option in self._candidates(positions)]
            timed = [
                (self.busy.micro_step_ms(option), number, option)
                for number, option in enumerate(tried)
                if option
            ]
            best = min(timed, key=lambda entry: entry[:2], default=None)
            self._known[positions] = None if best is None else (best[0], best[2])
        elif not self.busy.idle(groups):
            known = self._known[positions]
            if known is None or self.busy.micro_step_ms(groups) < known[0] * (1 - 1e-9):
                working = self.relieve_slowest(groups)
                self._known[positions] = self.busy.micro_step_ms(working), working
        known = self._known[positions]
        return None if known is None else known[1]

    def _with_work_for_all(self, groups: Sequence[Group]) -> list[Group] | None:
        """Widen groups until no rank is idle, then take work off the slowest; None if one is."""
        working = self.busy.with_work_for_all(groups)
        return None if working is None else self.relieve_slowest(working)

    def _candidates(self, positions: Sequence[int]) -> Iterator[list[Group]]:
        """Give a micro-step's sequences to each set of groups, if sets are few."""
        ordered = self.longest_first(positions)
        sets = self._sets_of(min(len(ordered), self.ranks))
        if len(sets) <= min(MOST_SETS, MOST_TRIED // len(ordered)):
            for classes in sets:
                yield from self._on_groups(ordered, classes)

    def _sets_of(self, most: int) -> list[tuple[int, ...]]:
        """List the sets of up to ``most`` groups that take all ranks, as classes."""
        if most not in self._sets:
            found: list[tuple[int, ...]] = []
            self._extend((), self.ranks, most, found)
            self._sets[most] = found
        return self._sets[most]

    def _extend(
        self, classes: tuple[int, ...], free: int, most: int, found: list[tuple[int, ...]]
    ) -> None:
        """Add groups no larger than the last to a set, until no rank is free."""
        if not free:
            found.append(classes)
        if not free or len(classes) == most or len(found) > MOST_SETS:
            return
        for k in self._formed:
            if k >= (classes[-1] if classes else 0) and self.sizes[k] <= free:
                self._extend((*classes, k), free - self.sizes[k], most, found)

    def _on_groups(self, ordered: Sequence[int], classes: Sequence[int]) -> Iterator[list[Group]]:
        """Give each sequence, longest first, to the group that ends first with it.

        And, in a second way, to the one that ends first without it. Every group gets one.
        """
        for with_it in (True, False):
            groups = [OpenGroup(k) for k in classes]
            for place, position in enumerate(ordered):
                empty = [group for group in groups if not group.positions]
                open_to = empty if len(ordered) - place <= len(empty) else groups
                with_room = [group for group in open_to if self.has_room(group, position)]
                if not with_room:
                    break
                times = [
                    self.time_ms(g) + (self.work_ms[g.k][position] if with_it else 0.0)
                    for g in with_room
                ]
                self.add(with_room[times.index(min(times))], position)
            else:
                yield [(group.k, tuple(group.positions)) for group in groups]

    def relieve_slowest(self, layout: Sequence[Group]) -> list[Group]:
        """Take work off the slowest group while the micro-step becomes shorter.

        One of its sequences moves to another group, alone or against a shorter one.
        """
        groups = []
        for k, positions in layout:
            groups.append(OpenGroup(k))
            for position in positions:
                self.add(groups[-1], position)
        for _ in range(RELIEVED):
            slowest = max(groups, key=self.time_ms)
            best_ms = self.time_ms(slowest)
            best: tuple[OpenGroup, int, int | None] | None = None
            work, tokens = self.work_ms[slowest.k], self.padded[slowest.k]
            for group in groups:
                if group is slowest:
                    continue
                other_work, other_tokens = self.work_ms[group.k], self.padded[group.k]
                time, room = self.time_ms(group), self.capacity[group.k] - group.tokens
                for i in slowest.positions:
                    here, there = self.time_ms(slowest) - work[i], time + other_work[i]
                    if (
                        len(slowest.positions) > 1
                        and other_tokens[i] <= room
                        and max(here, there) < best_ms
                    ):
                        best_ms, best = max(here, there), (group, i, None)
                    for j in group.positions:
                        both = max(here + work[j], there - other_work[j])
                        if (
                            both < best_ms
                            and other_tokens[i] - other_tokens[j] <= room
                            and slowest.tokens - tokens[i] + tokens[j] <= self.capacity[slowest.k]
                        ):
                            best_ms, best = both, (group, i, j)
            if best is None:
                break
            group, i, against = best
            self._move(slowest, group, i)
            if against is not None:
                self._move(group, slowest, against)
        return [(group.k, tuple(group.positions)) for group in groups]

    def _move(self, source: OpenGroup, to: OpenGroup, position: int) -> None:
        source.positions.remove(position)
        source.work_ms -= self.work_ms[source.k][position]
        source.tokens -= self.padded[source.k][position]
        self.add(to, position)
