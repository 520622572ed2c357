"""Our dispatch: search the least target for which every sequence can be placed, then balance.

The fill leaves little between pipelines when short sequences abound; if they are few, a swap of two
sequences can shorten the step. Only one-stage pipelines take part: their time is the work of their
sequences and c for every micro-batch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fill import Filler, Filling, Shortfall
from seqplan.planner.placement.fill_tables import ClassCosts, FillTables
from seqplan.planner.placement.fleet import Bin, Fleet, Floats, Ints, PipelineClass
from seqplan.planner.placement.greedy import estimate_ms, pack_modes

TOLERANCE = 5e-4
"""Relative width at which the search for the least feasible target ends."""

TWO_ORDERS_UP_TO = 600
"""With at most so many distinct lengths the fill is also made with new micro-batches first."""

_LARGEST_STEP = 1e6
"""A target that has grown by steps up to this fits nothing."""

EVEN = 0.98
"""GPUs busy for this share of the step are level enough."""

LEVEL_TOLERANCE = 1e-2
"""The same when levelling the pipelines that do not bind the step."""


def probe(filler: Filler, lower_ms: float, below_ms: float) -> Filling | None:
    """Find a placement better than ``below_ms`` with one fill in each order; None if both fail."""
    orders = (False, True) if len(filler.lengths) <= TWO_ORDERS_UP_TO else (False,)
    found = (_fill_below(filler, lower_ms, below_ms, new_first=order) for order in orders)
    return next((filling for filling in found if filling is not None), None)


def _fill_below(
    filler: Filler, lower_ms: float, below_ms: float, *, new_first: bool
) -> Filling | None:
    target = max(lower_ms, below_ms * (1 - 2 * TOLERANCE))
    if target >= below_ms:
        return None
    filling = filler.fill(target, new_first=new_first)
    # A fill may be above its target by the last bits of its sums.
    return filling if isinstance(filling, Filling) and filling.objective_ms < below_ms else None


def dispatch(
    filler: Filler, lower_ms: float, *, known: Filling | None = None, below_ms: float = inf
) -> Filling | None:
    """Minimize the slowest pipeline, as estimated, over dispatch and packing together.

    Gallops up from ``lower_ms``, a lower bound on the objective, then bisects to ``TOLERANCE``;
    small batches are tried once more with micro-batches opened before old ones are topped up.
    ``known``: a placement found before; ``below_ms``: give up above it. None when no placement
    below it is found (with both left out: when a sequence fits no pipeline).
    """
    best, low = known, lower_ms
    target, step = lower_ms, 2 * TOLERANCE
    while best is None:
        if target >= below_ms:
            return None
        filling = filler.fill(target)
        if isinstance(filling, Filling):
            best = filling
        elif step > _LARGEST_STEP:
            return None
        else:
            low, target, step = target, target * (1 + step), step * 3
    best = _bisect(filler, low, best)
    if len(filler.lengths) <= TWO_ORDERS_UP_TO:
        better = _fill_below(filler, lower_ms, best.objective_ms, new_first=True)
        if better is not None:
            return _bisect(filler, lower_ms, better, new_first=True)
    return best


def _bisect(filler: Filler, low: float, best: Filling, *, new_first: bool = False) -> Filling:
    """Lower ``best`` towards ``low``, a target that failed, as far as fills succeed."""
    while best.objective_ms > low * (1 + TOLERANCE):
        middle = (low + best.objective_ms) / 2
        better = filler.fill(middle, new_first=new_first)
        if isinstance(better, Shortfall):
            low = middle
        elif better.objective_ms < best.objective_ms:
            best = better
        else:
            break
    return best


def level(filler: Filler, filling: Filling, lower_ms: float) -> Filling:
    """Even out the pipelines that do not bind: the same slowest pipeline, less spread below it.

    Pipelines whose first sequence alone needs long keep the step's time as their ceiling; the
    target of all others is lowered as far as it goes.
    """
    ceiling = filling.objective_ms
    sizes = [pipeline_class.gpus for pipeline_class in filler.fleet.classes]
    busy = sum(size * sum(times) for size, times in zip(sizes, filling.pipeline_ms, strict=True))
    if busy > EVEN * ceiling * filler.fleet.strategy.gpus:
        return filling
    best, low, high = filling, lower_ms, ceiling
    while high > low * (1 + LEVEL_TOLERANCE):
        middle = (low + high) / 2
        levelled = filler.fill(middle, ceiling)
        if isinstance(levelled, Filling) and levelled.objective_ms <= ceiling:
            best, high = levelled, middle
        else:
            low = middle
    return best


MOST_SEQUENCES = 800
"""Larger batches are left as they are: every change looks at all sequences, and gains little."""

MOST_CHANGES = 200

_GAIN = 1e-6
"""Least relative gain of a change."""


def balance(fleet: Fleet, batch: Batch, filling: Filling, lower_ms: float) -> Filling:
    """Make the slowest pipeline no slower, on the same strategy; ends at ``lower_ms``."""
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

    ``time``: estimated, per pipeline. Pipelines of several stages stay unchanged.
    """

    costs: list[ClassCosts]
    pipeline_classes: list[PipelineClass]
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
        pipeline_classes: list[PipelineClass] = []
        members: list[list[int]] = []
        bins: list[tuple[Bin, ...]] = []
        index: list[int] = []
        owner: list[int] = []
        for pipeline_class, pipelines in zip(fleet.classes, filling.bins, strict=True):
            for pipeline in pipelines:
                placed = [i for micro in pipeline for i, n in micro for _ in range(n)]
                members.append(list(range(len(index), len(index) + len(placed))))
                owner += [len(pipeline_classes)] * len(placed)
                index += placed
                pipeline_classes.append(pipeline_class)
                bins.append(pipeline)
        tables = FillTables.from_batch(batch)
        indices = np.array(index, dtype=np.int64)
        length = batch.distinct[indices]
        per_class = {
            pipeline_class: (
                # In what mode a sequence ends is known after packing: its share of c stands for it.
                pipeline_class.work_with_overhead_ms(length)
                if pipeline_class.modes
                else pipeline_class.work_ms(length),
                pipeline_class.padded(length),
            )
            for pipeline_class in fleet.classes
        }
        return cls(
            costs=[tables.find_costs(k) for k in pipeline_classes],
            pipeline_classes=pipeline_classes,
            members=members,
            bins=bins,
            index=indices,
            length=length,
            owner=np.array(owner, dtype=np.int64),
            time=np.array([time for times in filling.pipeline_ms for time in times]),
            work=np.stack([per_class[pipeline_class][0] for pipeline_class in pipeline_classes]),
            padded=np.stack(
                [per_class[pipeline_class][1] for pipeline_class in pipeline_classes]
            ).astype(np.float64),
        )

    @property
    def slowest_ms(self) -> float:
        return float(self.time.max())

    def move_or_swap(self) -> bool:
        """Make the best move or swap off the slowest pipeline; False when none shortens it."""
        top = int(self.time.argmax())
        if self.pipeline_classes[top].pp > 1:
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
        """Find the best of all moves of its sequences (rows) to other pipelines (columns)."""
        mine = np.array(self.members[top])
        others = np.nonzero(loads.single & (np.arange(len(self.pipeline_classes)) != top))[0]
        top_after = loads.time_ms(
            np.full(1, top), outgoing=(self.work[top, mine], self.padded[top, mine])
        )
        padded = self.padded[np.ix_(others, mine)].T
        other_after = loads.time_ms(others, incoming=(self.work[np.ix_(others, mine)].T, padded))
        other_after[loads.capacity[others] < padded] = np.inf
        slowest_after = np.maximum(top_after[:, None], other_after)
        if not slowest_after.size:
            return []
        j, q = np.unravel_index(int(slowest_after.argmin()), slowest_after.shape)
        return [_Option(float(slowest_after[j, q]), int(others[q]), int(mine[j]), None)]

    def _best_swap(self, top: int, loads: _Loads) -> list[_Option]:
        """Find the best of all swaps of its sequences (rows) for those of others (columns)."""
        mine = np.array(self.members[top])
        theirs = np.nonzero(loads.single[self.owner] & (self.owner != top))[0]
        p = self.owner[theirs]
        own_there = (self.work[np.ix_(p, mine)].T, self.padded[np.ix_(p, mine)].T)
        top_after = loads.time_ms(
            np.full(1, top),
            outgoing=(self.work[top, mine][:, None], self.padded[top, mine][:, None]),
            incoming=(self.work[top, theirs], self.padded[top, theirs]),
        )
        top_after[:, self.padded[top, theirs] > loads.capacity[top]] = np.inf
        other_after = loads.time_ms(
            p, outgoing=(self.work[p, theirs], self.padded[p, theirs]), incoming=own_there
        )
        other_after[loads.capacity[p] < own_there[1]] = np.inf
        slowest_after = np.maximum(top_after, other_after)
        if not slowest_after.size:
            return []
        j, k = np.unravel_index(int(slowest_after.argmin()), slowest_after.shape)
        return [_Option(float(slowest_after[j, k]), int(p[k]), int(mine[j]), int(theirs[k]))]

    def _apply(self, top: int, other: int, give: int, take: int | None) -> bool:
        """Make a change if packing into micro-batches bears it out; return whether it was made."""
        mine = [j for j in self.members[top] if j != give] + ([] if take is None else [take])
        theirs = [j for j in self.members[other] if j != take] + [give]
        packed = [self._pack(top, mine), self._pack(other, theirs)]
        times = [
            estimate_ms(self.costs[p], bins) for p, bins in zip((top, other), packed, strict=True)
        ]
        if max(times) >= self.time[top] * (1 - _GAIN):
            return False
        for p, members, bins, time in zip((top, other), (mine, theirs), packed, times, strict=True):
            self.members[p], self.bins[p], self.time[p] = members, bins, time
            self.owner[members] = p
        return True

    def _pack(self, p: int, members: list[int]) -> tuple[Bin, ...]:
        """Pack sequences into the fewest micro-batches that best-fit decreasing finds."""
        if self.pipeline_classes[p].modes:
            packed = pack_modes(self.pipeline_classes[p], self.length[members].tolist())
            return tuple(
                list(Counter(int(self.index[members[j]]) for j in of_micro).items())
                for of_micro in packed
            )
        room: list[float] = []
        micro: list[list[int]] = []
        for j in sorted(members, key=lambda j: (-self.length[j], j)):
            need = self.padded[p, j]
            fitting = [(left, i) for i, left in enumerate(room) if left >= need]
            if fitting:
                _, i = min(fitting)
            else:
                i = len(room)
                room.append(float(self.pipeline_classes[p].capacity))
                micro.append([])
            room[i] -= need
            micro[i].append(int(self.index[j]))
        return tuple(list(Counter(indices).items()) for indices in micro)

    def filling(self, fleet: Fleet) -> Filling:
        """Return the placement as it now stands."""
        bins, times, first = [], [], 0
        for pipeline_class in fleet.classes:
            last = first + pipeline_class.count
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
        pipeline_classes = state.pipeline_classes
        return cls(
            work=np.array([state.work[p, mine].sum() for p, mine in enumerate(state.members)]),
            tokens=np.array([state.padded[p, mine].sum() for p, mine in enumerate(state.members)]),
            overhead=np.array([0.0 if k.modes else k.c for k in pipeline_classes]),
            capacity=np.array(
                [pipeline_class.capacity for pipeline_class in pipeline_classes], dtype=np.float64
            ),
            single=np.array([pipeline_class.pp == 1 for pipeline_class in pipeline_classes]),
        )

    def time_ms(
        self,
        pipelines: Ints,
        *,
        outgoing: tuple[Floats, Floats] = _NOTHING,
        incoming: tuple[Floats, Floats] = _NOTHING,
    ) -> Floats:
        """Compute the times (ms) of pipelines after ``outgoing`` has left and ``incoming`` joined.

        Both are (work in ms, padded tokens); in the fewest micro-batches that tokens may fit.
        """
        tokens = self.tokens[pipelines] - outgoing[1] + incoming[1]
        work = self.work[pipelines] - outgoing[0] + incoming[0]
        cost: Floats = work + self.overhead[pipelines] * np.ceil(tokens / self.capacity[pipelines])
        return cost
