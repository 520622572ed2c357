"""A bound on all micro-step plans that counts the idle room of long micro-steps.

``micro_steps_bound_ms`` lets work flow between micro-steps. But a micro-step that one long sequence
stretches can not be filled with short ones if memory is tight: tokens per GPU and micro-step are
about the same for every degree. Here micro-steps have separate lengths, tokens and groups:

1. ``prove_micro_steps``: the bound is the least over all plans, which are divided by their number
   of micro-steps and by the length t₁ of the longest. Of three and more the others are one pool of
   any number of micro-steps, which share its time.
2. Lengths are cut into cells (``cells``). A total is refuted in a cell if the batch does not fit
   the cell's largest lengths and the time that is left then after its least ones. The longest
   micro-step counts once more for each further stage.
3. Best first: the cell with the least refuted total is next. Its total rises as far as known prices
   refute it, or those of one more linear program (``micro_step_program``). A cell is halved after a
   program, down to the finest; then its pool gives up its longest micro-step, with cells of its
   length. The least total is a bound at any time.
4. The program spreads groups of similar lengths over micro-steps and degrees, with fractional
   numbers of sequence-parallel groups. That the batch does not fit is proven by prices, apart from
   the solver and for each length (``micro_step_prices``). Prices of one cell refute totals in
   others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.bounds.micro_step_bounds import (
    fewest_micro_steps,
    micro_steps_bound_ms,
)
from seqplan.planner.lockstep.bounds.micro_step_prices import Prices, refutes, solve
from seqplan.planner.lockstep.bounds.micro_step_program import MicroStepProgram, Pool, ShareTables
from seqplan.planner.lockstep.cells import Cell
from seqplan.planner.lockstep.micro_steps import MicroSteps


@dataclass(frozen=True)
class ProofSettings:
    """When a closer bound is sought, and for how long.

    ``few``: most micro-steps that a plan may need at least; ``near``: the gap below which none is
    sought; ``enough``: the gap at which it ends; ``finest``: width of a cell that is halved no
    more, as a share of the total; ``heads``: most micro-steps with separate lengths; ``programs``:
    most linear programs, and ``visits``: most of cells.
    """

    few: float
    near: float
    enough: float
    finest: float
    heads: int
    programs: int
    visits: int


QUICK = ProofSettings(few=3, near=0.02, enough=0.015, finest=2e-3, heads=1, programs=60, visits=600)
"""For every plan. On 8 steps of code, 32K, 200,000 tokens on 64 GPUs: gaps of 1.5 % (median) and
1.9 % (largest) in 0.15 s of CPU, after 2.8 % and 5.0 % without."""

CLOSE = ProofSettings(
    few=inf, near=0.01, enough=0.0, finest=1e-3, heads=3, programs=300, visits=2_000
)
"""For comparisons and checks: 0.9 % and 1.7 % on the same steps in 0.3 s, 1.3 s for one of them."""

WIDEST = 0.03
"""Width of a cell from which on programs are solved for it, as a share of the total."""

TOLERANCE, FIRST_STEP = 5e-4, 4e-3
"""By how much a total has to rise, and by how much it is tried to, as shares of it."""

MOST_PRICES = 24
"""The latest prices of one number of separate lengths, tried before another program."""


def prove_micro_steps(
    micro_steps: MicroSteps, batch: Batch, settings: ProofSettings = CLOSE
) -> MicroSteps:
    """Return the micro-steps with the larger of their bound and the one proven here.

    Unchanged if they are near their bound already, or too many.
    """
    if micro_steps.objective_ms <= micro_steps.lower_bound_ms * (1 + settings.near):
        return micro_steps
    fewest = fewest_micro_steps(micro_steps.bounded, batch, micro_steps.ranks)
    if fewest > settings.few:
        return micro_steps
    return micro_steps.with_bound(_Proof(micro_steps, batch, fewest, settings).bound_ms())


class _Proof:
    def __init__(
        self, micro_steps: MicroSteps, batch: Batch, fewest: int, settings: ProofSettings
    ) -> None:
        self._classes, self._batch = micro_steps.bounded, batch
        self._gpus, self._stages = micro_steps.ranks, micro_steps.stages
        self._low_ms, self._reached_ms = micro_steps.lower_bound_ms, micro_steps.objective_ms
        self._fewest, self._settings = fewest, settings
        self._tables, self._grouped = ShareTables.from_batch(self._classes, batch, self._gpus)
        self._prices: dict[tuple[int, bool], list[Prices]] = {}

    def bound_ms(self) -> float:
        """Prove a bound (ms) over all plans, between two known times."""
        settings, order = self._settings, count()
        queue = [(cell.refuted_ms, next(order), cell) for cell in self._list_all()]
        heapify(queue)
        enough_ms = self._reached_ms / (1 + settings.enough)
        programs = visits = 0
        while queue and queue[0][0] < enough_ms:
            if programs == settings.programs or visits == settings.visits:
                break
            visits += 1
            total_ms, _, cell = heappop(queue)
            finest = cell.width_ms <= settings.finest * total_ms
            raised = self._raise_by_known(cell)
            if (
                raised is None
                and cell.width_ms <= WIDEST * total_ms
                and (finest or not cell.solved)
            ):
                programs += 1
                raised = self._raise_by_program(cell)
            if raised is not None:
                parts = [raised]
            elif not finest:
                parts = cell.halve()
            elif not cell.exact and len(cell.lengths) < settings.heads:
                parts = cell.distinguish_longest(
                    self._reached_ms, self._tables.least_overhead_ms, self._stages
                )
            else:
                return total_ms
            for part in parts:
                heappush(queue, (part.refuted_ms, next(order), part))
        return min([self._reached_ms, *(total_ms for total_ms, _, _ in queue)])

    def _list_all(self) -> list[Cell]:
        """List the cells of all plans: of one micro-step, of two, and of more."""
        cells = []
        for number in range(min(self._fewest, 3), 4):
            fewest = max(self._fewest, number)
            bound_ms = micro_steps_bound_ms(
                self._classes, self._batch, self._gpus, fewest, self._stages
            )
            whole = Cell((), fewest, number < 3, max(self._low_ms, bound_ms))
            if number == 1:
                cells.append(whole)
            else:
                cells.append(
                    whole.add_length(self._reached_ms, self._tables.least_overhead_ms, self._stages)
                )
        return cells

    def _raise_by_known(self, cell: Cell) -> Cell | None:
        """Raise the total of a cell by prices of others; None if it rises too little."""
        total_ms = cell.refuted_ms * (1 + TOLERANCE)
        program = self._state(cell, total_ms, self._tables)
        if program is None or not program.takes_every_length:
            return replace(cell, refuted_ms=total_ms)
        prices = self._prices.setdefault(cell.kind, [])
        place = refutes(program, prices)
        if place is None:
            return None
        prices.append(prices.pop(place))
        return self._raise_by(cell, prices[-1], total_ms)

    def _raise_by_program(self, cell: Cell) -> Cell | None:
        """Raise the total of a cell by the prices of a program; None if the batch fits."""
        total_ms = cell.refuted_ms * (1 + TOLERANCE)
        program = self._state(cell, total_ms, self._tables)
        grouped = self._state(cell, total_ms, self._grouped)
        if program is None or grouped is None or (solved := solve(grouped)) is None:
            return None
        if refutes(program, [solved]) is None:
            return None
        prices = self._prices[cell.kind]
        prices.append(solved)
        del prices[:-MOST_PRICES]
        return replace(self._raise_by(cell, solved, total_ms), solved=True)

    def _raise_by(self, cell: Cell, prices: Prices, refuted_ms: float) -> Cell:
        """Raise the refuted total of a cell as far as prices refute it."""
        highest_ms = max(refuted_ms, self._reached_ms)
        total_ms, step_ms, refuted = refuted_ms, FIRST_STEP * refuted_ms, True
        while total_ms < highest_ms and step_ms > TOLERANCE * total_ms:
            next_ms = min(total_ms + step_ms, highest_ms)
            program = self._state(cell, next_ms, self._tables)
            if program is None or refutes(program, [prices]) is not None:
                total_ms = next_ms
            else:
                refuted = False
            step_ms *= 2 if refuted else 0.5
        return replace(cell, refuted_ms=total_ms)

    def _state(self, cell: Cell, total_ms: float, tables: ShareTables) -> MicroStepProgram | None:
        """State the program of a cell for a total; None if no time is left for the others."""
        left_ms = cell.left_ms(total_ms, self._stages)
        if left_ms <= 0 or left_ms < tables.least_overhead_ms:
            return None
        rest = Pool(left_ms, cell.fewest - len(cell.lengths))
        return MicroStepProgram.of(tables, [high for _, high in cell.lengths], rest)
