"""A bound on all micro-step plans that counts the idle room of long micro-steps.

``micro_steps_bound_ms`` lets work flow between micro-steps. But a micro-step that one long sequence
stretches can not be filled with short ones if memory is tight: tokens per GPU and micro-step are
about the same for every degree. Here each micro-step has a separate length, tokens and groups. From
the outside in:

1. ``prove_micro_steps``: the bound is the least over all numbers of micro-steps. Of plans with more
   than ``HEADS`` + 1 micro-steps only the longest ``HEADS`` are distinguished; the others are one
   pool of any number of micro-steps, which share its time.
2. For each number, the largest total that no plan stays below, by bisection.
3. A total is refuted if no lengths t₁ ≥ t₂ ≥ … of the longest micro-steps can reach it. They are
   cut into cells; if the batch does not fit the largest lengths of a cell and all the time that is
   left, no plan with micro-steps in this cell is below the total. Cells in which it fits are halved
   (branch and bound) down to ``FINEST``. The longest micro-step counts once more for each further
   stage.
4. Whether it fits is a linear program (``micro_step_program``) that spreads groups of similar
   lengths over micro-steps and degrees, with fractional numbers of sequence-parallel groups. That
   it does not is proven by prices, apart from the solver (``micro_step_prices``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.micro_step_bounds import fewest_micro_steps, micro_steps_bound_ms
from seqplan.planner.lockstep.micro_step_prices import refutes
from seqplan.planner.lockstep.micro_step_program import (
    LengthGroups,
    MicroStepProgram,
    Pool,
    least_overhead_ms,
)
from seqplan.planner.lockstep.plan_micro_steps import MicroSteps
from seqplan.planner.placement.fleet import PipelineClass

HEADS = 2
"""Micro-steps whose lengths are distinguished in plans of at least two more."""

NEAR = 0.02
"""The gap below which no closer bound is sought."""

FINEST, TOLERANCE = 4e-3, 2e-3
"""Width of a cell that is halved no more, and of the bisection for the total; of the total."""

MOST_PROGRAMS = 150
"""Programs for one total; beyond, it counts as not refuted."""

_Cell = tuple[tuple[float, float], ...]
"""The least and the largest length (ms) of each of the longest micro-steps."""


def prove_micro_steps(micro_steps: MicroSteps, batch: Batch) -> MicroSteps:
    """Return the micro-steps with the larger of their bound and the one proven here (seconds).

    Unchanged if they are within ``NEAR`` of their bound already.
    """
    if micro_steps.objective_ms <= micro_steps.lower_bound_ms * (1 + NEAR):
        return micro_steps
    proof = _Proof(micro_steps.bounded, batch, micro_steps.ranks, micro_steps.stages)
    return micro_steps.with_bound(
        proof.bound_ms(micro_steps.lower_bound_ms, micro_steps.objective_ms)
    )


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
        """The fewest micro-steps that any plan has."""
        return fewest_micro_steps(self.classes, self.batch, self.gpus)

    @cached_property
    def _overhead_ms(self) -> float:
        """The least that a micro-step takes."""
        return least_overhead_ms(self.classes)

    def bound_ms(self, low_ms: float, reached_ms: float) -> float:
        """Prove a bound (ms) over all numbers of micro-steps, between two known times."""
        fewest = self._fewest
        least = reached_ms
        for count in range(min(fewest, HEADS + 2), HEADS + 3):
            at_least = micro_steps_bound_ms(
                self.classes, self.batch, self.gpus, max(fewest, count), self.stages
            )
            if at_least >= least:
                break  # so do all plans of more micro-steps
            least = min(least, self._of_count_ms(count, at_least, least))
        return max(low_ms, min(least, reached_ms))

    def _of_count_ms(self, count: int, low_ms: float, high_ms: float) -> float:
        """Bisect for the largest total (ms) that no plan of ``count`` micro-steps stays below.

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
        """Whether no plan of ``count`` micro-steps, the longest first, takes at most ``total_ms``.

        A plan that takes less is refuted with it: its micro-steps may last longer, up to the total.
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
        """Return the cell of all lengths that the longest micro-steps may have."""
        least, heads = self._overhead_ms, min(count - 1, HEADS)
        # The longest micro-step counts ``stages`` times.
        cell = [(least, total_ms / (place + self.stages)) for place in range(heads)]
        if cell:
            mean = total_ms / (count + self.stages - 1) if count <= HEADS + 1 else 0.0
            cell[0] = (max(mean, least), (total_ms - (count - 1) * least) / self.stages)
        return tuple(cell)

    def _cell_refuted(self, cell: _Cell, count: int, total_ms: float) -> bool:
        """Whether the longest micro-steps of a cell and all others cannot hold the batch."""
        lows = [low for low, _ in cell]
        drained = (self.stages - 1) * lows[0] if lows else 0.0
        left_ms = total_ms - sum(lows) - drained if lows else total_ms / self.stages
        if left_ms <= 0 or left_ms < self._overhead_ms:
            return True
        fewest = max(count, self._fewest) if count > HEADS + 1 else count
        rest = Pool(left_ms, fewest - len(cell))
        highs = [high for _, high in cell]
        return refutes(MicroStepProgram.of(self.classes, self._lengths, self.gpus, highs, rest))


def _halves(cell: _Cell, place: int) -> tuple[_Cell, _Cell]:
    """Cut a cell in the middle of one of its lengths: the shorter half first."""
    low, high = cell[place]
    middle = (low + high) / 2
    before, after = cell[:place], cell[place + 1 :]
    return (*before, (low, middle), *after), (*before, (middle, high), *after)
