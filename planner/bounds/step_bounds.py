"""Proven lower bounds on a step's time, for one strategy or over all strategies of N GPUs.

Give every sequence a value. In a pipeline that ends by τ with V micro-batches, the shares that its
sequences take of any resource, or of any weighted mix of them, sum to at most 1; so their values
sum to at most the largest ratio of value to share. If all values together exceed what all pipelines
can hold in this sense, no placement ends by τ. This holds whatever the values and mixes are;
``relax`` finds good ones. A few lengths that it has not seen, as it sees similar ones as one group,
may be valued above what they take somewhere: their values are cut to that (``_surplus``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.relaxation import Relaxation
from seqplan.planner.bounds.resources import RESOURCES, ROUNDING, ClassLengths
from seqplan.planner.placement.fleet import Floats, Ints, PipelineClass

BISECTION_TOLERANCE = 1e-4
"""Relative width of the bisection for the largest refuted time."""

FIXED_MIXES = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]])
"""Mixes tried in addition to the relaxation's when all schemes are in play."""


def list_fixed_mixes(relaxation: Relaxation) -> Floats:
    """Return ``FIXED_MIXES`` for a relaxation's resources: further ones also alone."""
    more = relaxation.resources - RESOURCES
    return np.concatenate(
        [np.pad(FIXED_MIXES, ((0, 0), (0, more))), np.eye(relaxation.resources)[RESOURCES:]]
    )


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
    counts = batch.multiplicity
    work = np.stack(
        [pipeline_class.work_with_overhead_ms(batch.distinct) for pipeline_class in classes]
    )
    weights = 1.0 / (work @ counts)
    weights /= weights @ np.array([pipeline_class.count for pipeline_class in classes])
    return float((weights[:, None] * work).min(axis=0) @ counts) * (1 - ROUNDING)


def bound_by_relaxation_ms(
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
    where the bound is expected; just below and above it are tried first.
    """
    needed = float(relaxation.values @ batch.multiplicity)
    extra = list_fixed_mixes(relaxation)
    if gpus is None:
        extra = extra[:1]
    held = [
        HeldValue(pipeline_class, batch, relaxation, k, extra)
        for k, pipeline_class in enumerate(classes)
    ]
    # Over all strategies one class that can hold too much refutes nothing: the one that last did
    # is tried first.
    order = list(range(len(classes)))

    def refutes(time_ms: float) -> bool:
        if gpus is None:
            prices = [value.most(time_ms) for value in held]
            offered = sum(k.count * price for k, price in zip(classes, prices, strict=True))
            if needed > offered * (1 + ROUNDING):
                return True
        else:
            prices = [float(pipeline_class.gpus) for pipeline_class in classes]
            offered = float(gpus)
        return _is_refuted(
            relaxation.values, batch.multiplicity, held, prices, offered, time_ms, order
        )

    if refutes(high_ms):
        return high_ms
    low, high = low_ms, high_ms
    tolerance = BISECTION_TOLERANCE if gpus is None else 10 * BISECTION_TOLERANCE
    near = [] if guess_ms is None else [guess_ms * (1 + 2 * tolerance * side) for side in (1, -1)]
    while high - low > tolerance * high:
        middle = near.pop() if near else (low + high) / 2
        if not low < middle < high:
            continue
        if refutes(middle):
            low = middle
        else:
            high = middle
    return low


def _is_refuted(
    values: Floats,
    counts: Ints,
    held: Sequence[HeldValue],
    prices: Sequence[float],
    offered: float,
    time_ms: float,
    order: list[int],
) -> bool:
    """Return whether values exceed what pipelines of some ``prices`` can hold.

    ``order``: of asking the classes; that which leaves nothing refuted comes first in it.
    """
    needed = float(values @ counts)
    least = np.full(len(values), np.inf)
    for place, k in enumerate(order):
        if prices[k] > 0:  # no value can be in a pipeline of none
            share = held[k].least_share(time_ms, prices[k] * needed / offered)
            np.minimum(least, prices[k] * share, out=least)
        if _surplus(values, least, counts, offered) <= needed * ROUNDING:
            order.insert(0, order.pop(place))
            return False
    return True


def _surplus(values: Floats, least: Floats, counts: Ints, offered: float) -> float:
    """Return by how much values of ``counts`` sequences can exceed what pipelines then hold.

    Of values that are cut (``cut_values``); 0 if nothing is gained at any weight.
    """
    cut, weight = cut_values(values, least, counts, offered)
    return float(cut @ counts) - weight * offered


def cut_values(values: Floats, least: Floats, counts: Ints, offered: float) -> tuple[Floats, float]:
    """Cut values to w·``least``, at the weight w at which they exceed w·``offered`` by most.

    A pipeline holds w times its price if no value is above w·``least``, the least that a
    length takes of any pipeline, priced. Values that no pipeline can hold are not cut.
    """
    takes = np.isfinite(least)
    with np.errstate(divide="ignore", invalid="ignore"):
        # The w from which a value is whole.
        cut_at = np.where(takes & (values > 0), values / least, 0.0)
    order = np.argsort(-cut_at, kind="stable")
    growth = np.cumsum((counts * np.where(takes, least, 0.0))[order])
    # Concave in w: the surplus grows with w as long as the values that are cut grow by more.
    last = int(np.searchsorted(growth, offered))
    weight = float(cut_at[order[last]]) if last < len(order) else 0.0
    return np.where(takes, np.minimum(values, weight * np.where(takes, least, 0.0)), values), weight


class HeldValue:
    """The most value that one pipeline of class ``k`` can hold, at any time."""

    def __init__(
        self,
        pipeline_class: PipelineClass,
        batch: Batch,
        relaxation: Relaxation,
        k: int,
        extra: Floats,
    ) -> None:
        self._class = pipeline_class
        self._lengths = ClassLengths(
            pipeline_class, batch.distinct, relaxation.levels, relaxation.resources
        )
        self._mixes = relaxation.mixes[k]
        self._values = relaxation.values
        self._valued = relaxation.values > 0
        self._counts = batch.multiplicity
        self._extra = extra
        self._weights: dict[int, Floats] = {}
        self._latest: tuple[float, Floats, npt.NDArray[np.bool_]] | None = None

    def most(self, time_ms: float) -> float:
        """Compute the most value that a pipeline of the class can hold by ``time_ms``.

        The last row of the class's mixes stands for all larger V. In each state the ratio of the
        best mix counts; a sequence that takes nothing of a mix makes that mix useless. At least 0.
        """
        return float(self._ratios(time_ms).min(axis=1).max())

    def _ratios(self, time_ms: float) -> Floats:
        """Return the largest ratio of value to share by state and mix (states, mixes)."""
        share, eligible = self._shares(time_ms)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where((eligible & self._valued)[:, None, :], self._values / share, 0.0)
        largest: Floats = ratios.max(axis=2)
        return largest

    def mixes_of_most(self, time_ms: float) -> Floats:
        """Return the mix of each state that ``most`` counts (states, resources)."""
        return self._chosen_mixes(time_ms, self._ratios(time_ms).argmin(axis=1))

    def mixes_of_least(self, time_ms: float, price: float) -> Floats:
        """Return the mix of each state that ``least_share`` counts (states, resources)."""
        return self._chosen_mixes(time_ms, self._least_excess(time_ms, price))

    def _chosen_mixes(self, time_ms: float, chosen: npt.NDArray[np.intp]) -> Floats:
        mixes: Floats = self._mixes_of(self._top(time_ms))[np.arange(len(chosen)), chosen]
        return mixes

    def least_share(self, time_ms: float, price: float) -> Floats:
        """Compute the least that each distinct length takes of a pipeline by ``time_ms`` (n,).

        In each state the shares are those of one mix: the one at which values exceed their share of
        ``price`` by least. Infinite if a length can be in no state.
        """
        share, eligible = self._shares(time_ms)
        best = self._least_excess(time_ms, price)
        chosen = np.take_along_axis(share, best[:, None, None], axis=1)[:, 0]
        least: Floats = np.where(eligible, chosen, np.inf).min(axis=0)
        return least

    def _least_excess(self, time_ms: float, price: float) -> npt.NDArray[np.intp]:
        """Choose the mix of each state at which values exceed priced shares by least (states,)."""
        share, eligible = self._shares(time_ms)
        excess = np.maximum(self._values - price * share, 0.0)
        excess *= (eligible * self._counts)[:, None, :]
        least: npt.NDArray[np.intp] = excess.sum(axis=2).argmin(axis=1)
        return least

    def _top(self, time_ms: float) -> int:
        """Return the largest V that is distinguished."""
        return max(len(self._mixes.even), self._class.most_micro_batches(time_ms))

    def _shares(self, time_ms: float) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Return shares by mix (states, mixes, n), and eligibility by state (states, n).

        Those of the latest time are kept.
        """
        if self._latest is None or self._latest[0] != time_ms:
            top = self._top(time_ms)
            available = self._lengths.resources(np.arange(1, top + 1), time_ms)
            self._latest = time_ms, self._mixes_of(top) @ available.share, available.eligible
        return self._latest[1:]

    def _mixes_of(self, top: int) -> Floats:
        """Return the mixes of each state: the relaxation's, then the fixed ones.

        Even ones for V up to ``top``; shape (states, mixes, resources).
        """
        weights = self._weights.get(top)
        if weights is None:
            even, extra = self._mixes.even, self._extra
            further = np.repeat(even[-1:], top - len(even), axis=0)
            whole = np.concatenate([even, further, self._mixes.peaked])
            fixed = np.broadcast_to(extra, (len(whole), *extra.shape))
            weights = np.concatenate([whole[:, None, :], fixed], axis=1)
            self._weights[top] = weights
        return weights
