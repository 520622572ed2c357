"""Batches from a data set's lengths: without replacement, in an order fixed by the seed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from seqplan.planner.batch import Batch


class Sampler:
    """Draws steps of about ``tokens`` tokens from sequences of these ``lengths``.

    Sequences longer than ``max_len`` count as truncated to it. Each epoch is a permutation fixed by
    (seed, epoch); a step takes sequences in that order until the next would exceed ``tokens``, at
    least one; a step that meets the end of an epoch goes on in the next, so that with little data
    it may meet a sequence again.
    """

    def __init__(
        self, lengths: npt.NDArray[np.integer], tokens: int, max_len: int, seed: int
    ) -> None:
        if tokens < 1:
            raise ValueError(f"tokens per step must be 1 or more, not {tokens}")
        if max_len < 1:
            raise ValueError(f"the longest sequence must be 1 or more tokens, not {max_len}")
        if not len(lengths):
            raise ValueError("no sequences to draw from")
        self.truncated = int((lengths > max_len).sum())
        self.lengths = np.minimum(lengths, max_len).astype(np.int64)
        self._tokens = tokens
        self._seed = seed

    def batches(self, steps: int | None = None) -> Iterator[Batch]:
        """The first ``steps`` steps, endless when None."""
        epoch, order, ends, at, step = -1, np.empty(0, np.int64), np.empty(0, np.int64), 0, 0
        while steps is None or step < steps:
            ids: list[int] = []
            room = self._tokens
            while True:
                if at == len(order):
                    epoch += 1
                    order = np.random.default_rng([self._seed, epoch]).permutation(
                        len(self.lengths)
                    )
                    ends, at = np.cumsum(self.lengths[order]), 0
                before = int(ends[at - 1]) if at else 0
                stop = int(np.searchsorted(ends, before + room, side="right"))
                if stop == at and not ids:
                    stop = at + 1
                ids.extend(order[at:stop].tolist())
                room -= int(ends[stop - 1]) - before if stop > at else 0
                at = stop
                if at < len(order) or room <= 0:
                    break
            yield Batch(step, tuple(ids), tuple(self.lengths[ids].tolist()))
            step += 1
