"""Batches from a data set's lengths: without replacement, in an order fixed by the seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import numpy.typing as npt

from seqplan.planner.argument_checks import read_whole_number
from seqplan.planner.batches.batch import Batch
from seqplan.planner.errors import OptionError


@dataclass(frozen=True, slots=True)
class SamplerState:
    """Where a sampler is before ``step``: it goes on with place ``cursor`` of epoch ``epoch``.

    ``cursor``: sequences of the epoch that earlier steps have used. No sequence is drawn before its
    step, so that between two steps none is carried over.
    """

    step: int = 0
    epoch: int = 0
    cursor: int = 0


START = SamplerState()
"""Before the first step of a run."""


@dataclass(frozen=True, eq=False)
class _Epoch:
    """Sequences in the order of an epoch, int64, and the running sum of their tokens."""

    number: int
    order: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64] = field(repr=False)


def check_tokens(total: int, tokens: int) -> None:
    """Raise ``OptionError`` if a step of ``tokens`` is more than the data's ``total``."""
    if total < tokens:
        raise OptionError(
            "the data has {total} tokens, fewer than a step of {step}, which would repeat "
            "sequences. Give {0} of at most {total}, or more data",
            "tokens",
            total=total,
            step=tokens,
        )


class Sampler:
    """Draws steps of about ``tokens`` tokens from sequences of these ``lengths``.

    Sequences longer than ``max_len`` count as truncated to it. Each epoch is a permutation fixed by
    (seed, epoch); a step takes sequences in that order until the next would exceed ``tokens``, at
    least one; a step that meets the end of an epoch goes on in the next. ``ValueError`` for data of
    fewer tokens than a step, which every step would repeat.
    """

    def __init__(
        self, lengths: npt.NDArray[np.integer], tokens: int, max_len: int, seed: int
    ) -> None:
        if tokens < 1:
            raise ValueError(f"tokens per step must be 1 or more, not {tokens}")
        if max_len < 1:
            raise ValueError(f"the longest sequence must be 1 or more tokens, not {max_len}")
        if not len(lengths):
            raise ValueError("no sequences to draw from. Name data with sequences")
        self.truncated = int((lengths > max_len).sum())
        self.lengths = np.minimum(lengths, max_len).astype(np.int64)
        check_tokens(int(self.lengths.sum()), tokens)
        self._tokens = tokens
        self._seed = seed
        self._latest: _Epoch | None = None

    def batches(self, steps: int | None = None) -> Iterator[Batch]:
        """Draw the first ``steps`` steps, or steps without end when None."""
        drawn = (batch for _, batch in self.resume(START))
        return drawn if steps is None else islice(drawn, read_whole_number("steps", steps))

    def resume(self, state: SamplerState) -> Iterator[tuple[SamplerState, Batch]]:
        """Draw all steps from a state on, each with the state before it.

        Equal to the same steps of a whole run. Takes one permutation to begin, whatever the step.
        ``ValueError`` for a state that no run over these lengths has.
        """
        if not 0 <= state.cursor < len(self.lengths) or min(state.step, state.epoch) < 0:
            raise ValueError(
                f"{len(self.lengths)} sequences have no state {state}. Give at least one"
            )
        return self._resume(state)

    def _resume(self, state: SamplerState) -> Iterator[tuple[SamplerState, Batch]]:
        while True:
            pieces, following = self._step(state)
            ids = np.concatenate(pieces)
            yield state, Batch(state.step, tuple(ids.tolist()), tuple(self.lengths[ids].tolist()))
            state = following

    def state_before(self, step: int, known: SamplerState = START) -> SamplerState:
        """Find the state before ``step`` from an earlier one, through the steps between the two.

        ``ValueError`` if ``known`` is later.
        """
        if step < known.step:
            raise ValueError(
                f"step {step} is before the known state's, {known.step}. Start at a later step"
            )
        while known.step < step:
            known = self._step(known)[1]
        return known

    def count_epoch_steps(self) -> int:
        """Count the steps that begin in the first epoch."""
        state = START
        while state.epoch == 0:
            state = self._step(state)[1]
        return state.step

    def _step(self, state: SamplerState) -> tuple[list[npt.NDArray[np.int64]], SamplerState]:
        """Draw a step's ids, a piece for each epoch, and the state after it."""
        number, cursor, room = state.epoch, state.cursor, self._tokens
        pieces: list[npt.NDArray[np.int64]] = []
        while True:
            epoch = self._epoch(number)
            used = int(epoch.ends[cursor - 1]) if cursor else 0
            stop = int(np.searchsorted(epoch.ends, used + room, side="right"))
            if stop == cursor and not pieces:
                stop = cursor + 1
            if stop > cursor:
                pieces.append(epoch.order[cursor:stop])
                room -= int(epoch.ends[stop - 1]) - used
            cursor = stop
            if cursor < len(epoch.order):
                break
            number, cursor = number + 1, 0
            if room <= 0:
                break
        return pieces, SamplerState(state.step + 1, number, cursor)

    def _epoch(self, number: int) -> _Epoch:
        latest = self._latest
        if latest is None or latest.number != number:
            generator = np.random.default_rng([self._seed, number])
            order = generator.permutation(len(self.lengths))
            latest = self._latest = _Epoch(number, order, np.cumsum(self.lengths[order]))
        return latest
