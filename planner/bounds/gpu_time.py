"""A lower bound over all plans of some schemes: GPU-time, and long sequences one after another.

It holds for any strategy, for groups that regroup within the step, and for several layouts. A plan
that ends by T runs each sequence on a class that finishes it alone by T. On those classes

- all sequences together take no more than gpus·T of GPU-time;
- sequences that only groups of g GPUs or more can run have m = ⌊gpus/g⌋ places side by side. A
  group of G GPUs takes ⌊G/g⌋ of them, so that together they take no more than m·T of their time;
  and of the q·m + 1 longest, some q + 1 run one after another in one place, which ends by T.
- a rank that runs V micro-batches has T − V·c for work, with bubbles T·V / (V + μ) − V·c, and
  they hold V times its part of the tokens of one: a rank with few of them lacks tokens or
  recomputes, one with many lacks time.

All of these fall as T grows, because more classes finish a sequence in time. The bound is the least
T that none of them exceeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.place_counts import NO_BUBBLES, PlaceCounts
from seqplan.planner.bounds.resources import ROUNDING
from seqplan.planner.placement.bubbles import list_bubbles
from seqplan.planner.placement.fleet import MOST, Floats, Ints, PipelineClass

GROWTH, TOLERANCE = 1.01, 5e-4
"""Factor by which a time grows until micro-batches may fit, and relative width of the bisection."""

MOST_IN_A_ROW = 64
"""Sequences in one place that are counted at most; with more of them the GPU-time binds."""


def gpu_ms(classes: Sequence[PipelineClass], lengths: Ints) -> Floats:
    """Compute the GPU-time (classes, n) of each length on each class.

    With its tokens' share of c (``work_with_overhead_ms``); infinite if a class does not hold it.
    """
    if any(k.modes for k in classes):
        return np.array(
            [
                np.where(
                    k.padded(lengths) <= k.capacity,
                    k.gpus * k.work_with_overhead_ms(lengths),
                    np.inf,
                )
                for k in classes
            ]
        )
    a, b, c = (
        np.array([[coefficient] for coefficient in column])
        for column in zip(*((k.a, k.b, k.c / k.capacity) for k in classes), strict=True)
    )
    tokens = lengths.astype(np.float64)
    padded = np.array([k.padded(lengths) for k in classes])
    gpus = np.array([[k.gpus] for k in classes])
    capacity = np.array([[k.capacity] for k in classes])
    cost = gpus * (tokens * (a * tokens + b) + padded * c)
    return np.where(lengths <= capacity, cost, np.inf)


def gpu_time_bound_ms(classes: Sequence[PipelineClass], batch: Batch, gpus: int) -> float:
    """Bound every plan of these classes on ``gpus`` GPUs (ms); inf if none holds a sequence."""
    return bound_demand_ms(Demand.from_batch(tuple(classes), batch, gpus))


def bound_demand_ms(demand: Demand) -> float:
    """Bound every plan of a demand (ms); inf if no class holds a sequence."""
    least_ms = demand.area_ms()
    if np.isfinite(least_ms):
        in_places = demand.in_places_ms(least_ms)
        if in_places > least_ms:
            least_ms = _least_time(demand, least_ms, in_places)
    if not np.isfinite(least_ms):
        return least_ms
    return _raise_by_counts(demand, least_ms) * (1 - ROUNDING)


def _raise_by_counts(demand: Demand, low_ms: float) -> float:
    """Raise a time that is a bound as far as whole micro-batches refute more (ms)."""
    if demand.fits_in_counts(low_ms):
        return low_ms
    high_ms = low_ms * GROWTH
    while not demand.fits_in_counts(high_ms):
        low_ms, high_ms = high_ms, high_ms * GROWTH
    while high_ms - low_ms > TOLERANCE * high_ms:
        middle_ms = (low_ms + high_ms) / 2
        if demand.fits_in_counts(middle_ms):
            high_ms = middle_ms
        else:
            low_ms = middle_ms
    return low_ms


def area_only_bound_ms(classes: Sequence[PipelineClass], batch: Batch, gpus: int) -> float:
    """Bound as ``gpu_time_bound_ms`` by GPU-time alone, in a third of its time.

    The batch keeps the result.
    """
    key = area_only_bound_ms, tuple(classes), gpus
    bound_ms = batch.memo.get(key)
    if not isinstance(bound_ms, float):
        bound_ms = Demand.from_batch(tuple(classes), batch, gpus).area_ms() * (1 - ROUNDING)
        batch.memo[key] = bound_ms
    return bound_ms


def _least_time(demand: Demand, low_ms: float, high_ms: float) -> float:
    """Find the least time, from one on, no less than places need by then (ms)."""
    # Between the times at which a class ends one more sequence, nothing changes.
    steps = demand.alone_ms[(demand.alone_ms > low_ms) & (demand.alone_ms < high_ms)]
    times = np.concatenate([[low_ms], np.unique(steps), [high_ms]])
    least = high_ms
    first, last = 0, len(times) - 1
    while first < last:
        middle = (first + last) // 2
        needed_ms = demand.in_places_ms(float(times[middle]))
        if needed_ms < times[middle + 1]:
            least = min(least, max(float(times[middle]), needed_ms))
            last = middle
        else:
            first = middle + 1
    return least


def least_areas(alone_ms: Floats, areas_ms: Floats, counts: Ints) -> tuple[Floats, Floats]:
    """List times by which all sequences may have to end, with the least GPU-time (ms).

    From the least time by which every sequence ends alone, each at which one of them can take a
    class that needs less. ``alone_ms``, ``areas_ms`` (classes, n): of each length alone, infinite
    if the class does not hold it; ``counts`` (n,): sequences of each.
    """
    fastest_first = np.argsort(alone_ms, axis=0, kind="stable")
    alone_ms = np.take_along_axis(alone_ms, fastest_first, axis=0)
    areas = np.take_along_axis(areas_ms, fastest_first, axis=0)
    areas = np.minimum.accumulate(areas, axis=0)
    cheaper = areas[1:] < areas[:-1]
    with np.errstate(invalid="ignore"):  # infinite less infinite, which is not cheaper
        saved = ((areas[:-1] - areas[1:]) * counts)[cheaper]
    from_ms = alone_ms[1:][cheaper]
    in_order = np.argsort(from_ms, kind="stable")
    shortest_ms = alone_ms[0].max()
    longest_ms = np.concatenate([[shortest_ms], np.maximum(from_ms[in_order], shortest_ms)])
    saved_so_far = np.concatenate([[0.0], np.cumsum(saved[in_order])])
    return longest_ms, float(areas[0] @ counts) - saved_so_far


@dataclass(frozen=True)
class Demand:
    """What sequences need of ``classes``: times and GPU-times (classes, n) of distinct lengths.

    ``alone_ms``: of a sequence alone in a pipeline; ``work_ms``: of one stage, without overhead;
    ``shared_ms``: with its tokens' share of a micro-batch's overhead. ``full_ms``: as ``work_ms``,
    as far as it adds up over all ranks. ``alone_ms``, ``shared_ms`` and ``gpu_ms`` are infinite if
    the class does not hold it. ``place_gpus``: ranks that run equally many micro-batches whatever
    their groups.
    """

    classes: tuple[PipelineClass, ...]
    gpus: int
    counts: Ints
    padded: Ints
    alone_ms: Floats
    work_ms: Floats
    shared_ms: Floats
    gpu_ms: Floats
    full_ms: Floats
    place_gpus: int = 1

    @classmethod
    def from_batch(cls, classes: tuple[PipelineClass, ...], batch: Batch, gpus: int) -> Demand:
        """Compute the times of a batch; each recomputation mode is a separate class.

        Statements on a class hold for its micro-batches, each of which has one mode.
        """
        classes = tuple(mode for k in classes for mode in k.by_mode)
        lengths = batch.distinct
        area_ms = gpu_ms(classes, lengths)
        work_ms = np.array([k.work_ms(lengths) for k in classes])
        stages = np.array([[float(k.pp)] for k in classes])
        alone_ms = stages * (work_ms + np.array([[k.c] for k in classes]))
        held = np.isfinite(area_ms)
        sizes = np.array([[float(k.gpus)] for k in classes])
        return cls(
            classes,
            gpus,
            batch.multiplicity,
            np.array([k.padded(lengths) for k in classes]),
            np.where(held, alone_ms, np.inf),
            work_ms,
            area_ms / sizes,
            area_ms,
            work_ms,
        )

    def area_ms(self) -> float:
        """Compute the least time at which the GPUs can hold all sequences (ms)."""
        shortest_ms = float(self.alone_ms.min(axis=0).max())
        if not np.isfinite(shortest_ms):
            return np.inf
        low_ms = max(shortest_ms, float(self.gpu_ms.min(axis=0) @ self.counts) / self.gpus)
        first_ms = self._least_gpu_ms(low_ms)
        high_ms = float(first_ms @ self.counts) / self.gpus
        if high_ms <= low_ms:
            return low_ms
        # Only these lengths can still take another class; mostly they are few.
        open_ = self._least_gpu_ms(high_ms) < first_ms
        if not open_.any():
            return high_ms
        settled_ms = float(first_ms[~open_] @ self.counts[~open_])
        longest_ms, areas = least_areas(
            self.alone_ms[:, open_], self.gpu_ms[:, open_], self.counts[open_]
        )
        times = np.maximum(longest_ms, (areas + settled_ms) / self.gpus)
        return max(low_ms, float(times.min(initial=high_ms)))

    def _least_gpu_ms(self, time_ms: float) -> Floats:
        """Return the least GPU-time of each length that ends by a time alone (ms)."""
        least: Floats = np.where(self.alone_ms <= time_ms, self.gpu_ms, np.inf).min(axis=0)
        return least

    def fits_in_counts(self, time_ms: float) -> bool:
        """Whether places with whole numbers of micro-batches may hold all sequences by a time.

        A place is a rank, or ``place_gpus`` ranks that run equally many, on whatever groups.
        """
        ends = self.alone_ms <= time_ms * (1 + ROUNDING)
        # Only these decide: times of a search mostly differ in nothing here.
        key = np.count_nonzero(ends, axis=1).tobytes()
        if key not in self._known_counts:
            self._known_counts[key] = self._count_places(ends)
        return self._known_counts[key].may_hold_by(time_ms)

    def _count_places(self, ends: npt.NDArray[np.bool_]) -> PlaceCounts:
        """Sum what sequences take of places, on classes on which each ``ends``."""
        parts = self.sizes / self.place_gpus
        overhead = float(self.overheads.min())
        # Of a larger overhead each token pays its share of what it is above the least.
        more = (self.overheads - overhead) / self.capacities * self.padded
        return PlaceCounts.from_work(
            np.where(ends, parts * (self.full_ms + more), np.inf),
            np.where(ends, self.padded, np.iinfo(np.int64).max).min(axis=0),
            self.counts,
            (self.capacities / parts)[:, 0],
            overhead,
            self.gpus // self.place_gpus,
            self.bubbles_of_mean,
        )

    @cached_property
    def _known_counts(self) -> dict[bytes, PlaceCounts]:
        return {}

    def in_places_ms(self, time_ms: float) -> float:
        """Compute what places need at least if each sequence ends by ``time_ms`` (ms)."""
        ends = self.alone_ms <= time_ms * (1 + ROUNDING)
        smallest = np.where(ends, self.sizes, np.iinfo(np.int64).max).min(axis=0)
        needed = 0.0
        for size in sorted({k.gpus for k in self.classes}):
            last = int((smallest >= size).sum())  # the longest need the largest groups
            if not last:
                break
            places = self.gpus // size
            if not places:
                return np.inf
            large = ends[:, :last] & (self.sizes >= size)
            needed = max(needed, self._in_places(large, size, places))
        return needed

    def _in_places(self, runs: npt.NDArray[np.bool_], size: int, places: int) -> float:
        """Compute the least need of the longest sequences in places of ``size`` GPUs (ms).

        ``runs`` (classes, longest): which class may run which.
        """
        last = runs.shape[1]
        counts = self.counts[:last]
        number = int(counts.sum())
        needed = 0.0
        if self.gpus % size:
            taken_places = np.maximum(self.sizes // size, 1)
            taken = np.where(runs, taken_places * self.shared_ms[:, :last], np.inf)
            needed = float(taken.min(axis=0) @ counts) / places
        rows = min((number - 1) // places, MOST_IN_A_ROW)
        if rows < 1:
            return needed
        # By position, longest first, as far as they are counted.
        position = np.repeat(np.arange(last), np.minimum(counts, rows * places + 1))
        position = position[: rows * places + 1]
        last = int(position[-1]) + 1
        runs = runs[:, :last]

        def least(times: Floats) -> Floats:
            """Return the least of the classes that may run each position."""
            of_lengths: Floats = np.where(runs, times, np.inf).min(axis=0)
            of_positions: Floats = np.asarray(of_lengths[position])
            return of_positions

        alone_ms = self.work_ms[:, :last] + self.overheads
        ends = np.arange(1, rows + 1) * places + 1
        starts = ends - np.arange(1, rows + 1) - 1

        def in_a_row(times: Floats) -> Floats:
            """Sum the least times of those that run one after another, by their number."""
            sums = np.concatenate([[0.0], np.cumsum(least(times))])
            in_rows: Floats = sums[ends] - sums[starts]
            return in_rows

        overhead = least(np.broadcast_to(self.overheads, runs.shape))[ends - 1]
        row_ms = np.maximum(
            in_a_row(self.shared_ms[:, :last]), in_a_row(self.work_ms[:, :last]) + overhead
        )
        # Above half of every micro-batch that may hold it, a sequence shares none.
        large = np.asarray(2 * self.padded[:, :last] > self.capacities)
        alone = np.all(~runs | large, axis=0, keepdims=True)[0, position]
        row_ms = np.where(alone[ends - 1], np.maximum(row_ms, in_a_row(alone_ms)), row_ms)
        if self.bubbles.any():  # the longest of a row counts once more for each bubble
            row_ms += least(self.bubbles * np.where(runs, alone_ms, 0.0))[starts]
        return max(needed, float(row_ms.max()))

    @cached_property
    def sizes(self) -> Ints:
        """Return the GPUs of each class, (classes, 1)."""
        return np.array([[k.gpus] for k in self.classes], dtype=np.int64)

    @cached_property
    def capacities(self) -> Ints:
        """Return the tokens of a micro-batch of each class, (classes, 1)."""
        return np.array([[k.capacity] for k in self.classes], dtype=np.int64)

    @cached_property
    def overheads(self) -> Floats:
        """Return the overhead of a micro-batch of each class (ms), (classes, 1)."""
        return np.array([[k.c] for k in self.classes])

    @cached_property
    def bubbles_of_mean(self) -> Floats:
        """Return the least with 1, 2, … micro-batches, at last with more, of any modes."""
        stages = sorted({k.pp for k in self.classes})
        if stages[0] == 1:
            return NO_BUBBLES
        least = min(k.least_forward_fraction for k in self.classes)
        most = max(k.forward_fraction for k in self.classes)
        of_stages = [list_bubbles(pp, least, most, 2 * MOST)[0] for pp in stages]
        return np.append(np.min(of_stages, axis=0), self.bubbles.min())

    @cached_property
    def bubbles(self) -> Floats:
        """Return the least bubbles of each class, (classes, 1)."""
        return np.array([[k.least_bubbles] for k in self.classes])


def single_bound_ms(classes: Sequence[PipelineClass], batch: Batch) -> float:
    """Time the longest sequence alone on the scheme fastest for it (ms); inf if none can hold it.

    pp·(a·l² + b·l + c) rises with l and eligibility falls, so only the longest matters.
    """
    longest = batch.longest
    times = [
        mode.pp * (longest * (mode.a * longest + mode.b) + mode.c)
        for pipeline_class in classes
        for mode in pipeline_class.by_mode
        if longest <= mode.capacity
    ]
    return min(times, default=float("inf"))


def area_bound_ms(classes: Sequence[PipelineClass], batch: Batch) -> float:
    """Compute a lower bound (ms) from all work at weighted speeds; takes microseconds.

    With a weight y_k per pipeline of class k and Σ count_k·y_k = 1, the slowest pipeline is at
    least the weighted mean of all, so at least Σ_sequences min_k y_k·work_k. Weights inverse to
    each class's time for the whole batch make the classes about equally dear. Tokens need
    micro-batches, at least tokens/MaxLen of them, and so count for their share of c.
    """
    work = np.stack([k.work_with_overhead_ms(batch.distinct) for k in classes])
    return weigh_work_ms(work, [k.count for k in classes], batch)


def weigh_work_ms(work: Floats, pipelines: Sequence[int], batch: Batch) -> float:
    """Bound a step (ms) as ``area_bound_ms``, by the ``work`` (classes, lengths) of each class."""
    weights = 1.0 / (work @ batch.multiplicity)
    weights /= weights @ np.array(pipelines)
    return float((weights[:, None] * work).min(axis=0) @ batch.multiplicity) * (1 - ROUNDING)


def cheap_bound_ms(classes: Sequence[PipelineClass], batch: Batch) -> float:
    """Return the larger of the bounds that take microseconds: one sequence alone, and area."""
    return max(single_bound_ms(classes, batch), area_bound_ms(classes, batch))
