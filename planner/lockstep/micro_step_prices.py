"""Refuting micro-steps of given lengths by prices: the checked duals of a program.

``refutes`` solves the linear program of a ``MicroStepProgram`` (``solve``), whose duals are the
prices of what micro-steps have, and computes anew what these prices prove (``certify``): they are
made feasible by construction, so that nothing rests on the solver.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqplan.planner.bounds.linear_program import Block, minimize
from seqplan.planner.bounds.resources import ROUNDING
from seqplan.planner.lockstep.micro_step_program import RESOURCES, MicroStepProgram
from seqplan.planner.placement.fleet import Floats

LEAST_LEFT_OVER = 1e-7
"""Share of the batch's work up to which unplaced work counts as nothing."""


def refutes(program: MicroStepProgram) -> bool:
    """Whether the micro-steps cannot hold the batch, proven by the program's duals."""
    if not program.takes_every_length:
        return True
    prices = solve(program)
    if prices is None:
        return False
    worth, cost = certify(program, prices)
    return worth * (1 - ROUNDING) > cost * (1 + ROUNDING)


@dataclass(frozen=True)
class Prices:
    """Duals, none negative: of each slot's resources (slots, 4), of a GPU in each micro-step, the
    last included, and of a GPU for all the pool's time (0 without a pool)."""

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
        self.taken = [np.flatnonzero(np.isfinite(share[0])) for share in program.shares.values()]
        self._starts = np.cumsum([0, *map(len, self.taken)])
        self.groups = int(self._starts[-1])
        first_work = self.groups + len(program.shares)
        pooled = [place for place, slot in enumerate(program.shares) if program.in_pool(slot)]
        self.work = {place: first_work + n for n, place in enumerate(pooled)}
        self.micro_steps = first_work + len(pooled)
        self.left_over = self.micro_steps + (program.pool is not None)
        self.number = self.left_over + len(program.lengths.shortest)

    def sequences(self, place: int) -> range:
        """Those of the sequences in a slot, by its place."""
        return range(self._starts[place], self._starts[place + 1])


def solve(program: MicroStepProgram) -> Prices | None:
    """Minimize the work that is left over; the duals. None if the micro-steps hold the batch."""
    columns = _Columns(program)
    shortest, numbers = program.lengths.shortest, program.lengths.numbers
    blocks, limits = _write_limits(program, columns)
    cheapest = np.min([c.gpus * c.work_ms(shortest) for c in program.classes], axis=0)
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
    resources, of_gpus = np.split(duals, [RESOURCES * len(program.shares)])
    return Prices(
        resources.reshape(-1, RESOURCES),
        of_gpus[: program.first + 1],
        0.0 if program.pool is None else float(of_gpus[-1]),
    )


def _write_limits(program: MicroStepProgram, columns: _Columns) -> tuple[list[Block], Floats]:
    """Write the rows of use ≤ limits, in the order of ``Prices``; return them and the limits.

    For each slot and resource, what sequences take is no more than its groups of ranks have; in
    each micro-step, and for all the pool's time, groups have no more than all GPUs.
    """
    slots, pool = len(program.shares), program.pool
    micro_step_rows = RESOURCES * slots
    rows = micro_step_rows + program.first + (1 if pool is None else 2)
    limits = np.zeros(rows)
    limits[micro_step_rows:] = program.gpus
    blocks, single = [], []
    for place, (slot, share) in enumerate(program.shares.items()):
        taken, sequences = columns.taken[place], np.array(columns.sequences(place))
        for resource in range(RESOURCES):
            row = RESOURCES * place + resource
            blocks.append((share[resource][taken], np.full(len(taken), row), sequences))
            pooled_work = resource == 0 and place in columns.work
            single.append(
                (-1.0, row, columns.work[place] if pooled_work else columns.groups + place)
            )
        gpus = float(program.classes[slot[1]].gpus)
        single.append((gpus, micro_step_rows + slot[0], columns.groups + place))
        if place in columns.work:
            single.append((gpus, rows - 1, columns.work[place]))
    if pool is not None:
        # Its work is in units of what all micro-steps of the pool hold without overhead.
        single.append((-float(program.gpus), rows - 2, columns.micro_steps))
        limits[rows - 2] = 0.0
        overhead = program.gpus * program.overhead_ms / pool.time_ms
        single.append((overhead, rows - 1, columns.micro_steps))
    entries, at_row, at_column = zip(*single, strict=True)
    blocks.append((np.array(entries), np.array(at_row), np.array(at_column)))
    return blocks, limits


def _place_everywhere(columns: _Columns, first: int) -> list[Block]:
    """Write rows from ``first``: each group of sequences is in slots or left over."""
    blocks = [
        (np.ones(len(fitting)), first + fitting, np.array(columns.sequences(place)))
        for place, fitting in enumerate(columns.taken)
    ]
    groups = np.arange(columns.number - columns.left_over)
    return [*blocks, (np.ones(len(groups)), first + groups, columns.left_over + groups)]


def certify(program: MicroStepProgram, prices: Prices) -> tuple[float, float]:
    """Compute the least worth of all sequences and the most cost of the GPUs.

    At any prices. A GPU of micro-step r costs λ_r, and a group of class k so gpus_k·λ_r; its four
    resources are priced by a mix that sums to at most that. In the pool a GPU costs ν in each
    micro-step and μ for all the time; a group's work is priced by the one, the others by the other.
    A sequence is worth the least of its shares of a group's resources anywhere. If all together are
    worth more than the GPUs cost, they do not fit.
    """
    worth = np.full(len(program.lengths.shortest), np.inf)
    for resources, (slot, share) in zip(prices.resources, program.shares.items(), strict=True):
        gpus = program.classes[slot[1]].gpus
        group_price = gpus * prices.micro_steps[slot[0]]
        if program.in_pool(slot):
            work_price = np.array([gpus * prices.time])
            mix = np.concatenate([work_price, _summing_to(resources[1:], group_price)])
        else:
            mix = _summing_to(resources, group_price)
        fits = np.isfinite(share[0])
        worth[fits] = np.minimum(worth[fits], mix @ share[:, fits])
    gpu_cost = float(prices.micro_steps[: program.first].sum()) + _last_cost(program, prices)
    return float(worth @ program.lengths.numbers), gpu_cost * program.gpus


def _last_cost(program: MicroStepProgram, prices: Prices) -> float:
    """Compute the most that a GPU costs in the last micro-step or the pool.

    The pool's ρ micro-steps cost μ·(1 − ρ·overhead/time) + ν·ρ, which is largest at the fewest or
    the most of them.
    """
    micro_step_price, pool = float(prices.micro_steps[-1]), program.pool
    if pool is None:
        return micro_step_price
    overhead = program.overhead_ms / pool.time_ms
    most = 1 / overhead if overhead > 0 else np.inf
    at_fewest = prices.time * (1 - pool.fewest * overhead) + micro_step_price * pool.fewest
    at_most = micro_step_price * most if micro_step_price > 0 else 0.0
    return max(at_fewest, at_most)


def _summing_to(mix: Floats, total: float) -> Floats:
    """Scale prices to a sum, all of it on the first if they are zero."""
    if mix.sum() > 0:
        scaled: Floats = mix * (total / mix.sum())
        return scaled
    first: Floats = np.eye(len(mix))[0] * total
    return first
