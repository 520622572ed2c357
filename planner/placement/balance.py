"""Balance: moves and swaps of sequences off the slowest pipeline, after the target fill.

The fill leaves little between pipelines where short sequences abound; where they are few, an
exchange of two sequences can shorten the step. Only one-stage pipelines take part: their time is
the work of their sequences and c for every micro-batch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fill import Filling
from seqplan.planner.placement.fleet import Bin, Fleet, Floats, Ints, PipelineClass, form_s

MOST_SEQUENCES = 800
"""Larger batches are left as they are: every exchange looks at all sequences, and gains little."""

MOST_EXCHANGES = 200

_GAIN = 1e-6
"""Least relative gain of an exchange."""


def balance(fleet: Fleet, batch: Batch, filling: Filling, lower_ms: float) -> Filling:
    """The same strategy with a slowest pipeline that is no slower; ends at ``lower_ms``."""
    if len(batch.lengths) > MOST_SEQUENCES:
        return filling
    state = _State.of(fleet, batch, filling)
    for _ in range(MOST_EXCHANGES):
        if state.slowest_ms <= lower_ms or not state.exchange():
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

    def exchange(self) -> bool:
        """Make the best move or swap off the slowest pipeline; False when none shortens it."""
        top = int(self.time.argmax())
        if self.items[top].pp > 1:
            return False
        single = np.array([item.pp == 1 for item in self.items])
        overhead = np.array([item.c for item in self.items])
        capacity = np.array([item.capacity for item in self.items], dtype=np.float64)
        total = np.array([self.work[p, own].sum() for p, own in enumerate(self.members)])
        tokens = np.array([self.padded[p, own].sum() for p, own in enumerate(self.members)])
        mine = np.array(self.members[top])

        def time(p: Ints, work: Floats, padded: Floats) -> Floats:
            cost: Floats = work + overhead[p] * np.ceil(padded / capacity[p])
            return cost

        others = np.nonzero(single & (np.arange(len(self.items)) != top))[0]
        here = np.full(1, top)
        # Moves: mine (rows) to other pipelines (columns).
        left = time(here, total[top] - self.work[top, mine], tokens[top] - self.padded[top, mine])
        given = time(
            others,
            total[others] + self.work[np.ix_(others, mine)].T,
            tokens[others] + self.padded[np.ix_(others, mine)].T,
        )
        given[capacity[others] < self.padded[np.ix_(others, mine)].T] = np.inf
        moved = np.maximum(left[:, None], given)
        # Swaps: mine (rows) for the sequences of the other pipelines (columns).
        theirs = np.nonzero(single[self.owner] & (self.owner != top))[0]
        p = self.owner[theirs]
        kept = time(
            here,
            total[top] - self.work[top, mine][:, None] + self.work[top, theirs],
            tokens[top] - self.padded[top, mine][:, None] + self.padded[top, theirs],
        )
        kept[:, self.padded[top, theirs] > capacity[top]] = np.inf
        got = time(
            p,
            total[p] - self.work[p, theirs] + self.work[np.ix_(p, mine)].T,
            tokens[p] - self.padded[p, theirs] + self.padded[np.ix_(p, mine)].T,
        )
        got[capacity[p] < self.padded[np.ix_(p, mine)].T] = np.inf
        swapped = np.maximum(kept, got)
        options: list[tuple[float, int, int, int | None]] = []
        if moved.size:
            j, q = np.unravel_index(int(moved.argmin()), moved.shape)
            options.append((float(moved[j, q]), int(mine[j]), int(others[q]), None))
        if swapped.size:
            j, k = np.unravel_index(int(swapped.argmin()), swapped.shape)
            options.append((float(swapped[j, k]), int(mine[j]), int(p[k]), int(theirs[k])))
        limit = self.time[top] * (1 - _GAIN)
        return any(
            self._apply(top, q, j, k)
            for hoped, j, q, k in sorted(options, key=lambda option: option[0])
            if hoped < limit
        )

    def _apply(self, top: int, other: int, give: int, take: int | None) -> bool:
        """Make an exchange if packing into micro-batches bears it out."""
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
