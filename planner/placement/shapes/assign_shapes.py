"""Sizes of each pipeline's micro-batches, and sequences assigned to fill them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement
from math import ceil, floor

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fill import kernel_state
from seqplan.planner.placement.fleet import Floats, Ints, PipelineClass
from seqplan.planner.placement.shapes.exchange_sized import NOTHING

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


@dataclass(frozen=True, eq=False)
class SizeChoices:
    """Sizes of a pipeline's micro-batches to choose from.

    ``places`` (choices, most micro-batches): of each size, the largest first, its place among the
    sizes of the class; ``NOTHING`` behind them. ``sums`` (tokens) and ``fixed_ms``: of each choice.
    """

    places: Ints
    sums: Floats
    fixed_ms: Floats


class SizedClass:
    """A class of pipelines without stages, and its sizes of micro-batches (tokens, ascending)."""

    def __init__(self, pipeline_class: PipelineClass, sizes: Sequence[int]) -> None:
        self.pipeline_class, self.sizes = pipeline_class, tuple(sizes)
        self.modes = {size: pipeline_class.choose_mode([size], size) for size in self.sizes}
        modes = self.modes.values()
        self.tokens: Floats = np.array(self.sizes, dtype=np.float64)
        self.a: Floats = np.array([mode.a for mode in modes])
        self.b: Floats = np.array([mode.b for mode in modes])
        self._fixed_ms = {size: size * mode.b + mode.c for size, mode in self.modes.items()}
        self.list_choices = cache(self._list_choices)
        self.list_fastest = cache(self._list_fastest)

    def compute_fixed_ms(self, chosen: Sizes) -> float:
        """Compute the time of micro-batches of these sizes, without a·l² (ms)."""
        fixed_ms = 0.0  # not sum(), as in estimate_ms
        for size in chosen:
            fixed_ms += self._fixed_ms[size]
        return fixed_ms

    def list_sizes(self, choices: SizeChoices, choice: int) -> Sizes:
        """List the sizes of a choice, the largest first."""
        return tuple(self.sizes[k] for k in choices.places[choice].tolist() if k != NOTHING)

    def _list_choices(self, number: int) -> SizeChoices:
        """List sizes of about so many micro-batches."""
        free = min(number, CHOSEN_FREELY)
        descending = range(len(self.sizes))[::-1]
        cheapest = min(descending, key=lambda k: self._fixed_ms[self.sizes[k]] / self.sizes[k])
        rows = [
            [*sorted((*base, *chosen), reverse=True), *(NOTHING,) * (free + 1 - more)]
            for base in [(cheapest,) * (number - free)]
            for more in range(free + 2)
            for chosen in combinations_with_replacement(descending, more)
            if base or chosen
        ]
        places: Ints = np.array(rows, dtype=np.int64)
        fixed_ms = np.array([*(self._fixed_ms[size] for size in self.sizes), 0.0])
        sums, of_choice = np.zeros(len(rows)), np.zeros(len(rows))
        for column in places.T:
            sums += np.append(self.tokens, 0.0)[column]
            of_choice += fixed_ms[column]
        return SizeChoices(places, sums, of_choice)

    def _list_fastest(self, number: int) -> list[Sizes]:
        """List sizes of about so many micro-batches, of those with near sums the fastest."""
        choices = self.list_choices(number)
        bucket = choices.sums.astype(np.int64) * BUCKETS // self.sizes[-1]
        order = np.lexsort((*choices.places.T[::-1], choices.fixed_ms, bucket))
        first = np.append(True, np.diff(bucket[order]) > 0)
        return [self.list_sizes(choices, choice) for choice in order[first].tolist()]


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
    ordered = sorted(items, key=lambda i: (-batch.lengths[i], i))
    lengths: Ints = np.array([batch.lengths[i] for i in ordered], dtype=np.int64)
    squares = lengths.astype(np.float64) ** 2
    of_place = [size for of in sizes for size in of]
    pipeline: Ints = np.repeat(np.arange(len(sizes)), [len(of) for of in sizes])
    rooms = _Rooms(
        tokens=k.pipeline_class.padded(lengths).astype(np.float64),
        squares=squares,
        room=np.array(of_place, dtype=np.float64),
        pipeline=pipeline,
        a=np.array([k.modes[size].a for size in of_place]),
        work_left=np.array([limit_ms - k.compute_fixed_ms(of) for of in sizes]),
        sums=np.array([sum(of) for of in sizes], dtype=np.float64),
        places=np.zeros(len(ordered), dtype=np.int64),
    )
    _assign(rooms, WORK_FIRST * float(squares.sum()))
    contents: list[list[int]] = [[] for _ in of_place]
    for i, place in zip(ordered, rooms.places.tolist(), strict=True):
        contents[place].append(i)
    assigned: list[MicroBatches] = [[] for _ in sizes]
    for p, content in zip(pipeline.tolist(), contents, strict=True):
        assigned[p].append(content)
    return assigned


@dataclass
class _Rooms:
    """Micro-batches to assign sequences to, and the sequences, the longest first.

    By sequence: ``tokens``, ``squares`` (tokens²) and ``places``, which are set. By micro-batch:
    ``room`` (tokens), ``pipeline`` and ``a``. By pipeline: ``work_left`` (ms) and ``sums`` of
    sizes (tokens).
    """

    tokens: Floats
    squares: Floats
    room: Floats
    pipeline: Ints
    a: Floats
    work_left: Floats
    sums: Floats
    places: Ints


def _assign(rooms: _Rooms, to_assign: float) -> None:
    """Assign each sequence, by work while squares are ``to_assign``; compiled or in Python."""
    if kernel_state() == "compiled":
        from seqplan.planner.placement import fill_kernel

        fill_kernel.assign_sized(tuple(vars(rooms).values()), to_assign)
        return
    room, pipeline, work_left, left = rooms.room, rooms.pipeline, rooms.work_left, rooms.sums.copy()
    for i, (tokens, squares) in enumerate(zip(rooms.tokens, rooms.squares, strict=True)):
        holding = np.flatnonzero(room >= tokens)
        if len(holding):
            first, then = (work_left, -room) if to_assign > 0 else (left / rooms.sums, room)
            place = int(holding[np.lexsort((-then[holding], -first[pipeline[holding]]))[0]])
        else:
            place = int(room.argmax())
        rooms.places[i] = place
        room[place] -= tokens
        left[pipeline[place]] -= tokens
        work_left[pipeline[place]] -= rooms.a[place] * squares
        to_assign -= squares
