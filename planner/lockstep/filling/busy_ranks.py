"""Micro-steps in which no rank is idle: groups are split or widened, and sequences move.

A rank without a micro-batch would have to make one up, as all run in lockstep.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.placement.least_loaded import assign_to_least_loaded

Group = tuple[int, tuple[int, ...]]
"""Index of the class, and the positions of its sequences."""


class BusyRanks:
    """Gives idle ranks work, the slowest groups first.

    ``classes``: what groups may be, largest first; ``lengths``: tokens by position. ``one_each``:
    a group runs its sequences one by one, each a micro-batch, so that memory limits each alone.
    """

    def __init__(
        self,
        classes: Sequence[PipelineClass],
        lengths: Sequence[int],
        ranks: int,
        *,
        one_each: bool = False,
    ) -> None:
        self._classes, self._lengths, self.ranks = classes, lengths, ranks
        self._one_each = one_each

    def time_ms(self, k: int, positions: Sequence[int]) -> float:
        """Time a group of class ``k`` with its sequences (ms)."""
        degree = self._classes[k]
        work = sum(self._lengths[i] * (degree.a * self._lengths[i] + degree.b) for i in positions)
        return work + degree.c * (len(positions) if self._one_each else 1)

    def micro_step_ms(self, groups: Sequence[Group]) -> float:
        """Time a micro-step: its slowest group (ms)."""
        return max(self.time_ms(*group) for group in groups)

    def idle(self, groups: Sequence[Group]) -> int:
        """Count the ranks that are in no group of a micro-step."""
        return self.ranks - sum(self._classes[k].gpus for k, _ in groups)

    def with_work_for_all(self, groups: Sequence[Group]) -> list[Group] | None:
        """Even groups and widen them until no rank is idle; None if that cannot be."""
        working = self.occupy_idle_ranks(self.rebalance_groups(groups))
        return self.together(working) if self.idle(working) else working

    def rebalance_groups(self, groups: Sequence[Group]) -> list[Group]:
        """Deal the sequences of each class's groups anew where its slowest then takes less.

        Longest first, each to the group with least work that has room.
        """
        evened: list[Group] = []
        for k in dict.fromkeys(k for k, _ in groups):
            part = [group for group in groups if group[0] == k]
            assigned = self._assign_to_groups(
                k, [i for _, positions in part for i in positions], len(part)
            )
            if assigned and self.micro_step_ms(assigned) < self.micro_step_ms(part):
                part = assigned
            evened += part
        return evened

    def _assign_to_groups(
        self, k: int, positions: Sequence[int], number: int
    ) -> list[Group] | None:
        """Assign sequences to ``number`` groups of a class; None if one finds no room."""
        degree, lengths = self._classes[k], self._lengths
        overhead = degree.c if self._one_each else 0.0
        items = [
            (
                i,
                [lengths[i] * (degree.a * lengths[i] + degree.b) + overhead],
                degree.pad(lengths[i]),
            )
            for i in sorted(positions, key=lambda i: (-lengths[i], i))
        ]
        room = sum(padded for *_, padded in items) if self._one_each else degree.capacity
        assigned = assign_to_least_loaded(items, [number], [room])
        if assigned is None:
            return None
        return [(k, tuple(part)) for _, part in assigned[0] if part]

    def occupy_idle_ranks(self, groups: Sequence[Group]) -> list[Group]:
        """Split or widen groups while ranks are idle, each time for the shortest micro-step.

        Some stay idle if no group has two sequences to split, nor a larger class to become.
        """
        left = list(groups)
        times = [self.time_ms(*group) for group in left]
        while idle := self.idle(left):
            order = sorted(range(len(left)), key=lambda g: -times[g])
            best: tuple[float, float, int, list[Group]] | None = None
            for place in order:
                others = times[order[1] if place == order[0] else order[0]] if left[1:] else 0.0
                for option in self._larger(left[place], idle):
                    time = self.micro_step_ms(option)
                    if best is None or (max(time, others), time) < best[:2]:
                        best = (max(time, others), time, place, option)
            if best is None:
                return left
            _, _, place, option = best
            left[place : place + 1] = option
            times[place : place + 1] = [self.time_ms(*group) for group in option]
        return left

    def _larger(self, group: Group, idle: int) -> list[list[Group]]:
        """List the classes that a group can become with up to ``idle`` more ranks."""
        k, positions = group
        options: list[list[Group]] = []
        degree = self._classes[k].gpus
        if k and self._classes[k - 1].gpus - degree <= idle and self._can_hold(k - 1, positions):
            options.append([(k - 1, positions)])
        if degree <= idle and len(positions) > 1:
            options.append([(k, half) for half in self._halves(positions)])
        return options

    def _can_hold(self, k: int, positions: Sequence[int]) -> bool:
        """Whether a group of class ``k`` has the memory for these sequences."""
        degree = self._classes[k]
        padded = [degree.pad(self._lengths[i]) for i in positions]
        return (max(padded) if self._one_each else sum(padded)) <= degree.capacity

    def together(self, groups: Sequence[Group]) -> list[Group] | None:
        """Return one group of all ranks with all sequences; None if that cannot be."""
        positions = tuple(i for _, part in groups for i in part)
        if self._classes[0].gpus != self.ranks or not self._can_hold(0, positions):
            return None
        return [(0, positions)]

    def borrow_sequences(self, micro_steps: Sequence[Sequence[Group]]) -> list[list[Group]]:
        """Move sequences from micro-steps that can spare some to ranks idle in theirs.

        Each time the shortest sequence of a group with several, of the slowest micro-step that has
        one. Ranks stay idle if there are fewer sequences than groups.
        """
        left = [list(groups) for groups in micro_steps]
        for here in range(len(left)):
            while idle := self.idle(left[here]):
                gift = self._borrow_sequence(left, here, idle)
                if gift is None:
                    break
                left[here] = self.occupy_idle_ranks([*left[here], gift])
        return left

    def _borrow_sequence(
        self, micro_steps: list[list[Group]], here: int, idle: int
    ) -> Group | None:
        """Take a sequence of another micro-step as a group of up to ``idle`` ranks."""
        others = sorted(
            (r for r in range(len(micro_steps)) if r != here),
            key=lambda r: (-self.micro_step_ms(micro_steps[r]), r),
        )
        for r in others:
            places = sorted(
                range(len(micro_steps[r])), key=lambda g: -self.time_ms(*micro_steps[r][g])
            )
            for place in places:
                k, positions = micro_steps[r][place]
                shortest = min(positions, key=lambda i: (self._lengths[i], i))
                fitting = [
                    j
                    for j, degree in enumerate(self._classes)
                    if degree.gpus <= idle and self._can_hold(j, [shortest])
                ]
                if len(positions) > 1 and fitting:
                    micro_steps[r][place] = (k, tuple(i for i in positions if i != shortest))
                    return fitting[-1], (shortest,)
        return None

    def _halves(self, positions: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Split sequences into two parts of about equal work, longest first."""
        halves: tuple[list[int], list[int]] = ([], [])
        loads = [0.0, 0.0]
        for i in sorted(positions, key=lambda i: (-self._lengths[i], i)):
            lesser = int(loads[1] < loads[0])
            halves[lesser].append(i)
            loads[lesser] += self.time_ms(0, [i])
        return tuple(halves[0]), tuple(halves[1])

    def _in_multiples(
        self, micro_steps: Sequence[Sequence[Group]], multiple: int
    ) -> list[list[list[Group]]]:
        """Add micro-steps until their number is a multiple, in each of some ways.

        Micro-steps are split, the longest first; or the shortest sequences leave groups with
        several for separate micro-steps, one for each smallest group or a single one. No way if
        there are fewer sequences than micro-steps.
        """
        wanted = ceil(len(micro_steps) / multiple) * multiple
        if wanted == len(micro_steps):
            return [[list(groups) for groups in micro_steps]]
        if sum(len(positions) for groups in micro_steps for _, positions in groups) < wanted:
            return []
        ways = [self._split_longest(micro_steps, wanted)]
        for side_by_side in sorted({1, self.ranks // self._classes[-1].gpus}):
            way = self._shortest_apart(micro_steps, wanted, side_by_side)
            if way is not None:
                ways.append(way)
        return ways

    def in_multiples(
        self, plans: Sequence[Sequence[Sequence[Group]]], multiple: int
    ) -> list[list[list[Group]]]:
        """Add micro-steps to each of these plans.

        ``ValueError`` if none of them has as many sequences as micro-steps.
        """
        ways = [way for micro_steps in plans for way in self._in_multiples(micro_steps, multiple)]
        if not ways:
            number = len(self._lengths)
            wanted = min(ceil(len(micro_steps) / multiple) * multiple for micro_steps in plans)
            raise ValueError(
                f"{number} sequence{'s' if number > 1 else ''} cannot fill {wanted} micro-batches, "
                f"in multiples of {multiple}; give larger steps or a smaller multiple"
            )
        return ways

    def _split_longest(
        self, micro_steps: Sequence[Sequence[Group]], wanted: int
    ) -> list[list[Group]]:
        """Split the longest micro-steps until there are as many as wanted."""
        left = [list(groups) for groups in micro_steps]
        while len(left) < wanted:
            order = sorted(range(len(left)), key=lambda r: (-self.micro_step_ms(left[r]), r))
            place = next(r for r in order if sum(len(p) for _, p in left[r]) > 1)
            left[place : place + 1] = self._two_micro_steps(left[place])
        return left

    def _shortest_apart(
        self, micro_steps: Sequence[Sequence[Group]], wanted: int, side_by_side: int
    ) -> list[list[Group]] | None:
        """Run the shortest sequences apart until there are as many micro-steps as wanted.

        So many ``side_by_side`` in a micro-step, each on the smallest group that holds it. None if
        groups with several sequences have too few to give.
        """
        left = [
            {place: list(part) for place, (_, part) in enumerate(groups)} for groups in micro_steps
        ]
        in_order = sorted(
            (self._lengths[i], i, r, place)
            for r, groups in enumerate(left)
            for place, part in groups.items()
            for i in part
        )
        apart: list[int] = []
        needed = (wanted - len(micro_steps)) * side_by_side
        for _, i, r, place in in_order:
            if len(apart) == needed:
                break
            if len(left[r][place]) > 1:
                left[r][place].remove(i)
                apart.append(i)
        if len(apart) < needed:
            return None
        more: list[list[Group]] = []
        for first in range(0, needed, side_by_side):
            of_micro_step = apart[first : first + side_by_side]
            k = max(k for k in range(len(self._classes)) if self._can_hold(k, [of_micro_step[-1]]))
            if self._classes[k].gpus * len(of_micro_step) > self.ranks:
                return None
            more.append([(k, (i,)) for i in of_micro_step])
        kept = [
            [(k, tuple(groups[place])) for place, (k, _) in enumerate(before)]
            for groups, before in zip(left, micro_steps, strict=True)
        ]
        return [*kept, *more]

    def _two_micro_steps(self, groups: Sequence[Group]) -> list[list[Group]]:
        if len(groups) == 1:
            ((k, positions),) = groups
            return [[(k, half)] for half in self._halves(positions)]
        ordered = sorted(groups, key=lambda group: -self.time_ms(*group))
        half = len(ordered) // 2
        return [ordered[:half], ordered[half:]]
