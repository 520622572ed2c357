"""Refuting micro-steps of given lengths by prices: the checked duals of a program.

``solve`` solves the linear program of a ``MicroStepProgram``, whose duals are the prices of what
micro-steps have, and ``certify`` computes anew what any prices prove: they are made feasible by
construction, so that nothing rests on the solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqplan.planner.bounds.linear_program import Block, minimize
from seqplan.planner.bounds.resources import ROUNDING
from seqplan.planner.lockstep.bounds.micro_step_program import RESOURCES, MicroStepProgram
from seqplan.planner.placement.fleet import Floats, Ints

LEAST_LEFT_OVER = 1e-7
"""Share of the batch's work up to which unplaced work counts as nothing."""


@dataclass(frozen=True)
class Prices:
    """Duals, none negative: of each slot's resources (micro-steps, classes, resources), of a GPU in
    each micro-step, the last included, and of a GPU for all the pool's time (0 without a pool)."""

    resources: Floats
    micro_steps: Floats
    time: float


class _Columns:
    """Where the program's variables stand.

    Sequences of each group of lengths in each slot that takes them; groups of ranks of each slot;
    in the pool their work, and its number of micro-steps; and the sequences of each group left
    over.
    """

    def __init__(self, program: MicroStepProgram) -> None:
        self.slots: Ints = np.argwhere(program.fits.any(axis=-1))
        self.taken = [np.flatnonzero(program.fits[r, k]) for r, k in self.slots]
        self._starts = np.cumsum([0, *map(len, self.taken)])
        self.groups = int(self._starts[-1])
        first_work = self.groups + len(self.slots)
        last = program.fits.shape[0] - 1
        pooled = [place for place, (r, _) in enumerate(self.slots) if program.pool and r == last]
        self.work = {place: first_work + n for n, place in enumerate(pooled)}
        self.micro_steps = first_work + len(pooled)
        self.left_over = self.micro_steps + (program.pool is not None)
        self.number = self.left_over + program.fits.shape[-1]

    def sequences(self, place: int) -> Ints:
        """Those of the sequences in a slot, by its place."""
        return np.arange(self._starts[place], self._starts[place + 1])


def solve(program: MicroStepProgram) -> Prices | None:
    """Minimize the work that is left over; the duals. None if the micro-steps hold the batch."""
    columns, tables = _Columns(program), program.tables
    numbers = tables.lengths.numbers
    blocks, limits = _write_limits(program, columns)
    cheapest = (tables.sizes[:, None] * tables.work).min(axis=0)
    objective = np.zeros(columns.number)
    objective[columns.left_over :] = cheapest / (cheapest @ numbers)
    lower = np.zeros(columns.number)
    if program.pool is not None:
        lower[columns.micro_steps] = program.pool.fewest
    everywhere = _place_everywhere(columns, len(limits))
    solved = minimize(objective, [*blocks, *everywhere], limits, numbers, lower)
    if solved is None or solved.objective <= LEAST_LEFT_OVER:
        return None
    duals: Floats = np.maximum(0.0, -solved.duals[: len(limits)])
    of_slots, of_gpus = np.split(duals, [RESOURCES * len(columns.slots)])
    resources = np.zeros(program.shares.shape[:3])
    resources[tuple(columns.slots.T)] = of_slots.reshape(-1, RESOURCES)
    micro_steps = program.fits.shape[0]
    time = 0.0 if program.pool is None else float(of_gpus[-1])
    return Prices(resources, of_gpus[:micro_steps], time)


def _write_limits(program: MicroStepProgram, columns: _Columns) -> tuple[list[Block], Floats]:
    """Write the rows of use ≤ limits, in the order of ``Prices``; return them and the limits.

    For each slot and resource, what sequences take is no more than its groups of ranks have; in
    each micro-step, and for all the pool's time, groups have no more than all GPUs.
    """
    pool, tables = program.pool, program.tables
    micro_step_rows = RESOURCES * len(columns.slots)
    rows = micro_step_rows + program.fits.shape[0] + (pool is not None)
    limits = np.zeros(rows)
    limits[micro_step_rows:] = tables.gpus
    blocks, single = [], []
    for place, (micro_step, k) in enumerate(columns.slots):
        taken, sequences = columns.taken[place], columns.sequences(place)
        shares = program.shares[micro_step, k][:, taken]
        resources, takers = np.nonzero(shares)
        first_row = RESOURCES * place
        blocks.append((shares[resources, takers], first_row + resources, sequences[takers]))
        for resource, row in enumerate(range(first_row, first_row + RESOURCES)):
            pooled_work = resource == 0 and place in columns.work
            single.append(
                (-1.0, row, columns.work[place] if pooled_work else columns.groups + place)
            )
        single.append((tables.sizes[k], micro_step_rows + micro_step, columns.groups + place))
        if place in columns.work:
            single.append((tables.sizes[k], rows - 1, columns.work[place]))
    if pool is not None:
        # Its work is in units of what all micro-steps of the pool hold without overhead.
        single.append((-float(tables.gpus), rows - 2, columns.micro_steps))
        limits[rows - 2] = 0.0
        overhead = tables.gpus * tables.least_overhead_ms / pool.time_ms
        single.append((overhead, rows - 1, columns.micro_steps))
    entries, at_row, at_column = zip(*single, strict=True)
    blocks.append((np.array(entries), np.array(at_row), np.array(at_column)))
    return blocks, limits


def _place_everywhere(columns: _Columns, first: int) -> list[Block]:
    """Write rows from ``first``: each group of sequences is in slots or left over."""
    blocks = [
        (np.ones(len(fitting)), first + fitting, columns.sequences(place))
        for place, fitting in enumerate(columns.taken)
    ]
    groups = np.arange(columns.number - columns.left_over)
    return [*blocks, (np.ones(len(groups)), first + groups, columns.left_over + groups)]


def refutes(program: MicroStepProgram, prices: Sequence[Prices]) -> int | None:
    """Return the place of the prices that refute the program most clearly; None if none."""
    if not prices:
        return None
    margins = certify(program, prices)
    best = int(margins.argmax())
    return best if margins[best] > 0 else None


def certify(program: MicroStepProgram, prices: Sequence[Prices]) -> Floats:
    """Compute the margin of the worth of sequences over the cost of GPUs, by prices.

    At any prices. A GPU of micro-step r costs λ_r, and a group of class k so gpus_k·λ_r; its
    resources are priced by a mix that sums to at most that. In the pool a GPU costs ν in each
    micro-step and μ for all the time; a group's work is priced by the one, the others by the other.
    A sequence is worth the least of its shares of a group's resources anywhere. If all together are
    worth more than the GPUs cost, they do not fit. Shares of that cost, less the rounding.
    """
    tables = program.tables
    of_gpus = np.stack([some.micro_steps for some in prices])
    times = np.array([some.time for some in prices])
    group_prices = of_gpus[:, :, None] * tables.sizes
    mixes = np.stack([some.resources for some in prices])
    if program.pool is None:
        mixes = _scale_to(mixes, group_prices)
    else:
        mixes[:, :-1] = _scale_to(mixes[:, :-1], group_prices[:, :-1])
        mixes[:, -1, :, 0] = times[:, None] * tables.sizes
        mixes[:, -1, :, 1:] = _scale_to(mixes[:, -1, :, 1:], group_prices[:, -1])
    worth = np.where(
        program.fits, np.matmul(mixes[..., None, :], program.shares)[..., 0, :], np.inf
    )
    all_worth = worth.min(axis=(1, 2)) @ tables.lengths.numbers
    cost = tables.gpus * (of_gpus[:, :-1].sum(axis=1) + _last_costs(program, of_gpus, times))
    margins = np.full(len(prices), -np.inf)
    finite = np.isfinite(cost) & (cost > 0)
    margins[finite] = all_worth[finite] / cost[finite] * (1 - ROUNDING) - (1 + ROUNDING)
    return margins


def _last_costs(program: MicroStepProgram, of_gpus: Floats, times: Floats) -> Floats:
    """Compute the most that a GPU costs in the last micro-step, by prices.

    The pool's ρ micro-steps cost μ·(1 − ρ·overhead/time) + ν·ρ, which is largest at the fewest or
    the most of them.
    """
    of_last, pool = of_gpus[:, -1], program.pool
    if pool is None:
        return of_last
    overhead = program.tables.least_overhead_ms / pool.time_ms
    most = 1 / overhead if overhead > 0 else np.inf
    at_fewest = times * (1 - pool.fewest * overhead) + of_last * pool.fewest
    at_most = np.where(of_last > 0, np.where(of_last > 0, of_last, 1.0) * most, 0.0)
    costs: Floats = np.maximum(at_fewest, at_most)
    return costs


def _scale_to(mixes: Floats, totals: Floats) -> Floats:
    """Scale prices, in the last dimension, to sums; all of it on the first if they are zero."""
    sums = mixes.sum(axis=-1)
    scaled: Floats = mixes * (totals / np.where(sums > 0, sums, 1.0))[..., None]
    scaled[..., 0] = np.where(sums > 0, scaled[..., 0], totals)
    return scaled
