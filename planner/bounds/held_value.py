"""The most value that a pipeline can hold by a time, at mixes of its resources.

In each state the shares of a pipeline's sequences sum to at most 1 for each resource
(``resources``), and so for a mix of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.resources import RESOURCES, ClassLengths
from seqplan.planner.placement.fleet import Floats, Ints, PipelineClass

FIXED_MIXES = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]])
"""Mixes tried in addition to the relaxation's when all schemes are in play."""

LEAST_SHARE = 1e-300
"""Least share that a value is divided by, so that a value over no share is as good as infinite."""


@dataclass(frozen=True)
class Mixes:
    """Weights of one class's resources in its states; every row sums to 1.

    ``even`` (V, resources): of the even states, V = 1 …; ``peaked`` (levels, resources): of the
    peaked states at the relaxation's levels, no rows without bubbles.
    """

    even: Floats
    peaked: Floats


@dataclass(frozen=True)
class Relaxation:
    """The program's solution at one time.

    ``scale``: least factor on the pipelines (or GPUs) for the relaxed batch to fit; ``pipelines``:
    used per class, Σ over V. ``values`` (n,): worth of a sequence of each distinct length;
    ``mixes``: one a class; ``levels``: of the peaked states (lengths in tokens). ``further``:
    numbers of micro-batches with bubbles that are distinguished beyond those of most work.
    """

    scale: float
    pipelines: Floats
    values: Floats
    mixes: tuple[Mixes, ...]
    levels: Ints
    further: int = 0

    @property
    def resources(self) -> int:
        """Count the resources that are mixed."""
        return int(self.mixes[0].even.shape[1])


def list_fixed_mixes(relaxation: Relaxation) -> Floats:
    """Return ``FIXED_MIXES`` for a relaxation's resources: further ones also alone."""
    more = relaxation.resources - RESOURCES
    return np.concatenate(
        [np.pad(FIXED_MIXES, ((0, 0), (0, more))), np.eye(relaxation.resources)[RESOURCES:]]
    )


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
            pipeline_class,
            batch.distinct,
            batch.multiplicity,
            relaxation.levels,
            relaxation.resources,
        )
        self._mixes = relaxation.mixes[k]
        self._further = relaxation.further if pipeline_class.least_bubbles else 0
        self._values = relaxation.values
        self._counts = batch.multiplicity.astype(np.float64)
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
        held = np.where(eligible, self._values, 0.0)
        ratios = np.maximum(share, LEAST_SHARE)
        with np.errstate(over="ignore"):
            np.divide(held[:, None, :], ratios, out=ratios)
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
        chosen = share[np.arange(len(share)), self._least_excess(time_ms, price)]
        least: Floats = np.where(eligible, chosen, np.inf).min(axis=0)
        return least

    def _least_excess(self, time_ms: float, price: float) -> npt.NDArray[np.intp]:
        """Choose the mix of each state at which values exceed priced shares by least (states,)."""
        share, eligible = self._shares(time_ms)
        excess = share * -price
        excess += self._values
        np.maximum(excess, 0.0, out=excess)
        counted = (eligible * self._counts)[:, :, None]
        least: npt.NDArray[np.intp] = (excess @ counted)[..., 0].argmin(axis=1)
        return least

    def _top(self, time_ms: float) -> int:
        """Return the largest V that is distinguished."""
        most = self._class.most_micro_batches(time_ms) + self._further
        return max(len(self._mixes.even), most)

    def _shares(self, time_ms: float) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Return shares by mix (states, mixes, n), and eligibility by state (states, n).

        Those of the latest time are kept.
        """
        if self._latest is None or self._latest[0] != time_ms:
            top = self._top(time_ms)
            weighed = self._lengths.shares(np.arange(1, top + 1), time_ms, self._mixes_of(top))
            self._latest = time_ms, *weighed
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
