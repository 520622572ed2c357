"""Data, costs and an oracle of balancing over equal ranks."""

from collections.abc import Iterator
from itertools import product

from seqplan import Cost
from seqplan.planner.balance.balanced import Execution

COST = Cost(1.2e-6, 0.05, 20.0)
EXECUTIONS: tuple[Execution, ...] = ("lockstep", "uniform")


def time_assignments(
    lengths: list[int], ranks: int, capacity: int, cost: Cost, execution: Execution, number: int
) -> Iterator[tuple[float, bool]]:
    """Time every assignment to ``number`` micro-batches a rank (ms), and whether none is empty."""
    for choice in product(range(ranks * number), repeat=len(lengths)):
        loads = [[0.0, 0] for _ in range(ranks * number)]
        for length, place in zip(lengths, choice, strict=True):
            loads[place][0] += length * (cost.a * length + cost.b)
            loads[place][1] += length
        if any(tokens > capacity for _, tokens in loads):
            continue
        times = [work + cost.c if tokens else 0.0 for work, tokens in loads]
        if execution == "lockstep":
            time = sum(max(times[k * ranks : (k + 1) * ranks]) for k in range(number))
        else:
            time = max(sum(times[rank::ranks]) for rank in range(ranks))
        yield time, all(tokens for _, tokens in loads)
