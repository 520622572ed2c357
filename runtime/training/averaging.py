"""An exponential moving average of the trained parameters, sharded as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from seqplan.runtime.states.unit_states import UnitStates


class ExponentialMovingAverage:
    """Average of the master copies that this rank owns: another 4 bytes a parameter / ranks.

    ``decay``: weight of the average at each ``update``; ``ValueError`` unless 0 ≤ decay < 1.
    """

    def __init__(self, states: UnitStates, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1: {decay}")
        self.decay = decay
        self._masters = [unit.master for unit in states.units]
        self._averages = [master.clone() for master in self._masters]

    @torch.no_grad()
    def update(self) -> None:
        """Add the parameters of the last step; called after each, without communication."""
        if self._averages:
            torch._foreach_lerp_(self._averages, self._masters, 1.0 - self.decay)

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Let the states have the average within, and its parameters again afterwards.

        To evaluate after ``materialize``, to ``export``, or to write and read its weights
        (``checkpoint.save_weights``, ``load_weights``). No step runs within. All ranks enter it.
        """
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for average, master in zip(self._averages, self._masters, strict=True):
            kept: Tensor = master.clone()
            master.copy_(average)
            average.copy_(kept)
