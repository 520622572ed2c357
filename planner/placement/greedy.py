"""The greedy fill of one class of pipelines: longest sequences first, in plain Python or compiled.

The longest sequence that is left opens a micro-batch, in the recomputation mode that is cheapest
for it with its tokens' share of c. The micro-batch is topped up, longest first, with sequences that
cost no more in it than in one of the mode that is cheapest for them. A class without modes is that
of one mode.

``fill_kernel.c`` does the same in C, operation by operation: whatever changes here changes there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import ceil, inf, sqrt

import numpy as np

from seqplan.planner.placement.fill_tables import ClassCosts, FillTables, ModeCosts
from seqplan.planner.placement.fleet import (
    ROUND,
    Bin,
    ClassPlacement,
    Ints,
    PipelineBins,
    PipelineClass,
)
from seqplan.planner.placement.micro_batch_sizes import (
    MOST_COUNTED,
    NEAR,
    choose_number,
    choose_sizes,
    idle_of,
)
from seqplan.planner.placement.ramps import ANY_NUMBER, Sizes


class SequencePool:
    """The unassigned sequences: how many of each distinct length, with links over spent ones."""

    __slots__ = ("counts", "left", "lengths", "negated", "next")

    def __init__(self, tables: FillTables, counts: list[int]) -> None:
        self.lengths, self.negated = tables.lengths, tables.negated
        self.counts = counts
        self.next = [i if n else i + 1 for i, n in enumerate(counts)] + [len(counts)]
        self.left = sum(counts)

    def longest(self, limit: float) -> int | None:
        """Return the index of the longest unassigned length ≤ ``limit``; None without one."""
        links = self.next
        i = bisect_left(self.negated, -limit)
        while links[i] != i:
            links[i] = links[links[i]]
            i = links[i]
        return i if i < len(self.lengths) else None

    def top_up(
        self,
        costs: ModeCosts,
        micro: Bin,
        work: float,
        tokens: int,
        above: int,
        first: int | None = None,
        *,
        any_cost: bool = False,
    ) -> tuple[float, int]:
        """Add sequences that fit ``work`` ms and ``tokens`` to one micro-batch, longest first.

        Only sequences longer than ``above`` are taken. ``first``: index of the length that comes
        first; ``any_cost``: also sequences that another mode runs at less cost. Returns the work
        and tokens left.
        """
        b, of_length, padding = costs.b, costs.work, costs.padded
        lengths, negated, counts, links = self.lengths, self.negated, self.counts, self.next
        skip = costs.held_from if any_cost else costs.cheap_from
        four_a, b_squared, end, i = 4 * costs.a, b * b, len(self.lengths), 0
        while work > 0:
            if first is not None:
                i, first = first, None
            else:
                limit = 2 * work / (b + sqrt(b_squared + four_a * work))
                i = bisect_left(negated, -(tokens if tokens < limit else limit), i)
                while True:
                    if skip is not None:
                        i = skip[i]
                    if links[i] == i:
                        break
                    while links[i] != i:
                        links[i] = links[links[i]]
                        i = links[i]
                if i == end:
                    break
            if lengths[i] <= above:
                break
            cost, padded = of_length[i], padding[i]
            if padded > tokens:
                i += 1
                continue
            n = counts[i]
            if n > 1:
                n = min(n, tokens // padded, int(work / cost)) or 1
            work -= n * cost
            tokens -= n * padded
            micro.append((i, n))
            self.left -= n
            counts[i] -= n
            if not counts[i]:
                links[i] = i + 1
        return work, tokens


class PythonFill:
    """Fills classes of pipelines, one after the other, from the sequences of one batch."""

    def __init__(self, tables: FillTables, counts: Ints) -> None:
        self.pool = SequencePool(tables, counts.tolist())
        self._filled: list[tuple[ClassCosts, ClassPlacement, list[float]]] = []

    @property
    def counts(self) -> list[int]:
        """Count the unassigned sequences of each distinct length."""
        return self.pool.counts

    @property
    def left(self) -> int:
        """Count the unassigned sequences."""
        return self.pool.left

    def fill_class(
        self,
        costs: ClassCosts,
        count: int,
        reach: int,
        forced_above: int,
        target: float,
        *,
        most: int = ANY_NUMBER,
    ) -> int:
        """Fill ``count`` pipelines of a class with sequences of up to ``reach`` tokens.

        Pipelines are opened for sequences above ``forced_above`` first; then they, and new ones,
        take any. Room that is left when all are full takes sequences that another mode would run
        at less cost. ``most``: micro-batches of a pipeline. Times in ms. Returns the number of
        pipelines with sequences.
        """
        pool = self.pool
        opened: list[_Pipeline] = []
        for _ in range(count):
            first = pool.longest(reach)
            if first is None or pool.lengths[first] <= forced_above:
                break
            pipeline = _open(costs, pool, first, target, most)
            pipeline.fill(forced_above)
            opened.append(pipeline)
        for place in range(count):
            if place == len(opened):
                first = pool.longest(reach)
                if first is None:
                    break
                opened.append(_open(costs, pool, first, target, most))
            opened[place].fill(0)
        if len(costs.modes) > 1:
            for pipeline in opened:
                pipeline.top_up(0, len(pipeline.bins), any_cost=True)
        placement: ClassPlacement = tuple(tuple(pipeline.bins) for pipeline in opened)
        rest = count - len(opened)
        limits_ms = [pipeline.limit_ms if pipeline.bins else 0.0 for pipeline in opened]
        self._filled.append((costs, placement + ((),) * rest, limits_ms + [0.0] * rest))
        return sum(bool(bins) for bins in placement)

    def placements(self) -> list[tuple[ClassPlacement, tuple[float, ...]]]:
        """Return the placement on each class in the order of filling, with estimated times.

        With the sizes of ramps these are limits, which hold in their order.
        """
        return [
            (
                placement,
                tuple(
                    limits_ms if costs.ramps else [estimate_ms(costs, bins) for bins in placement]
                ),
            )
            for costs, placement, limits_ms in self._filled
        ]


class _Pipeline:
    """A pipeline being filled: its micro-batches with mode, work (ms) and the tokens left.

    ``budget``: ms left for work and micro-batches' overhead, shared by all of them, ``limit_ms`` at
    first. ``sizes``: the most time of each micro-batch, for which bubbles have been paid already;
    ``together``: how many sequences of its first one's length each shall hold.
    """

    __slots__ = (
        "bins",
        "budget",
        "costs",
        "limit_ms",
        "modes",
        "most",
        "pool",
        "sizes",
        "together",
        "tokens",
        "work",
    )

    def __init__(
        self,
        costs: ClassCosts,
        pool: SequencePool,
        budget: float,
        sizes: Sizes,
        most: int,
        together: int = 1,
    ) -> None:
        self.costs, self.pool, self.sizes = costs, pool, sizes
        self.budget = self.limit_ms = budget
        self.most, self.together = min(most, sizes.number), together
        self.bins: list[Bin] = []
        self.modes: list[int] = []
        self.work: list[float] = []
        self.tokens: list[int] = []

    def fill(self, above: int) -> None:
        """Take sequences longer than ``above``, into open micro-batches and then new ones."""
        self.top_up(above, len(self.bins))
        self._add(above)

    def top_up(self, above: int, already_open: int, *, any_cost: bool = False) -> None:
        """Top up the first ``already_open`` micro-batches."""
        by_mode = self.costs.by_mode
        for j, micro in enumerate(self.bins[:already_open]):
            m = self.modes[j]
            room = min(self.budget, self.sizes.of(j) - by_mode[m].c - self.work[j])
            left, self.tokens[j] = self.pool.top_up(
                by_mode[m], micro, room, self.tokens[j], above, any_cost=any_cost
            )
            self.budget -= room - left
            self.work[j] += room - left

    def _add(self, above: int) -> None:
        pool, by_mode = self.pool, self.costs.by_mode
        first, m = None, 0
        while pool.left and len(self.bins) < self.most:
            size = min(self.budget, self.sizes.of(len(self.bins)))
            if len(by_mode) > 1:
                chosen = self._choose_first(above, size)
                if chosen is None:
                    break
                first, m = chosen
            mode = by_mode[m]
            new: Bin = []
            room = size - mode.c
            left, tokens = pool.top_up(
                mode, new, room, mode.capacity, above, first, any_cost=self.together > 1
            )
            if not new:
                break
            self.bins.append(new)
            self.modes.append(m)
            self.work.append(room - left)
            self.tokens.append(tokens)
            self.budget -= room - left + mode.c

    def _choose_first(self, above: int, size: float) -> tuple[int, int] | None:
        """Choose the longest sequence that some mode ends in ``size`` ms, and its cheapest mode."""
        costs = self.costs
        reach = [mode.reach(size - mode.c) for mode in costs.by_mode]
        i = self.pool.longest(max(reach))
        if i is None or self.pool.lengths[i] <= above:
            return None
        length = self.pool.lengths[i]
        for together in dict.fromkeys((self.together, 1)):
            for m in costs.preferred[i]:
                mode = costs.by_mode[m]
                if length <= reach[m] and together * mode.padded[i] <= mode.capacity:
                    return i, m
        return None


def _open(costs: ClassCosts, pool: SequencePool, first: int, target: float, most: int) -> _Pipeline:
    """Open an empty pipeline for the sequence ``first``.

    Several stages: either V even micro-batches, V with the most capacity that leaves each of them
    the work of that sequence; or, if that holds more, a first micro-batch of that sequence alone
    which then sets the bubbles, and no other larger. Or the sizes of ``ramps``.
    """
    by_mode = costs.by_mode
    holding = [mode for mode in by_mode if mode.padded[first] <= mode.capacity]
    alone = min(mode.work[first] + mode.c for mode in holding)
    budget = target * ROUND
    if costs.pp == 1:
        return _Pipeline(costs, pool, budget, Sizes(inf), most)
    light_c = min(mode.c for mode in by_mode)
    # A full micro-batch: of the mode that is cheapest for a middle length.
    middle = min(first + (len(pool.lengths) - first) // 2, len(pool.lengths) - 1)
    full = by_mode[costs.preferred[middle][0]]
    token_work = full.capacity * (full.a * min(pool.lengths[first], full.capacity) + full.b)
    if costs.ramps is not None:
        most_ms = max(token_work + full.c, alone * ROUND)
        sizes = choose_sizes(costs.ramps, budget, alone, most_ms, light_c)
        if pool.counts[first] > 1 and sizes.number > 1 and sizes.of(0) < alone * NEAR:
            sizes = choose_sizes(costs.ramps, budget, alone, alone * ROUND, light_c)
        return _Pipeline(costs, pool, budget, sizes, most)
    bubbles = costs.bubbles
    if pool.lengths[first] <= costs.equal_up_to:
        number, micro_batches, slowest = choose_number(costs, first, budget)
        if number:
            left = budget - idle_of(costs, number, micro_batches) * slowest
            return _Pipeline(costs, pool, left, Sizes(slowest), most, number)
    best, micro_batches, limit, each = -1.0, 1, 1, 0.0
    for v in range(1, MOST_COUNTED + 1):
        even = budget / (v + bubbles.of(v))
        if v > 1 and even < alone:
            break  # without overhead, V rises as long as each holds that sequence
        limit = v
        capacity = v * min(even - light_c, token_work + (full.c - light_c))
        if capacity <= best:
            break  # past its maximum
        best, micro_batches, each = capacity, v, even
    left = budget - bubbles.of(limit) * (alone * ROUND)
    peaked = left - light_c * max(ceil(left / alone), ceil(left / (token_work + full.c)))
    if micro_batches == limit and peaked > best:
        return _Pipeline(costs, pool, left, Sizes(alone * ROUND), most)
    budget = micro_batches * ((each - light_c) + light_c)
    return _Pipeline(costs, pool, budget, Sizes(each), most)


def estimate_ms(costs: ClassCosts, pipeline: PipelineBins) -> float:
    """Estimate the 1F1B time of a pipeline (ms), each micro-batch in its cheapest mode.

    Σ(m_j + c) + bubbles·(max m_j + c), or pp·(max m_j + c) if that is more; 0 when empty, and
    exact without stages.
    """
    # Not sum(): it compensates from Python 3.12 on, and the kernel adds one by one.
    total = slowest = 0.0
    for micro in pipeline:
        cost = inf
        for mode in costs.by_mode:
            if sum(n * mode.padded[i] for i, n in micro) <= mode.capacity:
                work = 0.0
                for i, n in micro:
                    work += n * mode.work[i]
                cost = min(cost, mode.c + work)
        total += cost
        slowest = max(slowest, cost)
    return max(total + costs.bubbles.of(len(pipeline)) * slowest, costs.pp * slowest)


def pack_modes(pipeline_class: PipelineClass, lengths: Sequence[int]) -> list[list[int]]:
    """Pack positions of ``lengths`` into micro-batches of one pipeline without stages."""
    if not lengths:
        return []
    distinct, counts = np.unique(np.asarray(lengths, dtype=np.int64), return_counts=True)
    tables = FillTables(distinct[::-1].copy())
    places: dict[int, list[int]] = {}
    for j, length in enumerate(lengths):
        places.setdefault(length, []).append(j)
    fill = PythonFill(tables, counts[::-1])
    fill.fill_class(tables.find_costs(pipeline_class), 1, tables.lengths[0], 0, 1e18)
    (((packed,), _),) = fill.placements()
    return [
        [places[tables.lengths[i]].pop() for i, n in micro for _ in range(n)] for micro in packed
    ]
