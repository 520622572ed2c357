"""Data, costs and an oracle of balancing over equal ranks."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from seqplan import Cost
from seqplan.planner.balance.balanced import Execution

COST = Cost(1.2e-6, 0.05, 20.0)
EXECUTIONS: tuple[Execution, ...] = ("lockstep", "uniform")


def time_assignments(
    lengths: list[int],
    capacity: int,
    time_ms: Callable[[list[int]], float],
    execution: Execution,
    number: int,
    slowdown: Sequence[float] = (1.0, 1.0),
) -> Iterator[tuple[float, bool]]:
    """Time every assignment to ``number`` micro-batches a rank (ms), and whether none is empty."""
    ranks = len(slowdown)
    for choice in product(range(ranks * number), repeat=len(lengths)):
        parts: list[list[int]] = [[] for _ in range(ranks * number)]
        for length, place in zip(lengths, choice, strict=True):
            parts[place].append(length)
        if any(sum(part) > capacity for part in parts):
            continue
        times = [
            slowdown[k % ranks] * time_ms(part) if part else 0.0 for k, part in enumerate(parts)
        ]
        if execution == "lockstep":
            time = sum(max(times[k * ranks : (k + 1) * ranks]) for k in range(number))
        else:
            time = max(sum(times[rank::ranks]) for rank in range(ranks))
        yield time, all(parts)
