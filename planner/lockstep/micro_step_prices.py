"""Refuting micro-steps of given lengths by prices: the checked duals of a program.

``refutes`` solves the linear program of a ``MicroStepProgram`` (``solve``), whose duals are the
prices of what micro-steps have, and computes anew what these prices prove (``certify``): they are
made feasible by construction, so that nothing rests on the solver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

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
    from scipy.optimize import linprog

    columns = _Columns(program)
    shortest, numbers = program.lengths.shortest, program.lengths.numbers
    use, limits = _write_limits(program, columns)
    cheapest = np.min([c.gpus * c.work_ms(shortest) for c in program.classes], axis=0)
    objective = np.zeros(columns.number)
    objective[columns.left_over :] = cheapest / (cheapest @ numbers)
    lower = np.zeros(columns.number)
    if program.pool is not None:
        lower[columns.micro_steps] = program.pool.fewest
    solved = linprog(
        objective,
        A_ub=use,
        b_ub=limits,
        A_eq=_everywhere(columns),
        b_eq=numbers,
        bounds=np.stack([lower, np.full_like(lower, np.inf)], axis=1),
        method="highs",
    )
    if solved.status != 0 or solved.fun <= LEAST_LEFT_OVER:
        return None
    duals: Floats = np.maximum(0.0, -np.asarray(solved.ineqlin.marginals))
    resources, of_gpus = np.split(duals, [RESOURCES * len(program.shares)])
    return Prices(
        resources.reshape(-1, RESOURCES),
        of_gpus[: program.first + 1],
        0.0 if program.pool is None else float(of_gpus[-1]),
    )


def _write_limits(program: MicroStepProgram, columns: _Columns) -> tuple[Any, Floats]:
    """Write the rows ``use @ variables ≤ limits``, in the order of ``Prices``.

    For each slot and resource, what sequences take is no more than its groups of ranks have; in
    each micro-step, and for all the pool's time, groups have no more than all GPUs.
    """
    from scipy.sparse import lil_matrix

    slots, pool = len(program.shares), program.pool
    micro_step_rows = RESOURCES * slots
    rows = micro_step_rows + program.first + (1 if pool is None else 2)
    use = lil_matrix((rows, columns.number))
    limits = np.zeros(rows)
    limits[micro_step_rows:] = program.gpus
    for place, (slot, share) in enumerate(program.shares.items()):
        for resource in range(RESOURCES):
            row = RESOURCES * place + resource
            use[row, columns.sequences(place)] = share[resource][columns.taken[place]]
            pooled_work = resource == 0 and place in columns.work
            use[row, columns.work[place] if pooled_work else columns.groups + place] = -1.0
        gpus = float(program.classes[slot[1]].gpus)
        use[micro_step_rows + slot[0], columns.groups + place] = gpus
        if place in columns.work:
            use[rows - 1, columns.work[place]] = gpus
    if pool is not None:
        # Its work is in units of what all micro-steps of the pool hold without overhead.
        use[rows - 2, columns.micro_steps] = -float(program.gpus)
        limits[rows - 2] = 0.0
        use[rows - 1, columns.micro_steps] = program.gpus * program.overhead_ms / pool.time_ms
    return use.tocsr(), limits


def _everywhere(columns: _Columns) -> Any:
    """Write the rows of the sequences of each group: those in all slots, and those left over."""
    from scipy.sparse import lil_matrix

    groups = range(columns.number - columns.left_over)
    sums = lil_matrix((len(groups), columns.number))
    for place, fitting in enumerate(columns.taken):
        sums[fitting, np.array(columns.sequences(place))] = 1.0
    sums[groups, range(columns.left_over, columns.number)] = 1.0
    return sums.tocsr()


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
