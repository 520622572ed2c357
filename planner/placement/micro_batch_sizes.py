"""Sizes of the micro-batches of a pipeline with stages, chosen before it is filled.

``fill_kernel.c`` does the same in C, operation by operation: whatever changes here changes there.
"""

from __future__ import annotations

from math import inf

from seqplan.planner.placement.fill_tables import ClassCosts
from seqplan.planner.placement.fleet import ROUND
from seqplan.planner.placement.ramps import Ramps, Sizes

MOST_COUNTED = 10_000
"""Micro-batches of a pipeline up to which the best V is sought. More would add less than pp/10,000
of the work: bubbles take (pp − 1)/(V + pp − 1) of its time, and V only limits the largest
micro-batch."""

MOST_EQUAL = 16
"""Sequences of about one length up to which micro-batches of whole numbers of them are compared."""

NEAR = 2.0
"""If the largest size is less than this many times that of the longest sequence, of which there are
several, all sizes end at it, so that more than one holds it. Without, steps of 70B are up to 0.6 %
longer; with 10 in its place, up to 3 %."""


def idle_of(costs: ClassCosts, number: int, micro_batches: int) -> float:
    """Return the bubbles of micro-batches of ``number`` sequences of one length.

    In micro-batches. Of single sequences none is smaller at the ends: stages idle for pp − 1.
    """
    return costs.bubbles.of(micro_batches) if number > 1 else costs.pp - 1.0


def choose_number(costs: ClassCosts, first: int, budget: float) -> tuple[int, int, float]:
    """Choose how many sequences of one length share a micro-batch: as many as fit a budget.

    ``first``: the index of the length; ``budget`` in ms. Returns the number, how many micro-batches
    there are, of which the last may have fewer, and the cost of a full one (ms). Only
    ``costs.together`` is tried, if set. The number is 0 if that of ``MOST_EQUAL`` is the best: so
    many fill a micro-batch of any size well.
    """
    costs_ms: list[float] = []
    most, chosen = 0, (0, 0, 0.0)
    for number in range(1, (costs.together or MOST_EQUAL) + 1):
        cost = inf
        for mode in costs.by_mode:
            if number * mode.padded[first] <= mode.capacity:
                cost = min(cost, number * mode.work[first] + mode.c)
        cost *= ROUND
        least_idle = costs.bubbles.of_many if number > 1 else costs.pp - 1.0
        full = int(min(budget / cost - least_idle, MOST_COUNTED)) if cost < inf else 0
        while full > 0 and (full + idle_of(costs, number, full)) * cost > budget:
            full -= 1
        if full <= 0:
            break
        left = budget - (full + costs.bubbles.of(full + 1)) * cost
        rest = number - 1
        while rest > 0 and costs_ms[rest - 1] > left:
            rest -= 1
        costs_ms.append(cost)
        if number * full + rest > most and costs.together in (0, number):
            most, chosen = number * full + rest, (number, full + (rest > 0), cost)
    return (0, 0, 0.0) if chosen[0] == MOST_EQUAL else chosen


def choose_sizes(
    ramps: Ramps, budget: float, alone: float, most_ms: float, light_c: float
) -> Sizes:
    """Choose the sizes of the most work; one of them is at least ``alone`` ms."""
    best, chosen = -1.0, Sizes(most_ms, 1)
    for v in range(1, MOST_COUNTED + 1):
        sizes, work = ramps.spread(v, budget, most_ms, light_c)
        if work <= best or (v > 1 and sizes.of(0) < alone):
            break
        best, chosen = work, sizes
    return chosen
