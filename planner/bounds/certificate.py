"""The bounds that the prices of a relaxation prove.

In a pipeline that ends by τ with V micro-batches, the shares that its sequences take of any
resource, or of any weighted mix of them, sum to at most 1; so their values sum to at most the
largest ratio of value to share. If all values together exceed what all pipelines can hold in this
sense, no placement ends by τ. This holds whatever the values and mixes are. A few lengths that the
program has not seen, as it sees similar ones as one group, may be valued above what they take
somewhere: their values are cut to that (``_surplus``).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import single_bound_ms
from seqplan.planner.bounds.held_value import (
    LEAST_SHARE,
    HeldValue,
    Relaxation,
    list_fixed_mixes,
)
from seqplan.planner.bounds.relaxation import COARSE, FINE, Detail, relax
from seqplan.planner.bounds.resources import ROUNDING
from seqplan.planner.placement.fleet import Fleet, Floats, Ints, PipelineClass

BISECTION_TOLERANCE = 1e-4
"""Relative width of the bisection for the largest refuted time."""

FIRST_STEP = 1e-3
"""Relative step from where the bound is expected; each further step is four times as long."""

NEAR = 5e-5
"""Relative distance from an estimate of the largest refuted time at which it is examined first."""

CERTIFY_GAP = 2e-3
"""The gap at which the proof is sought first; above it the prices are refined once.

Prices that prove the time which the program expects, within this share, are not refined.
"""

REFINED = 2
"""Times that prices are found, the second time at the bound that the first ones prove."""

FAR = 0.02
"""Prices that prove this share less than the program expects are followed by those of a time
halfway to the objective: a long sequence that takes a whole pipeline can be all that is priced."""

FINE_FROM = 0.1
"""The gap above which the finer program may prove more: of gaps of 2 to 8 % no more than 0.3 %, of
23 % nearly 2 %, where modes trade tokens for work."""


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
    where the bound is expected; the search goes from there in growing steps.
    """
    times = _RefutedTimes(classes, batch, relaxation, gpus)
    if gpus is None and guess_ms is not None and low_ms < guess_ms < high_ms:
        times.examine_near(guess_ms, low_ms, high_ms)
    if times.refutes(high_ms):
        return high_ms
    low, high = low_ms, high_ms
    tolerance = BISECTION_TOLERANCE if gpus is None else 10 * BISECTION_TOLERANCE
    middle, step = guess_ms or 0.0, FIRST_STEP
    while high - low > tolerance * high:
        if not low < middle < high:
            middle = (low + high) / 2
        if times.refutes(middle):
            low, middle = middle, middle * (1 + step)
        else:
            high, middle = middle, middle * (1 - step)
        step *= 4  # away from the guess at first, then out of the bracket, which is bisected
    return low


def refutes_time(
    classes: Sequence[PipelineClass],
    batch: Batch,
    relaxation: Relaxation,
    time_ms: float,
    gpus: int,
) -> bool:
    """Whether the relaxation's values refute ``time_ms`` for all strategies on ``gpus`` GPUs."""
    return _RefutedTimes(classes, batch, relaxation, gpus).refutes(time_ms)


class _RefutedTimes:
    """Times that a relaxation's values refute: with a time, all before it.

    ``gpus``: of all strategies of the classes; None for the pipelines that the classes have.
    """

    def __init__(
        self,
        classes: Sequence[PipelineClass],
        batch: Batch,
        relaxation: Relaxation,
        gpus: int | None,
    ) -> None:
        mixes = list_fixed_mixes(relaxation)
        if gpus is None:
            mixes = mixes[:1]
        self._classes = classes
        self._values = relaxation.values
        self._counts = batch.multiplicity
        self._needed = float(relaxation.values @ batch.multiplicity)
        self._gpus = gpus
        self._held = [
            HeldValue(pipeline_class, batch, relaxation, k, mixes)
            for k, pipeline_class in enumerate(classes)
        ]
        # Over all strategies one class that can hold too much refutes nothing: the one that last
        # did is tried first.
        self._order = list(range(len(classes)))
        # Only times between these two are examined.
        self._refuted_ms, self._open_ms = 0.0, inf
        self._offered = float(gpus or 0)

    def refutes(self, time_ms: float) -> bool:
        """Return whether no placement ends by this time."""
        if not self._refuted_ms < time_ms < self._open_ms:
            return time_ms <= self._refuted_ms
        refuted = False
        if self._gpus is None:
            prices = [value.most(time_ms) for value in self._held]
            self._offered = sum(
                k.count * price for k, price in zip(self._classes, prices, strict=True)
            )
            refuted = self._needed > self._offered * (1 + ROUNDING)
        else:
            prices = [float(pipeline_class.gpus) for pipeline_class in self._classes]
        refuted = refuted or _is_refuted(
            *(self._values, self._counts, self._held, prices),
            *(self._offered, time_ms, self._order),
        )
        if refuted:
            self._refuted_ms = time_ms
        else:
            self._open_ms = time_ms
        return refuted

    def examine_near(self, guess_ms: float, low_ms: float, high_ms: float) -> None:
        """Examine times around the guess, further and further, until both kinds are known."""
        self.refutes(guess_ms)
        # Pipelines hold about in proportion to their time.
        expected_ms = min(guess_ms * self._needed / max(self._offered, LEAST_SHARE), high_ms)
        margin = NEAR
        toward = 1 if self.refutes(expected_ms * (1 - margin)) else -1
        edge_ms = expected_ms * (1 + toward * margin)
        while low_ms < edge_ms < high_ms and self.refutes(edge_ms) == (toward > 0):
            margin *= 8
            edge_ms = expected_ms * (1 + toward * margin)


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


def certify(fleet: Fleet, batch: Batch, objective_ms: float) -> float:
    """Prove a lower bound (ms) on the step's time with this fleet, by priced relaxation.

    If stages have recomputation modes and the bound is far, a finer program is solved.
    """
    low_ms = _certify_cases(fleet, batch, objective_ms, COARSE)
    if low_ms >= objective_ms / (1 + FINE_FROM) or not has_staged_modes(fleet):
        return low_ms
    return max(low_ms, _certify_cases(fleet, batch, objective_ms, FINE))


def has_staged_modes(fleet: Fleet) -> bool:
    """Whether pipelines with stages have recomputation modes, which coarse programs mix."""
    return any(pipeline_class.pp > 1 and pipeline_class.modes for pipeline_class in fleet.classes)


def _certify_cases(fleet: Fleet, batch: Batch, objective_ms: float, detail: Detail) -> float:
    """Prove a bound (ms), if need be one for each class of the longest sequence.

    If the longest sequence needs stages, the relaxation lets a part of a pipeline pay for the
    bubbles that it causes. So if its bound is not close, the least is taken of bounds that each
    assume on which class that sequence runs (``Fleet.assume_longest``).
    """
    cases = fleet.assume_longest(batch.longest)
    low_ms = certify_relaxed(fleet, batch, objective_ms, 1 if cases else REFINED, detail)
    if not cases or low_ms >= objective_ms / (1 + 2 * CERTIFY_GAP):
        return low_ms
    least_ms = inf
    for assumed in cases:
        least_ms = min(least_ms, certify_relaxed(assumed, batch, objective_ms, detail=detail))
        if least_ms <= low_ms:
            break
    return max(low_ms, least_ms)


def certify_relaxed(
    fleet: Fleet,
    batch: Batch,
    objective_ms: float,
    times: int = REFINED,
    detail: Detail = COARSE,
) -> float:
    """Prove a lower bound by relaxation, solved so many times at most (ms)."""
    low = single_bound_ms(fleet.classes, batch)
    time = objective_ms / (1 + CERTIFY_GAP)
    if low >= time:
        return min(low, objective_ms)
    halved = False
    while times > 0:
        times -= 1
        relaxed = relax(fleet.classes, batch, time, detail=detail)
        if relaxed is None:
            return low  # not solved: that proves nothing
        expected = time * relaxed.scale
        low = bound_by_relaxation_ms(
            fleet.classes, batch, relaxed, low, objective_ms, guess_ms=expected
        )
        if low >= min(expected / (1 + CERTIFY_GAP), objective_ms / (1 + 2 * CERTIFY_GAP)):
            break
        time = low * (1 + CERTIFY_GAP)
        if low < expected * (1 - FAR) and not halved:
            time, halved, times = (low + objective_ms) / 2, True, times + 1
    return low
