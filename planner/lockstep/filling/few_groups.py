"""Moves of few sequences between micro-steps of busy groups, while their sum falls.

If sequences are few, a micro-step filled to the brim leaves too little for the next one, whose
groups then have to be wide. Sequences move from micro-step to micro-step, alone or against another,
and both micro-steps are laid out anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from seqplan.planner.lockstep.bounds.micro_step_bounds import in_stages_ms
from seqplan.planner.lockstep.filling.busy_ranks import Group
from seqplan.planner.lockstep.filling.one_micro_step import OneMicroStep
from seqplan.planner.placement.fleet import PipelineClass

FEW = 96
"""Sequences at most: more fill every micro-step anyway, and moves would take too long."""

MOVES = 160
"""Micro-steps laid out anew at most to improve one plan (measured: 0.1–0.3 ms each). Of 32
schedules of 96 sequences on 6 ranks 100 leave 0.02 % in the mean."""

MOST_DIVIDED = 7
"""Sequences of two micro-steps at most that are divided anew in every way."""

MOST_MOVABLE = 8
"""Sequences of a micro-step at most that all are moved; else those at its ends."""

MicroSteps = list[list[Group]]


class FewGroups:
    """Improves micro-steps of few sequences; ``stages``: that the micro-steps go through."""

    def __init__(
        self,
        classes: Sequence[PipelineClass],
        lengths: Sequence[int],
        ranks: int,
        stages: int = 1,
        *,
        one_each: bool = False,
    ) -> None:
        self._one = OneMicroStep(classes, lengths, ranks, one_each=one_each)
        self._lengths, self._stages = lengths, stages

    def total_ms(self, micro_steps: Sequence[Sequence[Group]]) -> float:
        """Time micro-steps one after another through the stages (ms)."""
        return in_stages_ms(
            [self._one.busy.micro_step_ms(groups) for groups in micro_steps], self._stages
        )

    def improve(self, micro_steps: MicroSteps) -> MicroSteps:
        """Move sequences from micro-step to micro-step while the sum falls."""
        best = self._lay_out(micro_steps) or micro_steps
        best_ms = self.total_ms(best)
        last = self._one.laid_out + MOVES
        improved = True
        while improved and self._one.laid_out < last:
            improved = False
            for parts in self._neighbors(best):
                if self._one.laid_out >= last:
                    break
                tried = self._lay_out(parts)
                if tried is not None and self.total_ms(tried) < best_ms * (1 - 1e-9):
                    best, best_ms, improved = tried, self.total_ms(tried), True
                    break
        return best

    def relieve(self, micro_steps: MicroSteps) -> MicroSteps:
        """Take work off the slowest group of each micro-step."""
        return [self._one.relieve_slowest(groups) for groups in micro_steps]

    def _lay_out(self, parts: Sequence[Sequence[Group]]) -> MicroSteps | None:
        """Lay out each micro-step; None if ranks of one stay idle."""
        micro_steps = []
        for groups in parts:
            working = self._one.lay_out(groups) if groups else None
            if working is None:
                return None
            micro_steps.append(working)
        return micro_steps

    def _neighbors(self, micro_steps: MicroSteps) -> Iterator[MicroSteps]:
        """List micro-steps after one move of a sequence, or of two against each other.

        From the slowest micro-steps first, to others in the order of their time.
        """
        busy = self._one.busy
        order = sorted(
            range(len(micro_steps)), key=lambda r: (-busy.micro_step_ms(micro_steps[r]), r)
        )
        for r in order:
            if sum(len(part) for _, part in micro_steps[r]) < 2:
                continue
            for to in order:
                for position in self._movable(micro_steps[r]) if to != r else ():
                    yield self._after(micro_steps, [(position, r, to)])
        for first, second in [*pairwise(order), *pairwise(reversed(order))]:
            for position in self._movable(micro_steps[first]):
                for other in self._movable(micro_steps[second]):
                    if self._lengths[position] > self._lengths[other]:
                        moves = [(position, first, second), (other, second, first)]
                        yield self._after(micro_steps, moves)

        for first, second in combinations(order, 2):
            yield from self._divide(micro_steps, first, second)

    def _divide(self, micro_steps: MicroSteps, first: int, second: int) -> Iterator[MicroSteps]:
        """Divide the sequences of two micro-steps in each other way, if they are very few."""
        positions = sorted(i for r in (first, second) for _, part in micro_steps[r] for i in part)
        if len(positions) > MOST_DIVIDED:
            return
        for number in range(1, len(positions)):
            for others in combinations(positions[1:], number):
                after = [list(groups) for groups in micro_steps]
                rest = [i for i in positions if i not in others]
                after[first] = [(self._one.smallest(i), (i,)) for i in rest]
                after[second] = [(self._one.smallest(i), (i,)) for i in others]
                yield after

    def _movable(self, groups: Sequence[Group]) -> list[int]:
        """List sequences to move, shortest first: the ends of the slowest group, others' shortest.

        All of them if they are few.
        """
        one = self._one
        every = one.longest_first(i for _, part in groups for i in part)[::-1]
        if len(every) <= MOST_MOVABLE:
            return every
        _, slowest = max(groups, key=lambda group: one.busy.time_ms(*group))
        ordered = one.longest_first(slowest)[::-1]
        shared = {i for _, part in groups if len(part) > 1 for i in part}
        shortest = [i for i in every if i in shared][:2]
        return list(dict.fromkeys([*ordered[:2], *ordered[-1:], *shortest]))

    def _after(self, micro_steps: MicroSteps, moves: Sequence[tuple[int, int, int]]) -> MicroSteps:
        """Return the micro-steps after moves (position, from, to), each to its smallest class."""
        after = [list(groups) for groups in micro_steps]
        for position, source, to in moves:
            after[source] = [
                (k, tuple(i for i in part if i != position))
                for k, part in after[source]
                if part != (position,)
            ]
            after[to] = [*after[to], (self._one.smallest(position), (position,))]
        return after
