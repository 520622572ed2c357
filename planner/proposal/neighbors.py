"""Strategies one pipeline away from the best ones, by exact times.

The search judges swaps by estimates of a fill. With stages, exchanges that follow shorten some
strategies more than others, so that a neighbor can be faster than all that were found.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqplan.planner.proposal.batch_times import BatchTimes
from seqplan.planner.strategies.local_search import swap
from seqplan.plans.scheme import Strategy

BEST, ADDED, ROUNDS = 5, 4, 3
"""Strategies with neighbors, neighbors of a batch that are timed on all batches, and times that
this is repeated. Iterations of settings of ``./run bench memory`` are up to 1.3 % shorter by them,
of most settings hardly; with all schemes in place of those in use the same, in more time."""


def find_neighbors(
    strategies: Sequence[Strategy], judged: Sequence[BatchTimes], gpus: int
) -> list[Strategy]:
    """Find more strategies that are among the best of a batch; all given ones are timed.

    Each of the best on average gives up a pipeline for schemes that any strategy has. Neighbors are
    timed on one batch, and the fastest on all, until the mean time of the best falls no more.
    """
    known = list(strategies)
    for batch_times, _ in zip(judged, range(ROUNDS), strict=False):
        before_ms = _mean_best_ms(known, judged)
        new = _list_swaps(_list_best(known, judged), known, gpus)
        for strategy in new:
            batch_times.try_strategy(strategy)
        fastest = sorted(new, key=batch_times.time_ms)[:ADDED]
        for strategy in fastest:
            for other in judged:
                other.try_strategy(strategy)
        known += fastest
        if _mean_best_ms(known, judged) >= before_ms:
            break
    return known[len(strategies) :]


def _mean_best_ms(strategies: Sequence[Strategy], judged: Sequence[BatchTimes]) -> float:
    """Average the time of the best strategy of each batch (ms)."""
    return float(np.mean([min(map(one.time_ms, strategies)) for one in judged]))


def _list_best(strategies: Sequence[Strategy], judged: Sequence[BatchTimes]) -> list[Strategy]:
    """List the strategies with the least mean time over all batches."""
    return sorted(strategies, key=lambda each: sum(one.time_ms(each) for one in judged))[:BEST]


def _list_swaps(
    strategies: Sequence[Strategy], known: Sequence[Strategy], gpus: int
) -> list[Strategy]:
    """List what strategies become by one swap for a scheme of the known ones; none of these."""
    schemes = sorted({scheme for strategy in known for scheme, _ in strategy.counts})
    swapped = dict.fromkeys(
        swap(strategy, outgoing, incoming, 1, gpus)
        for strategy in strategies
        for outgoing, _ in strategy.counts
        for incoming in schemes
        if incoming != outgoing
    )
    return [strategy for strategy in swapped if strategy is not None and strategy not in known]
