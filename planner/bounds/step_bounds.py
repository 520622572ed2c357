"""Proven lower bounds on a step's time, for one strategy or over all strategies of N GPUs.

Give every sequence a value. In a pipeline that ends by τ with V micro-batches, the shares that its
sequences take of any resource, or of any weighted mix of them, sum to at most 1; so their values
sum to at most the largest ratio of value to share. If all values together exceed what all pipelines
can hold in this sense, no placement ends by τ. This holds whatever the values and mixes are;
``relax`` finds good ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.relaxation import Relaxation
from seqplan.planner.bounds.resources import RESOURCES, ROUNDING, ClassLengths
from seqplan.planner.placement.fleet import Floats, PipelineClass

BISECTION_TOLERANCE = 1e-4
"""Relative width of the bisection for the largest refuted time."""

FIXED_MIXES = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]])
"""Mixes tried beside the relaxation's own where all schemes are in play."""


def single_bound_ms(classes: Sequence[PipelineClass], batch: Batch) -> float:
    """Time the longest sequence alone on the scheme fastest for it (ms); inf if none can hold it.

    pp·(a·l² + b·l + c) rises with l and eligibility falls, so only the longest matters.
    """
    longest = batch.longest
    times = [
        pipeline_class.pp
        * (longest * (pipeline_class.a * longest + pipeline_class.b) + pipeline_class.c)
        for pipeline_class in classes
        if longest <= pipeline_class.capacity
    ]
    return min(times, default=float("inf"))


def area_bound_ms(classes: Sequence[PipelineClass], batch: Batch) -> float:
    """Compute a lower bound (ms) from all work at weighted speeds; takes microseconds.

    With a weight y_k per pipeline of class k and Σ count_k·y_k = 1, the slowest pipeline is at
    least the weighted mean of all, so at least Σ_sequences min_k y_k·work_k. Weights inverse to
    each class's time for the whole batch make the classes about equally dear. Tokens need
    micro-batches, at least tokens/MaxLen of them, and so count for their share of c.
    """
    counts = batch.multiplicity
    work = np.stack(
        [pipeline_class.work_with_overhead_ms(batch.distinct) for pipeline_class in classes]
    )
    weights = 1.0 / (work @ counts)
    weights /= weights @ np.array([pipeline_class.count for pipeline_class in classes])
    return float((weights[:, None] * work).min(axis=0) @ counts) * (1 - ROUNDING)


def relaxed_bound_ms(
    classes: Sequence[PipelineClass],
    batch: Batch,
    relaxation: Relaxation,
    low_ms: float,
    high_ms: float,
    gpus: int | None = None,
    guess_ms: float | None = None,
) -> float:
    """Find the largest time in [``low_ms``, ``high_ms``] that the relaxation's values refute.

    ``low_ms`` is returned when nothing above it is refuted: it must be a bound already. With
    ``gpus``, the bound is over all strategies of these classes on that many GPUs. ``guess_ms``:
    where the bound is expected; just below it is tried first.
    """
    needed = float(relaxation.values @ batch.multiplicity)
    extra = FIXED_MIXES if gpus is not None else FIXED_MIXES[:1]

    # Over all strategies a class alone can hold too much, and nothing is refuted: the one that last
    # did is asked first.
    order = list(range(len(classes)))

    held = [
        HeldValue(pipeline_class, batch, relaxation, k, extra)
        for k, pipeline_class in enumerate(classes)
    ]

    def refuted(time_ms: float) -> bool:
        if gpus is None:
            most = sum(
                pipeline_class.count * value.most(time_ms)
                for pipeline_class, value in zip(classes, held, strict=True)
            )
            return needed > most * (1 + ROUNDING)
        for place, k in enumerate(order):
            if needed <= gpus * (held[k].most(time_ms) / classes[k].gpus) * (1 + ROUNDING):
                order.insert(0, order.pop(place))
                return False
        return True

    if refuted(high_ms):
        return high_ms
    low, high = low_ms, high_ms
    tolerance = BISECTION_TOLERANCE if gpus is None else 10 * BISECTION_TOLERANCE
    first = None if guess_ms is None else guess_ms * (1 - 2 * tolerance)
    while high - low > tolerance * high:
        middle = first if first is not None and low < first < high else (low + high) / 2
        first = None
        if refuted(middle):
            low = middle
        else:
            high = middle
    return low


class HeldValue:
    """The most value that one pipeline of class ``k`` can hold, asked for at many times."""

    def __init__(
        self,
        pipeline_class: PipelineClass,
        batch: Batch,
        relaxation: Relaxation,
        k: int,
        extra: Floats,
    ) -> None:
        self._class = pipeline_class
        self._lengths = ClassLengths(pipeline_class, batch.distinct, relaxation.levels)
        self._mixes = relaxation.mixes[k]
        self._values = relaxation.values
        self._valued = relaxation.values > 0
        self._extra = extra
        self._weights: dict[int, Floats] = {}

    def most(self, time_ms: float) -> float:
        """Compute the most value that a pipeline of the class can hold by ``time_ms``.

        The last row of the class's mixes stands for all larger V. In each state the ratio of the
        best mix counts; a sequence that takes nothing of a mix makes that mix useless. At least 0.
        """
        top = max(len(self._mixes.even), self._class.most_micro_batches(time_ms))
        available = self._lengths.resources(np.arange(1, top + 1), time_ms)
        share = self._mixes_of(top) @ available.share  # (states, mixes, n)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(
                (available.eligible & self._valued)[:, None, :], self._values / share, 0.0
            ).max(axis=2)
        return float(ratio.min(axis=1).max())

    def _mixes_of(self, top: int) -> Floats:
        """Return the mixes of each state, even ones for V up to ``top`` (states, mixes, RESOURCES):
        the relaxation's own, then the fixed ones."""
        weights = self._weights.get(top)
        if weights is None:
            even, extra = self._mixes.even, self._extra
            further = np.repeat(even[-1:], top - len(even), axis=0)
            whole = np.concatenate([even, further, self._mixes.peaked])
            fixed = np.broadcast_to(extra, (len(whole), len(extra), RESOURCES))
            weights = np.concatenate([whole[:, None, :], fixed], axis=1)
            self._weights[top] = weights
        return weights
