"""Filling rounds of sequence-parallel groups to target times, and improving the targets."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.step_bounds import single_bound_ms
from seqplan.planner.placement.fleet import Bin, PipelineClass, longest_alone
from seqplan.planner.placement.sequence_pool import SequencePool
from seqplan.planner.rounds.filler import Round

TOLERANCE = 2e-3
"""Relative width at which a search for a round's least target ends."""


STEPS, LEAST_STEPS = 24, 5
"""Targets tried in a pass of improvement: shared by the rounds, and at least for each of them."""


PASSES = 3


class RoundFiller:
    """Fills rounds of one batch to given targets, with the ``largest`` first of the classes."""

    def __init__(
        self, classes: Sequence[PipelineClass], batch: Batch, gpus: int, largest: int
    ) -> None:
        self.classes = classes[:largest]
        self.gpus = gpus
        self._lengths: list[int] = batch.distinct.tolist()
        self._counts: list[int] = batch.multiplicity.tolist()
        self._left = len(batch.lengths)
        self.longest_ms = single_bound_ms(self.classes, batch)

    def pool(self) -> SequencePool:
        """Return a pool of all sequences, unassigned."""
        return SequencePool(self._lengths, self._counts, self._left)

    def fill(self, targets_ms: Sequence[float]) -> tuple[Round, ...] | None:
        """Fill rounds with these targets that take every sequence; None where they cannot."""
        pool = self.pool()
        rounds = []
        for target in targets_ms:
            if not pool.left:
                break
            rounds.append(self.fill_round(pool, target))
        return None if pool.left else tuple(round_ for round_ in rounds if round_.groups)

    def fill_round(self, pool: SequencePool, target_ms: float) -> Round:
        """Fill one round: from the largest groups down, each opened for a sequence that needs it.

        A sequence needs a degree when the next smaller one cannot hold it or not end by the target;
        the micro-batch is then topped up, longest first, with what fits tokens and target.
        """
        classes = self.classes
        left = self.gpus
        groups: list[tuple[int, Bin]] = []
        slowest = 0.0
        reach = [
            min(pipeline_class.capacity, longest_alone(pipeline_class, target_ms))
            for pipeline_class in classes
        ]
        for k, pipeline_class in enumerate(classes):
            below = max(reach[k + 1 :], default=0)
            while left >= pipeline_class.gpus and pool.left:
                first = pool.longest(reach[k])
                if first is None or pool.lengths[first] <= below:
                    break
                micro: Bin = []
                work, _ = pool.top_up(
                    pipeline_class, micro, target_ms - pipeline_class.c, pipeline_class.capacity, 0
                )
                if not micro:
                    break
                groups.append((k, micro))
                left -= pipeline_class.gpus
                slowest = max(slowest, target_ms - work)
        return Round(tuple(groups), slowest)


def common_target(filler: RoundFiller, rounds: int, lower_ms: float) -> tuple[Round, ...] | None:
    """Find the rounds with the least common target that take every sequence; None without any."""
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
        filled = filler.fill([middle] * rounds)
        if filled is None:
            low = middle
        else:
            best, high = filled, middle
    return best


def improve_rounds(filler: RoundFiller, start: tuple[Round, ...]) -> tuple[Round, ...]:
    """Change one round's target at a time, others following, while the sum of rounds falls.

    For each round but the last a range of targets is tried; the rounds after it keep theirs and the
    last takes the least target that works.
    """
    best, best_ms = start, total_ms(start)
    steps = max(LEAST_STEPS, STEPS // max(len(start) - 1, 1))
    for _ in range(PASSES):
        before_ms = best_ms
        for r in range(len(best) - 1):
            if r >= len(best) - 1:
                break  # a round has become empty
            targets = [round_.time_ms for round_ in best]
            pool = filler.pool()
            first = tuple(filler.fill_round(pool, target) for target in targets[:r])
            low, high = targets[r] * 0.7, targets[r] * 1.35
            for step in range(steps):
                target = low + (high - low) * (step + 0.5) / steps
                after = [target, *targets[r + 1 : -1]]
                rounds = _least_last(filler, pool.copy(), first, after, best_ms)
                if rounds is not None and total_ms(rounds) < best_ms * (1 - 1e-6):
                    best, best_ms = rounds, total_ms(rounds)
        if best_ms >= before_ms * (1 - 1e-4):
            break
    return best


def _least_last(
    filler: RoundFiller,
    pool: SequencePool,
    first: tuple[Round, ...],
    targets: Sequence[float],
    below_ms: float,
) -> tuple[Round, ...] | None:
    """Fill rounds behind ``first`` with these targets, and a last one as short as works."""
    rounds = [*first, *(filler.fill_round(pool, target) for target in targets)]
    spent = total_ms(rounds)
    if not pool.left:
        return tuple(round_ for round_ in rounds if round_.groups)
    high = below_ms - spent
    if high <= 0:
        return None
    last = _whole_round(filler, pool, high)
    if last is None:
        return None
    low, high = 0.0, min(high, last.time_ms)
    while high - low > TOLERANCE * below_ms:
        middle = (low + high) / 2
        round_ = _whole_round(filler, pool, middle)
        if round_ is None:
            low = middle
        else:
            last, high = round_, min(middle, round_.time_ms)
    return tuple(round_ for round_ in [*rounds, last] if round_.groups)


def _whole_round(filler: RoundFiller, pool: SequencePool, target: float) -> Round | None:
    """Fill one round with all of the pool, which is left as it was; None if it cannot."""
    trial = pool.copy()
    round_ = filler.fill_round(trial, target)
    return None if trial.left else round_


def total_ms(rounds: Sequence[Round]) -> float:
    """Return Σ rounds (ms): they run one after another."""
    return sum(round_.time_ms for round_ in rounds)
