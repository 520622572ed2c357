"""A bound on all round plans that counts the idle room of long rounds.

``rounds_bound_ms`` lets work flow between rounds. But a round that one long sequence stretches can
not be filled with short ones if memory is tight: tokens per GPU and round are about the same for
every degree. Here each round has a separate length, tokens and groups. From the outside in:

1. ``prove_rounds``: the bound is the least over all numbers of rounds. Of plans with more than
   ``HEADS`` + 1 rounds only the longest ``HEADS`` are distinguished; the others are one pool of any
   number of rounds, which share its time.
2. For each number, the largest total that no plan stays below, by bisection.
3. A total is refuted if no lengths t₁ ≥ t₂ ≥ … of the longest rounds can reach it. They are cut
   into cells; if the batch does not fit the largest lengths of a cell and all the time that is
   left, no plan with rounds in this cell is below the total. Cells in which it fits are halved
   (branch and bound) down to ``FINEST``. The longest round counts once more for each further stage.
4. Whether it fits is a linear program (``round_program``) that spreads groups of similar lengths
   over rounds and degrees, with fractional numbers of sequence-parallel groups. That it does not is
   proven by prices, apart from the solver (``round_prices``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.plan_rounds import MicroSteps
from seqplan.planner.lockstep.round_bounds import fewest_rounds, rounds_bound_ms
from seqplan.planner.lockstep.round_prices import refutes
from seqplan.planner.lockstep.round_program import (
    LengthGroups,
    Pool,
    RoundProgram,
    least_overhead_ms,
)
from seqplan.planner.placement.fleet import PipelineClass

HEADS = 2
"""Rounds whose lengths are distinguished in plans of more rounds than one more than these."""

NEAR = 0.02
"""The gap below which no closer bound is sought."""

FINEST, TOLERANCE = 4e-3, 2e-3
"""Width of a cell that is halved no more, and of the bisection for the total; of the total."""

MOST_PROGRAMS = 150
"""Programs for one total; beyond, it counts as not refuted."""

_Cell = tuple[tuple[float, float], ...]
"""The least and the largest length (ms) of each of the longest rounds."""


def prove_rounds(rounds: MicroSteps, batch: Batch) -> MicroSteps:
    """Return the rounds with the larger of their bound and the one proven here (seconds).

    Unchanged if they are within ``NEAR`` of their bound already.
    """
    if rounds.objective_ms <= rounds.lower_bound_ms * (1 + NEAR):
        return rounds
    proof = _Proof(rounds.bounded, batch, rounds.ranks, rounds.stages)
    return rounds.with_bound(proof.bound_ms(rounds.lower_bound_ms, rounds.objective_ms))


@dataclass(frozen=True)
class _Proof:
    classes: Sequence[PipelineClass]
    batch: Batch
    gpus: int
    stages: int

    @cached_property
    def _lengths(self) -> LengthGroups:
        return LengthGroups.from_batch(self.batch)

    @cached_property
    def _fewest(self) -> int:
        """The fewest rounds that any plan has."""
        return fewest_rounds(self.classes, self.batch, self.gpus)

    @cached_property
    def _overhead_ms(self) -> float:
        """The least that a round takes."""
        return least_overhead_ms(self.classes)

    def bound_ms(self, low_ms: float, reached_ms: float) -> float:
        """Prove a bound (ms) over all numbers of rounds, between two known times."""
        fewest = self._fewest
        least = reached_ms
        for count in range(min(fewest, HEADS + 2), HEADS + 3):
            at_least = rounds_bound_ms(
                self.classes, self.batch, self.gpus, max(fewest, count), self.stages
            )
            if at_least >= least:
                break  # so do all plans of more rounds
            least = min(least, self._of_count_ms(count, at_least, least))
        return max(low_ms, min(least, reached_ms))

    def _of_count_ms(self, count: int, low_ms: float, high_ms: float) -> float:
        """Bisect for the largest total (ms) that no plan of ``count`` rounds stays below.

        Above ``HEADS`` + 1 of that many or more.
        """
        if self._total_refuted(count, high_ms):
            return high_ms
        low, high = low_ms, high_ms
        while high - low > TOLERANCE * high:
            middle = (low + high) / 2
            if self._total_refuted(count, middle):
                low = middle
            else:
                high = middle
        return low

    def _total_refuted(self, count: int, total_ms: float) -> bool:
        """Whether no plan of ``count`` rounds, the longest first, takes at most ``total_ms``.

        A plan that takes less is refuted with it: its rounds may last longer, up to the total.
        """
        cells = [self._all_lengths(count, total_ms)]
        for _ in range(MOST_PROGRAMS):
            if not cells:
                return True
            cell = cells.pop()
            if self._cell_refuted(cell, count, total_ms):
                continue
            widths = [high - low for low, high in cell]
            if not widths or max(widths) <= FINEST * total_ms:
                return False
            cells += _halves(cell, widths.index(max(widths)))
        return False

    def _all_lengths(self, count: int, total_ms: float) -> _Cell:
        """Return the cell of all lengths that the longest rounds may have."""
        least, heads = self._overhead_ms, min(count - 1, HEADS)
        # The longest round counts ``stages`` times.
        cell = [(least, total_ms / (place + self.stages)) for place in range(heads)]
        if cell:
            mean = total_ms / (count + self.stages - 1) if count <= HEADS + 1 else 0.0
            cell[0] = (max(mean, least), (total_ms - (count - 1) * least) / self.stages)
        return tuple(cell)

    def _cell_refuted(self, cell: _Cell, count: int, total_ms: float) -> bool:
        """Whether the longest rounds of a cell and all others cannot hold the batch."""
        lows = [low for low, _ in cell]
        drained = (self.stages - 1) * lows[0] if lows else 0.0
        left_ms = total_ms - sum(lows) - drained if lows else total_ms / self.stages
        if left_ms <= 0 or left_ms < self._overhead_ms:
            return True
        fewest = max(count, self._fewest) if count > HEADS + 1 else count
        rest = Pool(left_ms, fewest - len(cell))
        highs = [high for _, high in cell]
        return refutes(RoundProgram.of(self.classes, self._lengths, self.gpus, highs, rest))


def _halves(cell: _Cell, place: int) -> tuple[_Cell, _Cell]:
    """Cut a cell in the middle of one of its lengths: the shorter half first."""
    low, high = cell[place]
    middle = (low + high) / 2
    before, after = cell[:place], cell[place + 1 :]
    return (*before, (low, middle), *after), (*before, (middle, high), *after)
