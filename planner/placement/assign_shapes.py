"""Sizes of each pipeline's micro-batches, and sequences assigned to fill them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import combinations_with_replacement
from math import ceil, floor

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fleet import ClassMode, Floats, Ints, PipelineClass

CHOSEN_FREELY = 3
"""Micro-batches of a pipeline whose sizes are free; any others have the cheapest for a token."""

BUCKETS = 64
"""Sums of sizes that are distinguished, for each of the largest size."""

SPREAD = 0.1
"""Share of the time between two sums of sizes that is added to the cost of the larger."""

WORK_FIRST = 0.97
"""Share of the work, in the longest sequences, that is assigned by work; the rest fills up."""

Sizes = tuple[int, ...]
MicroBatches = list[list[int]]


class SizedClass:
    """A class of pipelines without stages, and its sizes of micro-batches (tokens, ascending)."""

    def __init__(self, pipeline_class: PipelineClass, sizes: Sequence[int]) -> None:
        self.pipeline_class, self.sizes = pipeline_class, tuple(sizes)
        self.find_mode = cache(self._find_mode)
        self.compute_fixed_ms = cache(self._compute_fixed_ms)
        self.list_choices = cache(self._list_choices)

    def _find_mode(self, size: int) -> ClassMode:
        return self.pipeline_class.choose_mode([size], size)

    def _compute_fixed_ms(self, chosen: Sizes) -> float:
        """Compute the time of micro-batches of these sizes, without a·l² (ms)."""
        return sum(size * mode.b + mode.c for size in chosen for mode in [self.find_mode(size)])

    def _list_choices(self, number: int) -> tuple[list[Sizes], Floats, Floats]:
        """List sizes of about so many micro-batches, with their sums and times without a·l²."""
        free = min(number, CHOSEN_FREELY)
        descending = self.sizes[::-1]
        cheapest = min(descending, key=lambda size: self.compute_fixed_ms((size,)) / size)
        base = (cheapest,) * (number - free)
        choices = [
            tuple(sorted(base + chosen, reverse=True))
            for more in range(free + 2)
            for chosen in combinations_with_replacement(descending, more)
            if base + chosen
        ]
        sums = np.array([float(sum(sizes)) for sizes in choices])
        return choices, sums, np.array([self.compute_fixed_ms(sizes) for sizes in choices])

    def list_fastest(self, number: int) -> list[Sizes]:
        """List sizes of about so many micro-batches, of those with near sums the fastest."""
        best: dict[int, tuple[float, Sizes]] = {}
        for sizes in self.list_choices(number)[0]:
            bucket = sum(sizes) * BUCKETS // self.sizes[-1]
            entry = (self.compute_fixed_ms(sizes), sizes)
            best[bucket] = min(best.get(bucket, entry), entry)
        return [sizes for _, sizes in best.values()]


def assign_sizes(
    classes: Sequence[SizedClass],
    batch: Batch,
    micro_batches: Sequence[MicroBatches],
    slack: float,
    limit_ms: float,
) -> tuple[list[Sizes], list[MicroBatches]] | None:
    """Choose sizes of each pipeline, and assign the sequences of each class."""
    sizes: list[Sizes] = [()] * len(classes)
    assigned: list[MicroBatches] = [[] for _ in classes]
    for k in dict.fromkeys(classes):
        places = [place for place, other in enumerate(classes) if other is k]
        items = [i for place in places for micro in micro_batches[place] for i in micro]
        if not items:
            continue
        number = sum(len(micro_batches[place]) for place in places) / len(places)
        chosen = _choose_sizes(k, batch, items, number, len(places), slack, limit_ms)
        if chosen is None:
            return None
        for place, of, content in zip(
            places, chosen, _assign_class(k, batch, items, chosen, limit_ms), strict=True
        ):
            sizes[place], assigned[place] = of, content
    return sizes, assigned


def _choose_sizes(
    k: SizedClass,
    batch: Batch,
    items: Sequence[int],
    number: float,
    pipelines: int,
    slack: float,
    limit_ms: float,
) -> list[Sizes] | None:
    """Choose sizes of pipelines of a class, by ascending sum; of two kinds at most."""
    pad = k.pipeline_class.pad
    longest = max(pad(batch.lengths[i]) for i in items)
    numbers = {max(floor(number), 1), ceil(number)}
    choices = sorted({sizes for n in numbers for sizes in k.list_fastest(n)})
    choices = [sizes for sizes in choices if k.compute_fixed_ms(sizes) <= limit_ms]
    if not choices:
        return None
    tokens = np.array([sum(sizes) for sizes in choices], dtype=np.float64)
    fixed_ms = np.array([k.compute_fixed_ms(sizes) for sizes in choices])
    needed = (1 + slack) * sum(pad(batch.lengths[i]) for i in items)
    low, high = tokens[:, None], tokens[None]
    valid = (low * pipelines <= needed) & (high * pipelines > needed)
    holds = np.array([sizes[0] >= longest for sizes in choices])
    valid &= holds[:, None] | holds[None]
    larger = np.ceil((needed - pipelines * low) / np.where(valid, high - low, 1.0) - 1e-9)
    spread_ms = SPREAD * k.pipeline_class.b * pipelines * (high - low)
    cost_ms = (pipelines - larger) * fixed_ms[:, None] + larger * fixed_ms[None] + spread_ms
    cost_ms = np.where(valid, cost_ms, np.inf)
    i, j = divmod(int(cost_ms.argmin()), len(choices))
    if not valid[i, j]:
        return None
    return [choices[i]] * int(pipelines - larger[i, j]) + [choices[j]] * int(larger[i, j])


def _assign_class(
    k: SizedClass, batch: Batch, items: Sequence[int], sizes: Sequence[Sizes], limit_ms: float
) -> list[MicroBatches]:
    """Assign sequences, the longest first: to most work left, the short ones to most room."""
    pad = k.pipeline_class.pad
    pipeline: Ints = np.repeat(np.arange(len(sizes)), [len(of) for of in sizes])
    room = np.array([size for of in sizes for size in of], dtype=np.float64)
    of_pipeline = np.array([sum(of) for of in sizes], dtype=np.float64)
    left = of_pipeline.copy()
    a = np.array([k.find_mode(size).a for of in sizes for size in of])
    work_left = np.array([limit_ms - k.compute_fixed_ms(of) for of in sizes])
    contents: list[list[int]] = [[] for _ in room]
    squares = {i: float(batch.lengths[i]) ** 2 for i in items}
    to_assign = WORK_FIRST * sum(squares.values())
    for i in sorted(items, key=lambda i: (-batch.lengths[i], i)):
        tokens = pad(batch.lengths[i])
        by_work = to_assign > 0
        holding = np.flatnonzero(room >= tokens)
        if len(holding):
            first = work_left if by_work else left / of_pipeline
            then = -room if by_work else room
            place = int(holding[np.lexsort((-then[holding], -first[pipeline[holding]]))[0]])
        else:
            place = int(room.argmax())
        contents[place].append(i)
        room[place] -= tokens
        left[pipeline[place]] -= tokens
        work_left[pipeline[place]] -= a[place] * squares[i]
        to_assign -= squares[i]
    assigned: list[MicroBatches] = [[] for _ in sizes]
    for place, content in zip(pipeline.tolist(), contents, strict=True):
        assigned[place].append(content)
    return assigned
