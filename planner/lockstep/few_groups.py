"""Rounds of few sequences, on groups that all have work: a start by degrees, then single moves.

If sequences are few, a round filled to the brim leaves too little for the next one, whose groups
then have to be wide. So degrees come first here: a sequence takes the fewest ranks on which it ends
by a target, rounds get their sequences longest first or shortest first until their ranks are in
use, and all others join the group whose round they lengthen least. Then sequences move from round
to round, alone or against another, while the sum falls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from seqplan.planner.lockstep.busy_ranks import Group
from seqplan.planner.lockstep.one_round import OneRound, OpenGroup
from seqplan.planner.lockstep.round_bounds import in_stages_ms
from seqplan.planner.placement.fleet import PipelineClass

FEW = 96
"""Sequences at most: more fill every round anyway, and the starts would take too long."""

MOVES, MOVES_OF_DIVIDED = 40, 160
"""Rounds laid out anew by moves, at most (measured: 0.1 to 0.3 ms each); of very few sequences."""

MOST_DIVIDED = 7
"""Sequences of two rounds at most that are divided anew in every way."""

MOST_MOVABLE = 8
"""Sequences of a round at most that all are moved; else those at its ends."""

Rounds = list[list[Group]]


class FewGroups:
    """Finds rounds for few sequences; ``stages``: that the rounds go through."""

    def __init__(
        self,
        classes: Sequence[PipelineClass],
        lengths: Sequence[int],
        ranks: int,
        stages: int = 1,
    ) -> None:
        self._round = OneRound(classes, lengths, ranks)
        self._lengths, self._stages = lengths, stages

    def total_ms(self, rounds: Sequence[Sequence[Group]]) -> float:
        """Time rounds one after another through the stages (ms)."""
        return in_stages_ms([self._round.busy.round_ms(groups) for groups in rounds], self._stages)

    def starts(self, number: int) -> list[Rounds]:
        """Lay out so many rounds in some ways, no rank of which is idle."""
        starts = []
        seen: set[tuple[int, ...]] = set()
        for target_ms in self._round.targets(self._round.order):
            degrees = [self._round.degree(i, target_ms) for i in self._round.order]
            if tuple(degrees) in seen:
                continue
            seen.add(tuple(degrees))
            for shortest_first in (False, True):
                parts = self._parts(number, degrees, shortest_first=shortest_first)
                rounds = None if parts is None else self._lay_out(parts)
                if rounds is not None:
                    starts.append(rounds)
        return starts

    def improve(self, rounds: Rounds) -> Rounds:
        """Move sequences from round to round while the sum falls."""
        best = self._lay_out(rounds) or rounds
        best_ms = self.total_ms(best)
        very_few = len(self._lengths) <= MOST_DIVIDED
        last = self._round.laid_out + (MOVES_OF_DIVIDED if very_few else MOVES)
        improved = True
        while improved and self._round.laid_out < last:
            improved = False
            for parts in self._neighbors(best):
                if self._round.laid_out >= last:
                    break
                tried = self._lay_out(parts)
                if tried is not None and self.total_ms(tried) < best_ms * (1 - 1e-9):
                    best, best_ms, improved = tried, self.total_ms(tried), True
                    break
        return best

    def relieve(self, rounds: Rounds) -> Rounds:
        """Take work off the slowest group of each round."""
        return [self._round.relieve_slowest(groups) for groups in rounds]

    def _parts(self, number: int, degrees: Sequence[int], *, shortest_first: bool) -> Rounds | None:
        """Put sequences into so many rounds; None if one of them finds no room.

        ``degrees``: classes of the positions in order, longest first.
        """
        one = self._round
        free = [one.ranks] * number
        rounds: list[list[OpenGroup]] = [[] for _ in range(number)]
        left = []
        pairs = list(zip(one.order, degrees, strict=True))
        for position, k in reversed(pairs) if shortest_first else pairs:
            place = next((r for r in range(number) if free[r] >= one.sizes[k]), None)
            if place is None:
                left.append(position)
                continue
            rounds[place].append(OpenGroup(k))
            one.add(rounds[place][-1], position)
            free[place] -= one.sizes[k]
        if not all(rounds):
            return None
        slowest = [max(map(one.time_ms, groups)) for groups in rounds]
        for position in one.longest_first(left):
            best: tuple[float, float, int, int] | None = None
            for r, groups in enumerate(rounds):
                for g, group in enumerate(groups):
                    if one.has_room(group, position):
                        over = one.time_ms(group) + one.work_ms[group.k][position] - slowest[r]
                        option = (max(0.0, over), over, r, g)
                        best = option if best is None or option < best else best
            if best is None:
                return None
            _, _, r, g = best
            one.add(rounds[r][g], position)
            slowest[r] = max(slowest[r], one.time_ms(rounds[r][g]))
        return [[(group.k, tuple(group.positions)) for group in groups] for groups in rounds]

    def _lay_out(self, parts: Sequence[Sequence[Group]]) -> Rounds | None:
        """Lay out each round; None if ranks of one stay idle."""
        rounds = []
        for groups in parts:
            working = self._round.lay_out(groups) if groups else None
            if working is None:
                return None
            rounds.append(working)
        return rounds

    def _neighbors(self, rounds: Rounds) -> Iterator[Rounds]:
        """List rounds after one move: of a sequence to another round, or of two against each other.

        From the slowest rounds first, to others in the order of their time.
        """
        busy = self._round.busy
        order = sorted(range(len(rounds)), key=lambda r: (-busy.round_ms(rounds[r]), r))
        for r in order:
            if sum(len(part) for _, part in rounds[r]) < 2:
                continue
            for to in order:
                for position in self._movable(rounds[r]) if to != r else ():
                    yield self._after(rounds, [(position, r, to)])
        for first, second in [*pairwise(order), *pairwise(reversed(order))]:
            for position in self._movable(rounds[first]):
                for other in self._movable(rounds[second]):
                    if self._lengths[position] > self._lengths[other]:
                        moves = [(position, first, second), (other, second, first)]
                        yield self._after(rounds, moves)
        for first, second in combinations(order, 2):
            yield from self._divide(rounds, first, second)

    def _divide(self, rounds: Rounds, first: int, second: int) -> Iterator[Rounds]:
        """Divide the sequences of two rounds in each other way, if they are very few."""
        positions = sorted(i for r in (first, second) for _, part in rounds[r] for i in part)
        if len(positions) > MOST_DIVIDED:
            return
        for number in range(1, len(positions)):
            for others in combinations(positions[1:], number):
                after = [list(groups) for groups in rounds]
                rest = [i for i in positions if i not in others]
                after[first] = [(self._round.smallest(i), (i,)) for i in rest]
                after[second] = [(self._round.smallest(i), (i,)) for i in others]
                yield after

    def _movable(self, groups: Sequence[Group]) -> list[int]:
        """List sequences to move, shortest first: the ends of the slowest group, others' shortest.

        All of them if they are few.
        """
        one = self._round
        every = one.longest_first(i for _, part in groups for i in part)[::-1]
        if len(every) <= MOST_MOVABLE:
            return every
        _, slowest = max(groups, key=lambda group: one.busy.time_ms(*group))
        ordered = one.longest_first(slowest)[::-1]
        shared = {i for _, part in groups if len(part) > 1 for i in part}
        shortest = [i for i in every if i in shared][:2]
        return list(dict.fromkeys([*ordered[:2], *ordered[-1:], *shortest]))

    def _after(self, rounds: Rounds, moves: Sequence[tuple[int, int, int]]) -> Rounds:
        """Return the rounds after moves (position, from, to), what moved on its smallest class."""
        after = [list(groups) for groups in rounds]
        for position, source, to in moves:
            after[source] = [
                (k, tuple(i for i in part if i != position))
                for k, part in after[source]
                if part != (position,)
            ]
            after[to] = [*after[to], (self._round.smallest(position), (position,))]
        return after
