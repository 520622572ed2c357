"""Exchanges of sequences between micro-batches of given sizes, until all is within its limits.

Tokens above a size and work above the time limit are weighed in GPU-ms. The pipeline with the
largest excess gives up to two sequences of a micro-batch to another that has room, for up to two of
its: the best of some exchanges drawn at random. Equal arguments give equal results, in Python and
compiled (``sized.c``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqplan.planner.placement.draws import Draws
from seqplan.planner.placement.fill import kernel_state
from seqplan.planner.placement.fleet import Floats, Ints

DRAWN, BLOCK = 3_000, 100
"""Exchanges drawn at most for one that is made, and how many are compared: the best is made.
Measured on steps of 8K to 32K: with 1,000 draws extra tokens rise from 0.2 to 1.1 % (llama3-8b, 16K
Wikipedia, 4 sizes), for two thirds of the CPU."""

ABOVE_ALL = 3.0
"""Weight, beyond 1, of tokens above the largest size, which no other sizes can hold."""

NOTHING = -1
"""Stands for no sequence and for no pipeline."""

LEAST_EXCESS, LEAST_GAIN = 1e-9, 1e-7
"""Excess that counts (GPU-ms), and by how much an exchange has to lower it."""


@dataclass
class SizedBatches:
    """Micro-batches of given sizes, by place, with the sequences that they hold.

    By class and sequence: ``padded`` (tokens); by sequence ``squares`` (tokens²) and ``owner``, its
    place. By place: ``pipeline`` (ascending), ``sizes``, ``tokens``, ``a`` and ``weight`` (GPU-ms
    of a token above its size). By pipeline: ``row`` of its class, ``gpus``, ``largest`` size,
    ``fixed_ms``, ``work_ms`` (Σ a·l²), and ``settled`` if exchanges do not help it.
    """

    padded: Floats
    squares: Floats
    owner: Ints
    pipeline: Ints
    sizes: Floats
    tokens: Floats
    a: Floats
    weight: Floats
    row: Ints
    gpus: Floats
    largest: Floats
    fixed_ms: Floats
    work_ms: Floats
    settled: Ints

    def weigh_tokens(self, tokens: float, place: int) -> float:
        """Weigh the tokens of a micro-batch that are above its size (GPU-ms)."""
        above = max(tokens - self.sizes[place], 0.0)
        above_all = max(tokens - self.largest[self.pipeline[place]], 0.0)
        return float(self.weight[place] * (above + ABOVE_ALL * above_all))

    def weigh_work(self, work_ms: float, pipeline: int, limit_ms: float) -> float:
        """Weigh a pipeline's work that is above the limit (GPU-ms)."""
        left_ms = limit_ms - self.fixed_ms[pipeline]
        return float(self.gpus[pipeline] * max(work_ms - left_ms, 0.0))

    def compute_excess(self, pipeline: int, limit_ms: float) -> float:
        """Compute a pipeline's excess of tokens and work (GPU-ms)."""
        excess = 0.0
        for place in range(*np.searchsorted(self.pipeline, [pipeline, pipeline + 1])):
            excess += self.weigh_tokens(float(self.tokens[place]), place)
        excess += self.weigh_work(float(self.work_ms[pipeline]), pipeline, limit_ms)
        return excess if excess > LEAST_EXCESS else 0.0


def exchange_sized(
    batches: SizedBatches, limit_ms: float, most: int, draws: Draws
) -> tuple[int, int]:
    """Exchange sequences until no pipeline has an excess, or one is not helped.

    Those that are settled do not count. At most ``most`` exchanges. Changes ``batches``: owners,
    tokens, work, and which pipelines are settled. Returns the pipeline that no exchange helps, else
    ``NOTHING``, and how many were made.
    """
    if kernel_state() == "compiled":
        from seqplan.planner.placement import fill_kernel

        stuck, made, draws.state = fill_kernel.exchange_sized(
            tuple(vars(batches).values()),
            (limit_ms, ABOVE_ALL, LEAST_EXCESS, LEAST_GAIN),
            (DRAWN, BLOCK, most, draws.state),
        )
        return stuck, made
    return _Exchanges(batches, limit_ms, draws).run(most)


class _Exchanges:
    """The exchanges in Python, with the same operations as compiled."""

    def __init__(self, batches: SizedBatches, limit_ms: float, draws: Draws) -> None:
        self._all, self._limit_ms, self._draw = batches, limit_ms, draws
        self._excess = [
            batches.compute_excess(pipeline, limit_ms) for pipeline in range(len(batches.row))
        ]

    def run(self, most: int) -> tuple[int, int]:
        """Exchange up to ``most`` times; the pipeline that is stuck, and how many were made."""
        settled = self._all.settled
        for made in range(most):
            top = NOTHING
            for pipeline, excess in enumerate(self._excess):
                if not settled[pipeline] and excess > (self._excess[top] if top >= 0 else 0.0):
                    top = pipeline
            if top == NOTHING:
                return NOTHING, made
            changed = self._exchange(top)
            if changed == NOTHING:
                return top, made
            for pipeline in (top, changed):
                settled[pipeline] = 0
                self._excess[pipeline] = self._all.compute_excess(pipeline, self._limit_ms)
        return NOTHING, most

    def _draw_below(self, number: int) -> int:
        return int(self._draw() * number)

    def _exchange(self, top: int) -> int:
        """Make the best of drawn exchanges; the other pipeline, ``NOTHING`` if none helps."""
        b = self._all
        self._by_owner = np.argsort(b.owner, kind="stable")
        self._counts = np.bincount(b.owner, minlength=len(b.sizes))
        self._firsts = np.cumsum(self._counts) - self._counts
        works = b.weigh_work(float(b.work_ms[top]), top, self._limit_ms) > 0
        offered = [
            int(i)
            for place in range(*np.searchsorted(b.pipeline, [top, top + 1]))
            if works or b.weigh_tokens(float(b.tokens[place]), place) > 0
            for i in self._by_owner[self._firsts[place] :][: self._counts[place]]
        ]
        targets, takeable = self._list_targets(top, late=works)
        if not offered or not targets:
            return NOTHING
        best, least = None, -LEAST_GAIN
        for drawn in range(1, DRAWN + 1):
            given = offered[self._draw_below(len(offered))]
            source = int(b.owner[given])
            second = self._draw_second(given, source)
            drawn_taken, taken, other = (
                self._draw_below(len(takeable) + len(targets)),
                NOTHING,
                NOTHING,
            )
            if drawn_taken < len(takeable):
                taken = takeable[drawn_taken]
                target = int(b.owner[taken])
                other = self._draw_second(taken, target)
            else:
                target = targets[drawn_taken - len(takeable)]
            if source != target:
                exchange = (given, second, taken, other, source, target)
                change = self._weigh(top, *exchange)
                if change < least:
                    best, least = exchange, change
            if best is not None and drawn % BLOCK == 0:
                break
        return NOTHING if best is None else self._make(top, *best)

    def _list_targets(self, top: int, *, late: bool) -> tuple[list[int], list[int]]:
        """List the micro-batches that may help a pipeline, and their sequences.

        Those of other classes, and with room for its excess: work if it is late, and tokens if one
        of its micro-batches is above its size.
        """
        b = self._all
        places = range(*np.searchsorted(b.pipeline, [top, top + 1]))
        above = any(b.weigh_tokens(float(b.tokens[place]), place) > 0 for place in places)
        helps = b.row[b.pipeline] != b.row[top]
        if late:
            helps |= (b.work_ms < self._limit_ms - b.fixed_ms)[b.pipeline]
        if above:
            helps |= b.tokens < b.sizes
        targets = np.flatnonzero(helps).tolist()
        takeable = [
            int(i) for k in targets for i in self._by_owner[self._firsts[k] :][: self._counts[k]]
        ]
        return targets, takeable

    def _draw_second(self, first: int, place: int) -> int:
        """Draw another sequence of a micro-batch, or none."""
        if self._draw() < 0.5:
            return NOTHING
        second = int(self._by_owner[self._firsts[place] + self._draw_below(self._counts[place])])
        return NOTHING if second == first else second

    def _compute_changes(
        self, top: int, given: int, second: int, taken: int, other: int, target: int
    ) -> tuple[float, float, float]:
        """Compute the tokens into the first and the second micro-batch, and the squares."""
        b = self._all
        here, there = b.padded[b.row[top]], b.padded[b.row[b.pipeline[target]]]

        def add(values: Floats, one: int, two: int) -> float:
            return float(values[one] if one >= 0 else 0.0) + float(values[two] if two >= 0 else 0.0)

        into = add(here, taken, other) - add(here, given, second)
        out = add(there, given, second) - add(there, taken, other)
        return into, out, add(b.squares, taken, other) - add(b.squares, given, second)

    def _weigh(
        self, top: int, given: int, second: int, taken: int, other: int, source: int, target: int
    ) -> float:
        """Weigh how the excess changes (GPU-ms); infinite if a sequence fits no size."""
        b, limit_ms = self._all, self._limit_ms
        pipeline = int(b.pipeline[target])
        here, there = b.padded[b.row[top]], b.padded[b.row[pipeline]]
        if any(i >= 0 and here[i] > b.largest[top] for i in (taken, other)):
            return np.inf
        if any(i >= 0 and there[i] > b.largest[pipeline] for i in (given, second)):
            return np.inf
        into, out, more = self._compute_changes(top, given, second, taken, other, target)
        change = b.weigh_tokens(float(b.tokens[source]) + into, source)
        change -= b.weigh_tokens(float(b.tokens[source]), source)
        change += b.weigh_tokens(float(b.tokens[target]) + out, target)
        change -= b.weigh_tokens(float(b.tokens[target]), target)
        target_ms = float(b.a[target]) * more
        top_ms = float(b.work_ms[top]) + float(b.a[source]) * more
        if pipeline == top:
            top_ms -= target_ms
        change += b.weigh_work(top_ms, top, limit_ms)
        change -= b.weigh_work(float(b.work_ms[top]), top, limit_ms)
        if pipeline != top:
            other_ms = float(b.work_ms[pipeline])
            change += b.weigh_work(other_ms - target_ms, pipeline, limit_ms)
            change -= b.weigh_work(other_ms, pipeline, limit_ms)
        return change

    def _make(
        self, top: int, given: int, second: int, taken: int, other: int, source: int, target: int
    ) -> int:
        b = self._all
        into, out, more = self._compute_changes(top, given, second, taken, other, target)
        for i, place in ((given, target), (second, target), (taken, source), (other, source)):
            if i >= 0:
                b.owner[i] = place
        b.tokens[source] += into
        b.tokens[target] += out
        b.work_ms[top] += float(b.a[source]) * more
        pipeline = int(b.pipeline[target])
        b.work_ms[pipeline] -= float(b.a[target]) * more
        return pipeline
