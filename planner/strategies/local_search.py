"""Swaps of pipelines, each judged by placing the batch."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.planner.batches.batch import Batch
from seqplan.planner.exchange import NO_EXCHANGE, Exchange
from seqplan.planner.placement.dispatch import dispatch, probe
from seqplan.planner.placement.fill import Filler, Filling
from seqplan.planner.placement.fleet import Fleet, Models
from seqplan.plans.scheme import Scheme, Strategy

FIRST_SIZES = (1, 8)
"""Sizes of a swap that are tried first: on many GPUs a single pipeline changes too little."""


def swap(strategy: Strategy, out: Scheme, come: Scheme, size: int, gpus: int) -> Strategy | None:
    """Pipelines of ``out`` given up for pipelines of ``come``; None when there are too few.

    The smaller side is ``size`` pipelines of the larger scheme; GPUs that the swap leaves over,
    with those idle before, go to the incoming scheme.
    """
    counts = dict(strategy.counts)
    idle = gpus - strategy.gpus
    give = size if out.gpus >= come.gpus else -(-(size * come.gpus - idle) // out.gpus)
    take = (give * out.gpus + idle) // come.gpus
    if not 1 <= give <= counts.get(out, 0) or not take:
        return None
    counts[out] -= give
    counts[come] = counts.get(come, 0) + take
    return Strategy.of(counts)


def improve(
    batch: Batch,
    start: tuple[Fleet, Filling],
    models: Models,
    schemes: Sequence[Scheme],
    gpus: int,
    lower_ms: float,
    *,
    rounds: int,
    exchange: Exchange = NO_EXCHANGE,
) -> tuple[Fleet, Filling]:
    """Local search over strategies for one batch, by swaps, each judged by a single fill.

    A direction (scheme out, scheme in) that shortens the step is followed with doubled size while
    it does; then the least time is searched and the directions are tried anew. Ends after
    ``rounds`` such moves, when no direction helps, or at ``lower_ms``. Times count with what the
    ``exchange`` of parameters and gradients takes.
    """
    best = start
    seen = {start[0].strategy}
    for _ in range(rounds):
        moved = False
        directions = [(out, come) for out, _ in best[0].strategy.counts for come in schemes]
        for out, come in directions:
            if out == come:
                continue
            for first_size in FIRST_SIZES:
                size = first_size
                while better := _try(
                    batch, best, models, out, come, size, gpus, lower_ms, exchange, seen
                ):
                    best, moved = better, True
                    size *= 2
                if moved:
                    break
            if moved:
                break
        if not moved:
            break
        fleet, filling = best
        refined = dispatch(Filler(fleet, batch), lower_ms, known=filling)
        best = (fleet, refined or filling)
    return best


def _try(
    batch: Batch,
    best: tuple[Fleet, Filling],
    models: Models,
    out: Scheme,
    come: Scheme,
    size: int,
    gpus: int,
    lower_ms: float,
    exchange: Exchange,
    seen: set[Strategy],
) -> tuple[Fleet, Filling] | None:
    """The swapped strategy with a placement better than the best; None when there is none."""
    strategy = swap(best[0].strategy, out, come, size, gpus)
    if strategy is None or strategy in seen:
        return None
    seen.add(strategy)
    fleet = Fleet.of(strategy, models)
    if fleet.max_sequence < batch.longest:
        return None
    dearer = exchange.of_strategy_ms(strategy) - exchange.of_strategy_ms(best[0].strategy)
    filling = probe(Filler(fleet, batch), lower_ms, best[1].objective_ms - dearer)
    return None if filling is None else (fleet, filling)
