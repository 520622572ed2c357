"""Prices of earlier programs, which often prove that a step needs nearly all GPUs.

Whatever prices the resources of each state have, the least that each group of sequences costs in
any state adds up to no more than the program's scale (weak duality). Steps of one problem resemble
each other, so that prices of the last few programs prove the scale of most others well enough.
The prices that are known change no result. They only save a program that would find the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from seqplan.planner.placement.fleet import Floats, Ints, PipelineClass

LADDER = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 48, 64)
"""Numbers of micro-batches that are distinguished when all schemes are in play."""

KEPT = 4
"""Programs of the same classes whose prices are kept: of 53 proofs four find 50, one finds 44."""

MARGIN = 1e-6
"""Share that is taken off a proven scale, as that of a solver is rounded."""

_POSITIONS = np.array(LADDER)


class KnownPrices:
    """Mixes of resources of the latest programs of some classes, at ``LADDER`` and by level."""

    def __init__(self) -> None:
        self._of_programs: deque[Sequence[tuple[Floats, Floats]]] = deque(maxlen=KEPT)

    def add(self, ladders: Sequence[Ints], duals: Sequence[Floats]) -> None:
        """Keep the duals (states, resources) of a solved program, by class."""
        mixes = []
        for ladder, of_class in zip(ladders, duals, strict=True):
            even, peaked = np.split(of_class, [len(ladder)])
            levels = np.arange(len(peaked))
            mixes.append((_spread(ladder, even, _POSITIONS), _spread(levels, peaked, levels)))
        self._of_programs.append(mixes)

    def prove_scale(
        self,
        ladders: Sequence[Ints],
        shares: Sequence[Floats],
        eligible: npt.NDArray[np.bool_],
        weights: Floats,
        gpu_shares: Floats,
    ) -> float:
        """Bound the scale of a program from below; 0 if no prices are known.

        ``ladders`` and ``shares`` (states, resources, groups): of each class; ``eligible`` (states,
        groups) and ``gpu_shares`` (states,): a pipeline's part of the GPUs, of all states.
        """
        known = list(self._of_programs)
        if not known:
            return 0.0
        costs = []
        for k, (ladder, share) in enumerate(zip(ladders, shares, strict=True)):
            places = np.searchsorted(_POSITIONS, ladder)
            levels = np.arange(len(share) - len(ladder))
            mixes = [
                np.concatenate([even[places], peaked[np.minimum(levels, len(peaked) - 1)]])
                for even, peaked in (of_program[k] for of_program in known)
            ]
            costs.append(np.stack(mixes, axis=1) @ share)
        # (states, programs, groups)
        cost = np.where(
            eligible[:, None], np.concatenate(costs) * gpu_shares[:, None, None], np.inf
        )
        return float((cost.min(axis=0) @ weights).max()) * (1 - MARGIN)


@lru_cache(maxsize=64)
def recall_prices(classes: tuple[PipelineClass, ...]) -> KnownPrices:
    """Return the prices that are known of these classes; none at first."""
    return KnownPrices()


def _spread(at: Ints, duals: Floats, to: Ints) -> Floats:
    """Interpolate duals that have weight to other states; rows sum to 1.

    All weight is on work if none has any.
    """
    priced = duals.sum(axis=1) > 0
    if not priced.any():
        return np.eye(duals.shape[1])[np.zeros(len(to), dtype=np.int64)]
    spread = np.stack([np.interp(to, at[priced], column[priced]) for column in duals.T], axis=1)
    normalized: Floats = spread / spread.sum(axis=1, keepdims=True)
    return normalized
