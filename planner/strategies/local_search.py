"""A strategy made for one batch: the relaxation's pipeline counts, rounded and improved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.resources import Floats
from seqplan.planner.exchange import NO_EXCHANGE, Exchange
from seqplan.planner.placement.dispatch import dispatch, probe
from seqplan.planner.placement.fill import Filler, Filling
from seqplan.planner.placement.fleet import Fleet
from seqplan.plans.scheme import Scheme, Strategy
from seqplan.profiler.scheme_model import SchemeModel

Models = Mapping[Scheme, SchemeModel]

FIRST_SIZES = (1, 8)
"""Sizes of a swap that are tried first: on many GPUs a single pipeline changes too little."""

_WHOLE = 1e-6


def rounded_strategies(
    schemes: Sequence[Scheme], pipelines: Floats, models: Models, gpus: int, longest: int
) -> list[Strategy]:
    """Integer strategies near fractional pipeline counts, each able to hold ``longest`` tokens.

    The whole parts are kept; what GPUs remain go, in turn, to the largest fractional parts, to the
    scheme with most use of its kind, or to the largest scheme that fits. Left-over GPUs are filled.
    """
    whole = {s: int(np.floor(n + _WHOLE)) for s, n in zip(schemes, pipelines, strict=True)}
    part = {s: float(n) - whole[s] for s, n in zip(schemes, pipelines, strict=True)}
    used = [s for s, n in zip(schemes, pipelines, strict=True) if n > _WHOLE]
    by_part = sorted(used, key=lambda s: (-part[s], s))
    by_use = sorted(used, key=lambda s: (-whole[s], s))
    by_size = sorted(used, key=lambda s: (-s.gpus, s))
    found: dict[Strategy, None] = {}
    for priority in (by_part, by_use, by_size, by_size[::-1]):
        counts = _hold(dict(whole), models, gpus, longest)
        if counts is None:
            return []
        left = gpus - sum(s.gpus * n for s, n in counts.items())
        for scheme in priority if priority is by_part else []:
            if part[scheme] > 0.3 and scheme.gpus <= left:
                counts[scheme] = counts.get(scheme, 0) + 1
                left -= scheme.gpus
        found.setdefault(Strategy.of(_fill_up(counts, left, priority, models)))
    return list(found)


def _hold(
    counts: dict[Scheme, int], models: Models, gpus: int, longest: int
) -> dict[Scheme, int] | None:
    """``counts`` with a scheme that holds the longest sequence, others given up for it."""
    if any(n and models[s].max_sequence >= longest for s, n in counts.items()):
        return counts
    able = [s for s, m in models.items() if m.max_sequence >= longest]
    if not able:
        return None
    least = min(able, key=lambda s: (s.gpus, models[s].alone_ms(longest), s))
    while sum(s.gpus * n for s, n in counts.items()) + least.gpus > gpus:
        given_up = max((s for s, n in counts.items() if n), key=lambda s: (counts[s], s))
        counts[given_up] -= 1
    counts[least] = counts.get(least, 0) + 1
    return counts


def _fill_up(
    counts: dict[Scheme, int], left: int, priority: Iterable[Scheme], models: Models
) -> dict[Scheme, int]:
    """Give the left-over GPUs away: by ``priority``, then to whatever fits, largest first."""
    rest = sorted(models, key=lambda s: (-s.gpus, s.pp, s))
    for scheme in [*priority, *rest]:
        more = left // scheme.gpus
        if more:
            counts[scheme] = counts.get(scheme, 0) + more
            left -= more * scheme.gpus
    return counts


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
