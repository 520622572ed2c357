"""The fill of one class whose micro-batches each have a recomputation mode, in plain Python.

The longest sequence that is left opens a micro-batch, in the mode that is cheapest for it with its
tokens' share of c. The micro-batch is topped up, longest first, with sequences that cost no more in
it than in one of the mode that is cheapest for them.

``fill_kernel.c`` does the same in C, operation by operation: whatever changes here changes there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, inf, sqrt

import numpy as np

from seqplan.planner.placement.fleet import (
    _ROUND,
    Bin,
    ClassMode,
    ClassPlacement,
    Floats,
    Ints,
    PipelineClass,
)
from seqplan.planner.placement.sequence_pool import SequencePool

MOST_COUNTED = 10_000
"""As ``class_fill.MOST_COUNTED``."""


class ModeTable:
    """Costs of each distinct length (descending) in the modes of a class.

    ``work_ms`` (modes, n); ``padded_lengths`` (n,) in tokens; ``preference`` (n, modes): modes from
    the cheapest, with the tokens' share of c. ``cheap_from`` and ``held_from`` (modes, n + 1): the
    first index from each on that is as cheap in the mode as in any, or that the mode holds. All are
    C-contiguous, and lists of the same for plain Python.
    """

    def __init__(self, lengths: Sequence[int] | Ints, pipeline_class: PipelineClass) -> None:
        self.modes = pipeline_class.modes
        whole_lengths = np.array(lengths, dtype=np.int64)
        tokens = whole_lengths.astype(np.float64)
        padded = pipeline_class.padded(whole_lengths)
        work = np.array([tokens * (mode.a * tokens + mode.b) for mode in self.modes])
        share = np.array([padded * (mode.c / mode.capacity) for mode in self.modes])
        holds = np.array([padded <= mode.capacity for mode in self.modes])
        whole = np.where(holds, work + share, np.inf)
        order = np.argsort(whole, axis=0, kind="stable").T
        self.padded_lengths: Ints = np.ascontiguousarray(padded)
        self.work_ms: Floats = work
        self.preference: Ints = np.ascontiguousarray(order, dtype=np.int64)
        self.cheap_from = _next_true(holds & (work <= whole.min(axis=0) * _ROUND))
        self.held_from = _next_true(holds)
        self.coefficients: Floats = np.array([[mode.a, mode.b, mode.c] for mode in self.modes])
        self.capacities: Ints = np.array([mode.capacity for mode in self.modes], dtype=np.int64)

    @cached_property
    def padded(self) -> list[int]:
        """List padded lengths (tokens)."""
        padded: list[int] = self.padded_lengths.tolist()
        return padded

    @cached_property
    def work(self) -> list[list[float]]:
        """List the work of each mode (ms)."""
        work: list[list[float]] = self.work_ms.tolist()
        return work

    @cached_property
    def preferred(self) -> list[list[int]]:
        """List the modes of each length, from the cheapest."""
        preferred: list[list[int]] = self.preference.tolist()
        return preferred

    @cached_property
    def next_cheap(self) -> list[list[int]]:
        """List ``cheap_from``."""
        indices: list[list[int]] = self.cheap_from.tolist()
        return indices

    @cached_property
    def next_held(self) -> list[list[int]]:
        """List ``held_from``."""
        indices: list[list[int]] = self.held_from.tolist()
        return indices


def _next_true(mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Ints:
    """Return the index of the first true value from each on, row by row; n without one."""
    rows, n = mask.shape
    at = np.where(mask, np.arange(n), n)
    following = np.minimum.accumulate(at[:, ::-1], axis=1)[:, ::-1]
    return np.ascontiguousarray(
        np.concatenate([following, np.full((rows, 1), n)], axis=1), dtype=np.int64
    )


ModeTables = dict[tuple[tuple[ClassMode, ...], int], ModeTable]
"""Tables of one batch by modes and padding unit."""


def find_table(
    tables: ModeTables, lengths: Sequence[int] | Ints, pipeline_class: PipelineClass
) -> ModeTable:
    """Return the table of a class, which the first call makes."""
    key = pipeline_class.modes, pipeline_class.unit
    if key not in tables:
        tables[key] = ModeTable(lengths, pipeline_class)
    return tables[key]


def top_up(
    pool: SequencePool,
    table: ModeTable,
    m: int,
    micro: Bin,
    work: float,
    tokens: int,
    above: int,
    *,
    first: int | None = None,
    any_cost: bool = False,
) -> tuple[float, int]:
    """Add sequences to one micro-batch of mode ``m``; see ``SequencePool.top_up``.

    ``first``: index of the length that comes first; ``any_cost``: also sequences that another mode
    runs at less cost.
    """
    mode = table.modes[m]
    a, b = mode.a, mode.b
    lengths, negated, counts, links = pool.lengths, pool.negated, pool.counts, pool.next
    costs, padding = table.work[m], table.padded
    skip = (table.next_held if any_cost else table.next_cheap)[m]
    four_a, b_squared, end, i = 4 * a, b * b, len(lengths), 0
    while work > 0:
        if first is not None:
            i, first = first, None
        else:
            limit = 2 * work / (b + sqrt(b_squared + four_a * work))
            i = bisect_left(negated, -(tokens if tokens < limit else limit), i)
            while True:
                i = skip[i]
                if links[i] == i:
                    break
                while links[i] != i:
                    links[i] = links[links[i]]
                    i = links[i]
            if i == end:
                break
        length = lengths[i]
        if length <= above:
            break
        cost, padded = costs[i], padding[i]
        if padded > tokens:
            i += 1
            continue
        n = counts[i]
        if n > 1:
            n = min(n, tokens // padded, int(work / cost)) or 1
        work -= n * cost
        tokens -= n * padded
        micro.append((i, n))
        pool.left -= n
        counts[i] -= n
        if not counts[i]:
            links[i] = i + 1
    return work, tokens


def choose_first(
    pool: SequencePool, table: ModeTable, room_ms: float, above: int
) -> tuple[int, int] | None:
    """Choose the longest sequence that some mode ends within ``room_ms``, and its cheapest mode."""
    reach = []
    for mode in table.modes:
        room = room_ms - mode.c
        if room <= 0:
            reach.append(0.0)
            continue
        limit = 2 * room / (mode.b + sqrt(mode.b * mode.b + 4 * mode.a * room))
        reach.append(min(limit, mode.capacity))
    i = pool.longest(max(reach))
    if i is None or pool.lengths[i] <= above:
        return None
    length, padded = pool.lengths[i], table.padded[i]
    for m in table.preferred[i]:
        if length <= reach[m] and padded <= table.modes[m].capacity:
            return i, m
    return None


@dataclass
class _ModePipeline:
    """A pipeline being filled: its micro-batches with mode, cost (ms) and tokens left.

    ``budget``: ms left for micro-batches, c included; ``cap``: the most that one of them may cost.
    """

    table: ModeTable
    budget: float
    cap: float
    bins: list[Bin] = field(default_factory=list)
    mode: list[int] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def fill(self, pool: SequencePool, above: int, new_first: bool = False) -> None:
        """Take sequences longer than ``above``, into open micro-batches and then new ones.

        ``new_first``: the other way round.
        """
        if new_first:
            already_open = len(self.bins)
            self._add(pool, above)
            self.top_up(pool, above, already_open)
        else:
            self.top_up(pool, above, len(self.bins))
            self._add(pool, above)

    def top_up(
        self, pool: SequencePool, above: int, already_open: int, *, any_cost: bool = False
    ) -> None:
        """Top up the first ``already_open`` micro-batches."""
        for j, micro in enumerate(self.bins[:already_open]):
            room = min(self.budget, self.cap - self.cost[j])
            left, self.tokens[j] = top_up(
                pool,
                self.table,
                self.mode[j],
                micro,
                room,
                self.tokens[j],
                above,
                any_cost=any_cost,
            )
            self.budget -= room - left
            self.cost[j] += room - left

    def _add(self, pool: SequencePool, above: int) -> None:
        while pool.left:
            chosen = choose_first(pool, self.table, min(self.budget, self.cap), above)
            if chosen is None:
                break
            i, m = chosen
            mode = self.table.modes[m]
            room = min(self.budget, self.cap) - mode.c
            new: Bin = []
            left, tokens = top_up(pool, self.table, m, new, room, mode.capacity, above, first=i)
            if not new:
                break
            self.bins.append(new)
            self.mode.append(m)
            self.cost.append(mode.c + room - left)
            self.tokens.append(tokens)
            self.budget -= mode.c + room - left


def _open(table: ModeTable, pp: int, first: int, target: float, ceiling: float) -> _ModePipeline:
    """Open an empty pipeline for the sequence ``first``; as ``class_fill`` with several stages."""
    alone = min(
        table.work[m][first] + mode.c
        for m, mode in enumerate(table.modes)
        if table.padded[first] <= mode.capacity
    )
    budget = min(max(target, pp * alone), ceiling) * _ROUND
    if pp == 1:
        return _ModePipeline(table, budget, inf)
    bubbles = pp - 1
    full, light = _full_ms(table, first), table.modes[0]
    fitting = min(budget / alone, float(MOST_COUNTED + bubbles))
    most = max(int(fitting) - bubbles, 1)
    best, micro_batches = -1.0, 1
    for v in range(1, most + 1):
        capacity = v * (min(budget / (v + bubbles), full) - light.c)
        if capacity <= best:
            break  # concave in v: past its maximum
        best, micro_batches = capacity, v
    left = budget - bubbles * alone * _ROUND
    peaked = left - light.c * max(ceil(left / alone), ceil(left / full))
    if micro_batches == most and peaked > best:
        return _ModePipeline(table, left, alone * _ROUND)
    even = budget / (micro_batches + bubbles)
    return _ModePipeline(table, micro_batches * even, even)


def _full_ms(table: ModeTable, first: int) -> float:
    """Compute the cost of a full micro-batch, in the mode of a middle length (ms)."""
    middle = min(first + (len(table.padded) - first) // 2, len(table.padded) - 1)
    mode = table.modes[table.preferred[middle][0]]
    length = min(table.padded[first], mode.capacity)
    return mode.c + mode.capacity * (mode.a * length + mode.b)


def fill_class_modes(
    pool: SequencePool,
    table: ModeTable,
    pipeline_class: PipelineClass,
    reach: int,
    forced_above: int,
    target: float,
    ceiling: float,
    new_first: bool,
) -> ClassPlacement:
    """Fill the pipelines of a class as ``PythonFill.fill_class``; in the end at any cost.

    Room that is left when all pipelines are full takes sequences that another mode would run at
    less cost.
    """
    count, pp = pipeline_class.count, pipeline_class.pp
    opened: list[_ModePipeline] = []
    for _ in range(count):
        first = pool.longest(reach)
        if first is None or pool.lengths[first] <= forced_above:
            break
        pipeline = _open(table, pp, first, target, ceiling)
        pipeline.fill(pool, forced_above)
        opened.append(pipeline)
    for place in range(count):
        if place == len(opened):
            first = pool.longest(reach)
            if first is None:
                break
            opened.append(_open(table, pp, first, target, ceiling))
        opened[place].fill(pool, 0, new_first)
    for pipeline in opened:
        if not pool.left:
            break
        pipeline.top_up(pool, 0, len(pipeline.bins), any_cost=True)
    placement: ClassPlacement = tuple(tuple(pipeline.bins) for pipeline in opened)
    return placement + ((),) * (count - len(opened))


def pack_modes(pipeline_class: PipelineClass, lengths: list[int]) -> list[list[int]]:
    """Pack positions of ``lengths`` into micro-batches of one pipeline without stages."""
    distinct = sorted(set(lengths), reverse=True)
    places: dict[int, list[int]] = {}
    for j, length in enumerate(lengths):
        places.setdefault(length, []).append(j)
    pool = SequencePool(distinct, [len(places[n]) for n in distinct], len(lengths))
    pipeline = _ModePipeline(ModeTable(distinct, pipeline_class), 1e18, inf)
    pipeline.fill(pool, 0)
    return [
        [places[distinct[i]].pop() for i, n in micro for _ in range(n)] for micro in pipeline.bins
    ]
