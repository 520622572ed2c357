"""Least cost of every plan in micro-steps, whatever its groups: how many micro-steps, and how long.

All are of one layout and counted at one stage: ``classes`` have the ranks of one stage, ``ranks``
are those of a stage, and the micro-steps go through ``stages`` of them one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Literal

import numpy as np

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import least_areas
from seqplan.planner.placement.fleet import Floats, Ints, PipelineClass


@dataclass(frozen=True)
class Sequences:
    """Distinct lengths (tokens, descending) and how many sequences have each."""

    lengths: Ints
    counts: Ints

    @property
    def tokens(self) -> int:
        """Return all tokens."""
        return int(self.lengths @ self.counts)


def stage_class(model: SchemeModel) -> PipelineClass:
    """Return a group of a scheme as one stage of it: its costs, and the ranks of a stage."""
    return replace(PipelineClass.from_model(model, 1), pp=1, gpus=model.scheme.stage_gpus)


def in_stages_ms(micro_steps_ms: Sequence[float], stages: int) -> float:
    """Time a step of micro-steps: each lasts so long at a stage, and all go through ``stages``.

    Form S: Σ micro-steps and, to fill and drain, (stages − 1) times the longest.
    """
    return sum(micro_steps_ms) + (stages - 1) * max(micro_steps_ms, default=0.0)


def micro_steps_bound_ms(
    classes: Sequence[PipelineClass], batch: Batch, ranks: float, micro_steps: int, stages: int = 1
) -> float:
    """Compute a lower bound (ms) on every plan of at least ``micro_steps`` micro-steps.

    If the longest micro-step lasts L, no group of the plan takes longer. On the groups that remain,
    GPU-time Σ min_g gpus_g·work_g spreads over all ranks, each micro-step pays the least overhead,
    and filling and draining take (stages − 1) times L, or the mean micro-step if that is longer.
    Where a group's overhead is larger, a token pays its share of the difference at least,
    (c − least c)/capacity: groups that take a part of a micro-step's ranks hold no more tokens. And
    the longest micro-step counts ``stages`` times, every other as long as one of the shortest
    sequences alone. That GPU-time falls as L grows past the time that a sequence takes alone in a
    cheaper group: of all such L the least counts. Groups that hold few tokens need more micro-steps
    than the fewest: whatever their number, a token pays c/capacity of its group at least.
    """
    overhead = min(pipeline_class.c for pipeline_class in classes)
    longest_ms, area = _least_areas(classes, batch, overhead="beyond")
    spread_ms = area / ranks
    most = max(micro_steps, len(batch.lengths)) if stages > 1 else micro_steps
    drained_ms = np.full(len(longest_ms), inf)
    for number in _best_numbers(spread_ms, longest_ms, overhead, stages):
        counted = np.clip(number, micro_steps, most)
        longest_or_mean = np.maximum(longest_ms, spread_ms / counted + overhead)
        drained_ms = np.minimum(
            drained_ms, spread_ms + counted * overhead + (stages - 1) * longest_or_mean
        )
    alone_ms = stages * longest_ms + _shortest_alone_ms(classes, batch, micro_steps - 1)
    paid_ms, paid_area = _least_areas(classes, batch, overhead="shared")
    by_tokens_ms = np.maximum(paid_ms, paid_area / ranks) + (stages - 1) * paid_ms
    bound_ms = max(float(np.maximum(drained_ms, alone_ms).min()), float(by_tokens_ms.min()))
    return bound_ms * (1 - 1e-9)


def _shortest_alone_ms(classes: Sequence[PipelineClass], batch: Batch, number: int) -> float:
    """Sum the least times alone of the ``number`` shortest sequences (ms)."""
    if not number:
        return 0.0
    lengths = np.repeat(batch.distinct[::-1], batch.multiplicity[::-1])[:number]
    alone_ms = [
        np.where(
            pipeline_class.padded(lengths) <= pipeline_class.capacity,
            pipeline_class.work_ms(lengths) + pipeline_class.c,
            inf,
        )
        for pipeline_class in classes
    ]
    overhead = min(pipeline_class.c for pipeline_class in classes)
    # Plans may have micro-steps without a sequence if there are fewer sequences than micro-steps.
    return float(np.min(alone_ms, axis=0).sum()) + overhead * (number - len(lengths))


def one_by_one_bound_ms(classes: Sequence[PipelineClass], batch: Batch, ranks: int) -> float:
    """Compute a lower bound (ms) for groups that run their sequences one by one.

    No sequence takes longer than the step. In groups in which none does, all of them take the least
    GPU-time with their overheads, spread over all ranks.
    """
    longest_ms, area = _least_areas(classes, batch, overhead="each")
    return float(np.maximum(longest_ms, area / ranks).min()) * (1 - 1e-9)


def _least_areas(
    classes: Sequence[PipelineClass],
    batch: Batch,
    *,
    overhead: Literal["beyond", "shared", "each"],
) -> tuple[Floats, Floats]:
    """List times of the longest micro-step, with the batch's least GPU-time then (ms).

    ``overhead``: of a micro-batch, that sequences pay: their tokens' share of it, of the part
    beyond the least of all classes, or all of it each. The batch keeps the result, which bounds of
    every number of micro-steps need.
    """
    key = _least_areas, tuple(classes), overhead
    areas = batch.memo.get(key)
    if not isinstance(areas, tuple):
        areas = batch.memo[key] = _compute_least_areas(classes, batch, overhead)
    return areas


def _compute_least_areas(
    classes: Sequence[PipelineClass],
    batch: Batch,
    overhead: Literal["beyond", "shared", "each"],
) -> tuple[Floats, Floats]:
    lengths, counts = batch.distinct, batch.multiplicity
    work = np.stack([pipeline_class.work_ms(lengths) for pipeline_class in classes])
    holds = np.stack(
        [pipeline_class.padded(lengths) <= pipeline_class.capacity for pipeline_class in classes]
    )
    sizes = np.array([[pipeline_class.gpus] for pipeline_class in classes], dtype=np.float64)
    overheads = np.array([[pipeline_class.c] for pipeline_class in classes])
    alone_ms = np.where(holds, work + overheads, inf)
    times_ms = work
    if overhead == "each":
        times_ms = work + overheads
    elif overhead == "shared":
        times_ms = np.stack([k.work_with_overhead_ms(lengths) for k in classes])
    else:
        least = overheads.min()
        times_ms = np.stack(
            [
                ms + k.padded(lengths) * ((k.c - least) / k.capacity)
                for ms, k in zip(work, classes, strict=True)
            ]
        )
    return least_areas(alone_ms, np.where(holds, sizes * times_ms, inf), counts)


def _best_numbers(
    spread_ms: Floats, longest_ms: Floats, overhead: float, stages: int
) -> tuple[Floats, Floats]:
    """Compute the numbers of micro-steps on both sides of the best one.

    More micro-steps shorten the mean one, which counts (stages − 1) times more, until the longest
    does.
    """
    with np.errstate(divide="ignore"):
        as_long = np.where(longest_ms > overhead, spread_ms / (longest_ms - overhead), inf)
        paid_for = np.sqrt((stages - 1) * spread_ms / overhead) if overhead else as_long
    best = np.minimum(as_long, paid_for)
    return np.floor(best), np.ceil(best)


def fewest_micro_steps(classes: Sequence[PipelineClass], batch: Batch, ranks: int) -> int:
    """Count the micro-steps that memory requires for all tokens, and for the long sequences."""
    per_rank = max(pipeline_class.capacity / pipeline_class.gpus for pipeline_class in classes)
    by_tokens = ceil(batch.tokens / (per_rank * ranks) - 1e-9)
    lengths, counts = batch.distinct, batch.multiplicity
    smallest = np.full(len(lengths), inf)  # ranks of the smallest group that holds a sequence
    for pipeline_class in classes:
        holds = pipeline_class.padded(lengths) <= pipeline_class.capacity
        # Two sequences above half a group's capacity cannot share it: count their ranks whole.
        alone = holds & (2 * pipeline_class.padded(lengths) > pipeline_class.capacity)
        smallest = np.minimum(
            smallest, np.where(alone, pipeline_class.gpus, np.where(holds, 0.0, inf))
        )
    by_groups = ceil(float(smallest @ counts) / ranks - 1e-9)
    return max(1, by_tokens, by_groups)


def fewest_of_one_degree(micro_batch: PipelineClass, sequences: Sequences, ranks: int) -> int:
    """Count the micro-steps that tokens and sequences above half of a micro-batch need."""
    padded = micro_batch.padded(sequences.lengths)
    by_tokens = ceil(int(padded @ sequences.counts) / (micro_batch.capacity * ranks))
    large = int(sequences.counts[2 * padded > micro_batch.capacity].sum())
    return max(1, by_tokens, ceil(large / ranks))


def one_degree_bound_ms(
    micro_batch: PipelineClass,
    sequences: Sequences,
    ranks: int,
    micro_steps: int,
    *,
    none_empty: bool = False,
    speed: float | None = None,
) -> float:
    """Prove a lower bound (ms) on every plan of exactly ``micro_steps`` micro-steps.

    ``none_empty``: only plans in which every rank has a sequence in every micro-step. ``speed``: of
    all ranks, in such as ``micro_batch`` describes, if others are slower; as many as ranks without.

    Micro-steps ordered by their time, longest first. The j-th lasts at least as long alone as the
    ((j − 1)·ranks + 1)-th of the sequences of which no two share a micro-batch. The first j hold at
    most j·ranks·capacity tokens, whose work is at most that of the longest sequences with as many;
    the work that is left is spread over the ranks of the other micro-steps, by their speed. The
    bound is the largest of these sums over j; j = 0 is the area. If no micro-batch is empty, the
    j-th micro-step and those after it have at least (micro-steps − j + 1)·ranks sequences, and the
    j-th lasts as long as one of them.
    """
    lengths, counts = sequences.lengths, sequences.counts
    work = micro_batch.work_ms(lengths)
    total = float(work @ counts)
    alone_ms = _micro_step_floors_ms(
        micro_batch, sequences, ranks, micro_steps, none_empty=none_empty
    )
    # Tokens without padding: with it work per token would not rise with the length.
    tokens_up_to = np.concatenate([[0], np.cumsum(lengths * counts)]).astype(np.float64)
    work_up_to = np.concatenate([[0.0], np.cumsum(work * counts)])
    speed = ranks if speed is None else speed
    best = total / speed + micro_steps * micro_batch.c
    floors = 0.0
    for j in range(1, micro_steps + 1):
        floors += alone_ms[j - 1]
        held = float(np.interp(j * ranks * micro_batch.capacity, tokens_up_to, work_up_to))
        rest = (
            (total - held) / speed + (micro_steps - j) * micro_batch.c if j < micro_steps else 0.0
        )
        best = max(best, floors + max(rest, sum(alone_ms[j:])))
    return best * (1 - 1e-9)


def _micro_step_floors_ms(
    micro_batch: PipelineClass,
    sequences: Sequences,
    ranks: int,
    micro_steps: int,
    *,
    none_empty: bool,
) -> list[float]:
    """Bound each micro-step's time alone, longest micro-step first (ms)."""
    lengths, padded = sequences.lengths, micro_batch.padded(sequences.lengths)
    large = np.where(2 * padded > micro_batch.capacity, sequences.counts, 0)
    large_up_to, up_to = np.cumsum(large), np.cumsum(sequences.counts)
    total = int(up_to[-1])
    floors = []
    for j in range(micro_steps):
        place = int(np.searchsorted(large_up_to, j * ranks, side="right")) if j else 0
        longest = int(lengths[place]) if place < len(lengths) else 0
        if none_empty:
            # The shortest (micro-steps − j)·ranks sequences: the longest of them.
            rank = total - (micro_steps - j) * ranks
            longest = max(longest, int(lengths[np.searchsorted(up_to, rank, side="right")]))
        work = longest * (micro_batch.a * longest + micro_batch.b)
        floors.append(work + micro_batch.c)
    return floors
