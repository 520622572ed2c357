"""Balance: moves and swaps of sequences off the slowest pipeline, after the target fill.

The fill leaves little between pipelines where short sequences abound; where they are few, a swap
of two sequences can shorten the step. Only one-stage pipelines take part: their time is
the work of their sequences and c for every micro-batch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fill import Filling
from seqplan.planner.placement.fleet import Bin, Fleet, Floats, Ints, PipelineClass, form_s

MOST_SEQUENCES = 800
"""Larger batches are left as they are: every change looks at all sequences, and gains little."""

MOST_CHANGES = 200

_GAIN = 1e-6
"""Least relative gain of a change."""


def balance(fleet: Fleet, batch: Batch, filling: Filling, lower_ms: float) -> Filling:
    """The same strategy with a slowest pipeline that is no slower; ends at ``lower_ms``."""
    if len(batch.lengths) > MOST_SEQUENCES:
        return filling
    state = _State.of(fleet, batch, filling)
    for _ in range(MOST_CHANGES):
        if state.slowest_ms <= lower_ms or not state.move_or_swap():
            break
    if state.slowest_ms >= filling.objective_ms:
        return filling
    return state.filling(fleet)


@dataclass
class _State:
    """Pipelines as lists of sequences; sequence j has index ``index[j]`` among distinct lengths.

    ``time``: form S per pipeline. Pipelines of several stages keep what they have.
    """

    distinct: list[int]
    items: list[PipelineClass]
    members: list[list[int]]
    bins: list[tuple[Bin, ...]]
    index: Ints
    length: Ints
    owner: Ints
    time: Floats
    work: Floats  # (pipelines, sequences): a·l² + b·l
    padded: Floats  # (pipelines, sequences): padded lengths (tokens)

    @classmethod
    def of(cls, fleet: Fleet, batch: Batch, filling: Filling) -> _State:
        items: list[PipelineClass] = []
        members: list[list[int]] = []
        bins: list[tuple[Bin, ...]] = []
        index: list[int] = []
        owner: list[int] = []
        for item, pipelines in zip(fleet.classes, filling.bins, strict=True):
            for pipeline in pipelines:
                mine = [i for micro in pipeline for i, n in micro for _ in range(n)]
                members.append(list(range(len(index), len(index) + len(mine))))
                owner += [len(items)] * len(mine)
                index += mine
                items.append(item)
                bins.append(pipeline)
        at = np.array(index, dtype=np.int64)
        length = batch.distinct[at]
        kinds = {item: (item.work_ms(length), item.padded(length)) for item in fleet.classes}
        return cls(
            batch.distinct.tolist(),
            items,
            members,
            bins,
            at,
            length,
            np.array(owner, dtype=np.int64),
            np.array([time for times in filling.pipeline_ms for time in times]),
            np.stack([kinds[item][0] for item in items]),
            np.stack([kinds[item][1] for item in items]).astype(np.float64),
        )

    @property
    def slowest_ms(self) -> float:
        return float(self.time.max())

    def move_or_swap(self) -> bool:
        """Make the best move or swap off the slowest pipeline; False when none shortens it."""
        top = int(self.time.argmax())
        if self.items[top].pp > 1:
            return False
        loads = _Loads.of(self)
        options = [*self._best_move(top, loads), *self._best_swap(top, loads)]
        limit = self.time[top] * (1 - _GAIN)
        return any(
            self._apply(top, option.other, option.give, option.take)
            for option in sorted(options, key=lambda option: option.hoped_ms)
            if option.hoped_ms < limit
        )

    def _best_move(self, top: int, loads: _Loads) -> list[_Option]:
        """The best of all moves of its sequences (rows) to other pipelines (columns)."""
        mine = np.array(self.members[top])
        others = np.nonzero(loads.single & (np.arange(len(self.items)) != top))[0]
        left = loads.time_ms(np.full(1, top), gone=(self.work[top, mine], self.padded[top, mine]))
        padded = self.padded[np.ix_(others, mine)].T
        given = loads.time_ms(others, come=(self.work[np.ix_(others, mine)].T, padded))
        given[loads.capacity[others] < padded] = np.inf
        moved = np.maximum(left[:, None], given)
        if not moved.size:
            return []
        j, q = np.unravel_index(int(moved.argmin()), moved.shape)
        return [_Option(float(moved[j, q]), int(others[q]), int(mine[j]), None)]

    def _best_swap(self, top: int, loads: _Loads) -> list[_Option]:
        """The best of all swaps of its sequences (rows) for those of others (columns)."""
        mine = np.array(self.members[top])
        theirs = np.nonzero(loads.single[self.owner] & (self.owner != top))[0]
        p = self.owner[theirs]
        mine_there = (self.work[np.ix_(p, mine)].T, self.padded[np.ix_(p, mine)].T)
        top_after = loads.time_ms(
            np.full(1, top),
            gone=(self.work[top, mine][:, None], self.padded[top, mine][:, None]),
            come=(self.work[top, theirs], self.padded[top, theirs]),
        )
        top_after[:, self.padded[top, theirs] > loads.capacity[top]] = np.inf
        other_after = loads.time_ms(
            p, gone=(self.work[p, theirs], self.padded[p, theirs]), come=mine_there
        )
        other_after[loads.capacity[p] < mine_there[1]] = np.inf
        swapped = np.maximum(top_after, other_after)
        if not swapped.size:
            return []
        j, k = np.unravel_index(int(swapped.argmin()), swapped.shape)
        return [_Option(float(swapped[j, k]), int(p[k]), int(mine[j]), int(theirs[k]))]

    def _apply(self, top: int, other: int, give: int, take: int | None) -> bool:
        """Make a change if packing into micro-batches bears it out."""
        mine = [j for j in self.members[top] if j != give] + ([] if take is None else [take])
        theirs = [j for j in self.members[other] if j != take] + [give]
        packed = [self._pack(top, mine), self._pack(other, theirs)]
        times = [
            form_s(self.items[p], self.distinct, bins)
            for p, bins in zip((top, other), packed, strict=True)
        ]
        if max(times) >= self.time[top] * (1 - _GAIN):
            return False
        for p, members, bins, time in zip((top, other), (mine, theirs), packed, times, strict=True):
            self.members[p], self.bins[p], self.time[p] = members, bins, time
            self.owner[members] = p
        return True

    def _pack(self, p: int, members: list[int]) -> tuple[Bin, ...]:
        """Fewest micro-batches by best-fit decreasing."""
        room: list[float] = []
        micro: list[list[int]] = []
        for j in sorted(members, key=lambda j: (-self.length[j], j)):
            need = self.padded[p, j]
            fitting = [(left, i) for i, left in enumerate(room) if left >= need]
            if fitting:
                _, i = min(fitting)
            else:
                i = len(room)
                room.append(float(self.items[p].capacity))
                micro.append([])
            room[i] -= need
            micro[i].append(int(self.index[j]))
        return tuple(list(Counter(one).items()) for one in micro)

    def filling(self, fleet: Fleet) -> Filling:
        """The placement as it now stands."""
        bins, times, first = [], [], 0
        for item in fleet.classes:
            last = first + item.count
            bins.append(tuple(self.bins[first:last]))
            times.append(tuple(float(time) for time in self.time[first:last]))
            first = last
        return Filling(tuple(bins), tuple(times))


@dataclass(frozen=True)
class _Option:
    """Sequence ``give`` of the slowest pipeline goes to ``other``, ``take`` comes back."""

    hoped_ms: float
    other: int
    give: int
    take: int | None


_NOTHING = (np.zeros(1), np.zeros(1))


@dataclass(frozen=True)
class _Loads:
    """What pipelines hold, all arrays (pipelines,): their work (ms), padded tokens and limits."""

    work: Floats
    tokens: Floats
    overhead: Floats
    capacity: Floats
    single: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, state: _State) -> _Loads:
        items = state.items
        return cls(
            work=np.array([state.work[p, own].sum() for p, own in enumerate(state.members)]),
            tokens=np.array([state.padded[p, own].sum() for p, own in enumerate(state.members)]),
            overhead=np.array([item.c for item in items]),
            capacity=np.array([item.capacity for item in items], dtype=np.float64),
            single=np.array([item.pp == 1 for item in items]),
        )

    def time_ms(
        self,
        pipelines: Ints,
        *,
        gone: tuple[Floats, Floats] = _NOTHING,
        come: tuple[Floats, Floats] = _NOTHING,
    ) -> Floats:
        """Times of pipelines after work and tokens are gone and others have come.

        In the fewest micro-batches that their tokens may fit.
        """
        tokens = self.tokens[pipelines] - gone[1] + come[1]
        work = self.work[pipelines] - gone[0] + come[0]
        cost: Floats = work + self.overhead[pipelines] * np.ceil(tokens / self.capacity[pipelines])
        return cost
