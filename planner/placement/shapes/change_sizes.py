"""Other sizes for a pipeline's micro-batches, if its sequences then exceed its limits by less.

Equal arguments give equal results, in Python and compiled (``sized.c``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqplan.planner.placement.fill import kernel_state
from seqplan.planner.placement.fleet import Ints
from seqplan.planner.placement.shapes.assign_shapes import SPREAD, MicroBatches, SizedClass, Sizes
from seqplan.planner.placement.shapes.exchange_sized import ABOVE_ALL, NOTHING, SizedBatches

MOST_PACKED = 12
"""Choices of sizes at most that a pipeline's sequences are packed into."""


@dataclass(frozen=True)
class _Limits:
    """A pipeline: its limit, its work, the sum of its sizes (tokens) and its excess (GPU-ms)."""

    limit_ms: float
    work_ms: float
    sum: float
    excess: float
    spread: float
    gpus: float
    b: float
    above_all: float


def change_sizes(
    k: SizedClass,
    batches: SizedBatches,
    order: Ints,
    pipeline: int,
    sizes: Sizes,
    limit_ms: float,
    spread: float = SPREAD,
) -> tuple[Sizes, MicroBatches] | None:
    """Choose sizes with the least excess of a pipeline, and pack its sequences.

    ``k``: its class; ``order``: all sequences, the longest first; ``sizes``: present ones;
    ``spread``: the share of the time of a larger sum that counts as excess. None if no others leave
    less.
    """
    choices = k.list_choices(len(sizes))
    first, last = np.searchsorted(batches.pipeline, [pipeline, pipeline + 1]).tolist()
    limits = _Limits(
        limit_ms,
        float(batches.work_ms[pipeline]),
        float(sum(sizes)),
        batches.compute_excess(pipeline, limit_ms) - 1e-6,
        spread,
        float(batches.gpus[pipeline]),
        k.pipeline_class.b,
        ABOVE_ALL,
    )
    padded = batches.padded[batches.row[pipeline]]
    if kernel_state() == "compiled":
        from seqplan.planner.placement import fill_kernel

        of_batch = (padded, batches.squares, batches.owner, order)
        of_choices = (choices.places, choices.sums, choices.fixed_ms)
        choice, fullest = fill_kernel.choose_sizes(
            (*of_batch, *of_choices, k.tokens, k.a, k.b),
            tuple(vars(limits).values()),
            (first, last, MOST_PACKED),
        )
    ordered = order[(batches.owner[order] >= first) & (batches.owner[order] < last)].tolist()
    tokens: list[float] = padded[ordered].tolist()
    if kernel_state() != "compiled":
        squares: list[float] = batches.squares[ordered].tolist()
        choice, fullest = _choose_in_python(k, len(sizes), tokens, squares, limits)
    if choice == NOTHING:
        return None
    chosen = k.list_sizes(choices, choice)
    packed = _pack(tokens, chosen, fullest=bool(fullest))[0]
    return chosen, [[ordered[j] for j in micro] for micro in packed]


def _choose_in_python(
    k: SizedClass,
    number: int,
    tokens: Sequence[float],
    squares: Sequence[float],
    limits: _Limits,
) -> tuple[int, bool]:
    choices, gpus = k.list_choices(number), limits.gpus
    least, best = limits.excess, (NOTHING, False)
    by_work_ms = choices.fixed_ms + limits.work_ms - limits.limit_ms
    by_tokens_ms = (sum(tokens) - choices.sums) * limits.b
    more = limits.spread * gpus * limits.b * np.maximum(choices.sums - limits.sum, 0.0)
    at_least = np.maximum(gpus * np.maximum(by_work_ms, by_tokens_ms), 0.0) + more
    for choice in np.argsort(at_least, kind="stable")[:MOST_PACKED].tolist():
        if at_least[choice] >= least:
            break
        sizes = k.list_sizes(choices, choice)
        for fullest in (True, False):
            packed, held = _pack(tokens, sizes, fullest=fullest)
            work_ms, excess = float(choices.fixed_ms[choice]), 0.0
            for size, micro, n in zip(sizes, packed, held, strict=True):
                above = max(n - size, 0.0) + ABOVE_ALL * max(n - k.sizes[-1], 0.0)
                excess += k.modes[size].b * above
                work_ms += k.modes[size].a * sum([squares[j] for j in micro])
            excess += max(work_ms - limits.limit_ms, 0.0)
            excess = gpus * excess + float(more[choice])
            if excess < least:
                least, best = excess, (choice, fullest)
    return best


def _pack(
    tokens: Sequence[float], sizes: Sizes, *, fullest: bool
) -> tuple[MicroBatches, list[float]]:
    """Pack sequences into the fullest or emptiest micro-batch that holds them; with their tokens.

    If none does, into that of most room.
    """
    room = [float(size) for size in sizes]
    packed: MicroBatches = [[] for _ in sizes]
    for j, padded in enumerate(tokens):
        fitting = [left for left in room if left >= padded] if fullest else ()
        place = room.index(min(fitting) if fitting else max(room))
        packed[place].append(j)
        room[place] -= padded
    return packed, [size - left for size, left in zip(sizes, room, strict=True)]
