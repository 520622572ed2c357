"""The order in which a pipeline runs its micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.planner.simulation.one_f_one_b import FORWARD_FRACTION, list_shares, simulate_ms


def order_micro_batches(
    costs_ms: Sequence[float],
    pp: int,
    forward_fraction: float | Sequence[float] = FORWARD_FRACTION,
) -> list[int]:
    """Return indices in the order of least simulated time among three: given, descending, hill.

    The hill has small micro-batches at both ends, where the pipeline fills and drains, and large
    ones in the middle. With one stage the order does not matter and is kept. In an order that rises
    to a peak and falls, as the last two, the simulation is at most form S; in others it may be
    longer ([2, 1, 2] on two stages takes 8, form S is 7), and so where forward's share
    (``forward_fraction``, also of each micro-batch) differs.
    """
    n = len(costs_ms)
    as_numbered = list(range(n))
    if pp == 1 or n < 3:
        return as_numbered
    ascending = sorted(as_numbered, key=lambda j: (costs_ms[j], j))
    hill = ascending[0::2] + ascending[1::2][::-1]
    orders = [as_numbered, ascending[::-1], hill]
    shares = list_shares(forward_fraction, n)
    times = [
        simulate_ms([costs_ms[j] for j in order], pp, [shares[j] for j in order])
        for order in orders
    ]
    return orders[times.index(min(times))]
