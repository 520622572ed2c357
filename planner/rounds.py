"""Flexible sequence parallelism under ZeRO-3: rounds of groups that differ from round to round.

Every rank gathers every layer with all others, so micro-batches run in lockstep: a round is a set
of groups side by side, each with one micro-batch, and lasts as long as its slowest group; a step is
the sum of its rounds (FlexSP, arXiv 2412.01523, with its cost model). Each round's groups and each
group's sequences are chosen anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

import numpy as np

from seqplan.planner.batch import Batch
from seqplan.planner.fill import Bin, SequencePool, longest_alone
from seqplan.planner.fleet import PipelineClass
from seqplan.plans.scheme import Scheme
from seqplan.profiler.scheme_model import SchemeModel

EXTRA_ROUNDS = 3
"""Rounds tried beyond the fewest that memory allows."""

TOLERANCE = 2e-3
"""Relative width at which a search for a round's least target ends."""

STEPS = 30
"""Targets tried for each round in a pass of improvement."""


@dataclass(frozen=True)
class Round:
    """Groups of one round, largest degree first: (index of the class, its micro-batch)."""

    groups: tuple[tuple[int, Bin], ...]
    time_ms: float


@dataclass(frozen=True)
class Rounds:
    """A step's rounds and a proven lower bound over all round plans (ms)."""

    classes: tuple[PipelineClass, ...]
    schemes: tuple[Scheme, ...]
    rounds: tuple[Round, ...]
    lower_bound_ms: float

    @property
    def objective_ms(self) -> float:
        """Σ rounds."""
        return sum(item.time_ms for item in self.rounds)


def plan_rounds(batch: Batch, models: Sequence[SchemeModel], gpus: int) -> Rounds | None:
    """The best rounds found for a batch; None when its longest sequence fits no group.

    For each number of rounds from the fewest that memory allows: all rounds with one common target,
    the least that works; then targets are changed one against the others while the sum falls.
    """
    ordered = sorted(models, key=lambda model: (-model.scheme.gpus, model.scheme))
    classes = tuple(PipelineClass.of(model, 1) for model in ordered)
    schemes = tuple(model.scheme for model in ordered)
    if batch.longest > max(item.capacity for item in classes):
        return None
    fewest = _fewest_rounds(classes, batch, gpus)
    filler = _RoundFiller(classes, batch, gpus)
    best: tuple[Round, ...] | None = None
    best_ms = inf
    for count in range(fewest, fewest + EXTRA_ROUNDS + 1):
        least = rounds_bound_ms(classes, batch, gpus, count)
        if best is not None and least >= best_ms:
            break
        found = _improve(filler, _common_target(filler, count, least))
        if found is not None and _total(found) < best_ms:
            best, best_ms = found, _total(found)
    if best is None:
        return None
    bound = rounds_bound_ms(classes, batch, gpus, fewest)
    return Rounds(classes, schemes, best, min(bound, best_ms))


def rounds_bound_ms(
    classes: Sequence[PipelineClass], batch: Batch, gpus: int, rounds: int
) -> float:
    """A lower bound (ms) on every plan of at least ``rounds`` rounds.

    If a plan takes at most U, the round of a sequence takes at most U less an overhead for each
    other round, which excludes groups that would need longer. On those that remain, GPU-time
    Σ min_g gpus_g·work_g spreads over all GPUs, and each round pays its overhead. The bound is the
    largest U at which this contradicts U.
    """
    overhead = min(item.c for item in classes)
    lengths, counts = batch.distinct, batch.multiplicity
    work = np.stack([item.work_ms(lengths) for item in classes])
    held = np.stack([item.padded(lengths) <= item.capacity for item in classes])
    sizes = np.array([[item.gpus] for item in classes], dtype=np.float64)
    alone = work + np.array([[item.c] for item in classes])

    def least(limit_ms: float) -> float:
        able = held & (alone <= limit_ms - (rounds - 1) * overhead + 1e-9)
        area = np.where(able, sizes * work, inf).min(axis=0)
        return float(area @ counts) / gpus + rounds * overhead

    low = float(np.where(held, alone, inf).min(axis=0).max()) + (rounds - 1) * overhead
    high = max(low, least(inf)) * 2 + 1
    low = max(low, least(inf) * (1 - 1e-9))
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if least(middle) * (1 - 1e-9) >= middle:
            low = middle
        else:
            high = middle
    return low


def _fewest_rounds(classes: Sequence[PipelineClass], batch: Batch, gpus: int) -> int:
    """Rounds that all tokens need at the best tokens per GPU, and that long sequences need."""
    per_gpu = max(item.capacity / item.gpus for item in classes)
    by_tokens = ceil(batch.tokens / (per_gpu * gpus) - 1e-9)
    lengths, counts = batch.distinct, batch.multiplicity
    smallest = np.full(len(lengths), inf)  # GPUs of the smallest group that holds a sequence
    for item in classes:
        holds = item.padded(lengths) <= item.capacity
        # Two sequences above half a group's capacity cannot share it: count their GPUs whole.
        alone = holds & (2 * item.padded(lengths) > item.capacity)
        smallest = np.minimum(smallest, np.where(alone, item.gpus, np.where(holds, 0.0, inf)))
    by_groups = ceil(float(smallest @ counts) / gpus - 1e-9)
    return max(1, by_tokens, by_groups)


class _RoundFiller:
    """Fills rounds of one batch to given targets."""

    def __init__(self, classes: Sequence[PipelineClass], batch: Batch, gpus: int) -> None:
        self.classes = classes
        self.gpus = gpus
        self._lengths: list[int] = batch.distinct.tolist()
        self._counts: list[int] = batch.multiplicity.tolist()
        self._left = len(batch.lengths)
        alone = [
            min(
                work + item.c
                for item in classes
                if self._lengths[0] <= item.capacity
                for work in [self._lengths[0] * (item.a * self._lengths[0] + item.b)]
            )
        ]
        self.longest_ms = alone[0]

    def pool(self) -> SequencePool:
        """All sequences, unassigned."""
        return SequencePool(self._lengths, self._counts, self._left)

    def fill(self, targets_ms: Sequence[float]) -> tuple[Round, ...] | None:
        """Rounds with these targets that take every sequence, or None."""
        pool = self.pool()
        rounds = []
        for target in targets_ms:
            if not pool.left:
                break
            rounds.append(self.fill_round(pool, target))
        return None if pool.left else tuple(item for item in rounds if item.groups)

    def fill_round(self, pool: SequencePool, target_ms: float) -> Round:
        """One round: from the largest groups down, each opened for a sequence that needs it.

        A sequence needs a degree when the next smaller one cannot hold it or not end by the target;
        the micro-batch is then topped up, longest first, with what fits tokens and target.
        """
        classes = self.classes
        left = self.gpus
        groups: list[tuple[int, Bin]] = []
        slowest = 0.0
        reach = [min(item.capacity, longest_alone(item, target_ms)) for item in classes]
        for k, item in enumerate(classes):
            below = max(reach[k + 1 :], default=0)
            while left >= item.gpus and pool.left:
                first = pool.longest(reach[k])
                if first is None or pool.lengths[first] <= below:
                    break
                micro: Bin = []
                work, _ = pool.top_up(item, micro, target_ms - item.c, item.capacity, 0)
                if not micro:
                    break
                groups.append((k, micro))
                left -= item.gpus
                slowest = max(slowest, target_ms - work)
        return Round(tuple(groups), slowest)


def _common_target(filler: _RoundFiller, rounds: int, lower_ms: float) -> tuple[Round, ...] | None:
    """The rounds with the least common target that take every sequence."""
    low = max(lower_ms / rounds * 0.999, filler.longest_ms / 8)
    target, best = low, None
    for _ in range(40):
        best = filler.fill([target] * rounds)
        if best is not None:
            break
        low, target = target, target * 1.15
        if target > 64 * filler.longest_ms + 64 * lower_ms:
            return None
    if best is None:
        return None
    high = target
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2
        found = filler.fill([middle] * rounds)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def _improve(filler: _RoundFiller, start: tuple[Round, ...] | None) -> tuple[Round, ...] | None:
    """Change one round's target at a time, others following, while the sum of rounds falls.

    For each round a range of targets is tried; the last round takes the least target that works.
    """
    if start is None or len(start) < 2:
        return start
    best, best_ms = start, _total(start)
    improved = True
    passes = 0
    while improved and passes < 4:
        improved, passes = False, passes + 1
        for r in range(len(best) - 1):
            targets = [item.time_ms for item in best]
            lowest, highest = targets[r] * 0.7, targets[r] * 1.35
            for step in range(STEPS):
                tried = list(targets)
                tried[r] = lowest + (highest - lowest) * (step + 0.5) / STEPS
                found = _least_last(filler, tried, best_ms)
                if found is not None and _total(found) < best_ms * (1 - 1e-6):
                    best, best_ms, improved = found, _total(found), True
    return best


def _least_last(
    filler: _RoundFiller, targets: Sequence[float], below_ms: float
) -> tuple[Round, ...] | None:
    """Fill all rounds but the last as told and the last with the least target that works."""
    pool = filler.pool()
    rounds = [filler.fill_round(pool, target) for target in targets[:-1]]
    spent = sum(item.time_ms for item in rounds)
    if not pool.left:
        return tuple(item for item in rounds if item.groups)
    high = below_ms - spent
    if high <= 0:
        return None
    last = _whole_round(filler, pool, high)
    if last is None:
        return None
    low = 0.0
    while high - low > TOLERANCE * below_ms:
        middle = (low + high) / 2
        found = _whole_round(filler, pool, middle)
        if found is None:
            low = middle
        else:
            last, high = found, min(middle, found.time_ms)
    return tuple(item for item in [*rounds, last] if item.groups)


def _whole_round(filler: _RoundFiller, pool: SequencePool, target: float) -> Round | None:
    """One round that takes all of the pool, which is left as it was; None if it cannot."""
    trial = pool.copy()
    found = filler.fill_round(trial, target)
    return None if trial.left else found


def _total(rounds: Sequence[Round]) -> float:
    return sum(item.time_ms for item in rounds)
