"""Flexible sequence parallelism under ZeRO-3: rounds of groups that differ from round to round.

Every rank gathers every layer with all others, so micro-batches run in lockstep: a round is a set
of groups side by side, each with one micro-batch, and lasts as long as its slowest group; a step is
the sum of its rounds (FlexSP, arXiv 2412.01523, with its cost model). Each round's groups and each
group's sequences are chosen anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.rounds import one_degree
from seqplan.planner.rounds.fill import (
    RoundFiller,
    common_target,
    improve_rounds,
    total_ms,
)
from seqplan.planner.rounds.filler import Round, Sequences
from seqplan.plans.scheme import Scheme
from seqplan.profiler.scheme_model import SchemeModel

EXTRA_ROUNDS = 3
"""Rounds tried beyond the fewest that memory allows."""


IMPROVED = 2
"""Starts that are improved, of those with different smallest degrees."""


@dataclass(frozen=True)
class Rounds:
    """A step's rounds and a proven lower bound over all round plans (ms)."""

    classes: tuple[PipelineClass, ...]
    schemes: tuple[Scheme, ...]
    rounds: tuple[Round, ...]
    lower_bound_ms: float

    @property
    def objective_ms(self) -> float:
        """Return Σ rounds."""
        return sum(round_.time_ms for round_ in self.rounds)


def plan_rounds(batch: Batch, models: Sequence[SchemeModel], gpus: int) -> Rounds | None:
    """Find good rounds for a batch; None when its longest sequence fits no group.

    For each number of rounds from the fewest that memory allows and each smallest degree: all
    rounds with one common target, the least that works; then, from the best of these, targets are
    changed one against the others while the sum falls. (Larger groups than needed can be better
    where memory is tight: they mix long and short sequences.) Rounds of one degree throughout are
    tried first, which is all where there is no other.
    """
    ordered = sorted(models, key=lambda model: (-model.scheme.gpus, model.scheme))
    classes = tuple(PipelineClass.of(model, 1) for model in ordered)
    schemes = tuple(model.scheme for model in ordered)
    if batch.longest > max(pipeline_class.capacity for pipeline_class in classes):
        return None
    best, one_bound = _best_of_one_degree(classes, batch, gpus)
    best_ms = total_ms(best) if best is not None else inf
    if len(classes) == 1 and best is not None:
        return Rounds(classes, schemes, best, one_bound)
    fewest = fewest_rounds(classes, batch, gpus)
    fillers = [RoundFiller(classes, batch, gpus, last) for last in _smallest(classes, batch)]
    for count in range(fewest, fewest + EXTRA_ROUNDS + 1):
        lower_ms = rounds_bound_ms(classes, batch, gpus, count)
        if best is not None and lower_ms >= best_ms:
            break
        starts = [(common_target(filler, count, lower_ms), filler) for filler in fillers]
        common = [(start, filler) for start, filler in starts if start is not None]
        common.sort(key=lambda pair: total_ms(pair[0]))
        options = [improve_rounds(filler, start) for start, filler in common[:IMPROVED]]
        for rounds in options:
            if total_ms(rounds) < best_ms:
                best, best_ms = rounds, total_ms(rounds)
    if best is None:
        return None
    bound = rounds_bound_ms(classes, batch, gpus, fewest)
    return Rounds(classes, schemes, best, min(bound, best_ms))


def _best_of_one_degree(
    classes: Sequence[PipelineClass], batch: Batch, gpus: int
) -> tuple[tuple[Round, ...] | None, float]:
    """Find the best rounds with one of the degrees throughout, and the bound of that degree (ms).

    None where none that the GPUs can form holds the longest sequence.
    """
    sequences = Sequences(batch.distinct, batch.multiplicity)
    best, best_ms, bound = None, inf, 0.0
    for k, degree in enumerate(classes):
        side_by_side = gpus // degree.gpus
        if not side_by_side or degree.capacity < batch.longest:
            continue
        one_gpu = replace(degree, gpus=1)
        filled, of_degree = one_degree.plan_rounds(one_gpu, sequences, side_by_side)
        if filled.total_ms < best_ms:
            best, best_ms, bound = filled.of_class(k).rounds(), filled.total_ms, of_degree
    return best, bound


def rounds_bound_ms(
    classes: Sequence[PipelineClass], batch: Batch, gpus: int, rounds: int
) -> float:
    """Compute a lower bound (ms) on every plan of at least ``rounds`` rounds.

    If a plan takes at most U, the round of a sequence takes at most U less an overhead for each
    other round, which excludes groups that would need longer. On those that remain, GPU-time
    Σ min_g gpus_g·work_g spreads over all GPUs, and each round pays its overhead. The bound is the
    largest U at which this contradicts U.
    """
    overhead = min(pipeline_class.c for pipeline_class in classes)
    lengths, counts = batch.distinct, batch.multiplicity
    work = np.stack([pipeline_class.work_ms(lengths) for pipeline_class in classes])
    holds = np.stack(
        [pipeline_class.padded(lengths) <= pipeline_class.capacity for pipeline_class in classes]
    )
    sizes = np.array([[pipeline_class.gpus] for pipeline_class in classes], dtype=np.float64)
    alone = work + np.array([[pipeline_class.c] for pipeline_class in classes])

    def implied_ms(limit_ms: float) -> float:
        feasible = holds & (alone <= limit_ms - (rounds - 1) * overhead + 1e-9)
        area = np.where(feasible, sizes * work, inf).min(axis=0)
        return float(area @ counts) / gpus + rounds * overhead

    low = float(np.where(holds, alone, inf).min(axis=0).max()) + (rounds - 1) * overhead
    high = max(low, implied_ms(inf)) * 2 + 1
    low = max(low, implied_ms(inf) * (1 - 1e-9))
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if implied_ms(middle) * (1 - 1e-9) >= middle:
            low = middle
        else:
            high = middle
    return low


def fewest_rounds(classes: Sequence[PipelineClass], batch: Batch, gpus: int) -> int:
    """Count the rounds that all tokens need at the best tokens per GPU, and that long ones need."""
    per_gpu = max(pipeline_class.capacity / pipeline_class.gpus for pipeline_class in classes)
    by_tokens = ceil(batch.tokens / (per_gpu * gpus) - 1e-9)
    lengths, counts = batch.distinct, batch.multiplicity
    smallest = np.full(len(lengths), inf)  # GPUs of the smallest group that holds a sequence
    for pipeline_class in classes:
        holds = pipeline_class.padded(lengths) <= pipeline_class.capacity
        # Two sequences above half a group's capacity cannot share it: count their GPUs whole.
        alone = holds & (2 * pipeline_class.padded(lengths) > pipeline_class.capacity)
        smallest = np.minimum(
            smallest, np.where(alone, pipeline_class.gpus, np.where(holds, 0.0, inf))
        )
    by_groups = ceil(float(smallest @ counts) / gpus - 1e-9)
    return max(1, by_tokens, by_groups)


def _smallest(classes: Sequence[PipelineClass], batch: Batch) -> list[int]:
    """List numbers of classes, from all of them down, that leave the smallest degrees out."""
    holding = [
        k for k, pipeline_class in enumerate(classes) if pipeline_class.capacity >= batch.longest
    ]
    return list(range(len(classes), holding[0], -1))
