"""A strategy made for one batch: the relaxation's pipeline counts, rounded and improved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from seqplan.planner.batch import Batch
from seqplan.planner.dispatch import dispatch, probe
from seqplan.planner.fill import Filler, Filling
from seqplan.planner.fleet import Fleet
from seqplan.planner.resources import Floats
from seqplan.plans.scheme import Scheme, Strategy
from seqplan.profiler.scheme_model import SchemeModel

Models = Mapping[Scheme, SchemeModel]

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


def neighbours(strategy: Strategy, schemes: Sequence[Scheme], gpus: int) -> Iterator[Strategy]:
    """Strategies one exchange away: pipelines of one scheme for pipelines of another.

    The smaller side is 1, 4 or 16 pipelines of the larger scheme; GPUs that the exchange leaves
    over, with those idle before, go to the incoming scheme.
    """
    counts = dict(strategy.counts)
    idle = gpus - strategy.gpus
    for out, held in strategy.counts:
        for come in schemes:
            if come == out:
                continue
            least = 1 if out.gpus >= come.gpus else -(-(come.gpus - idle) // out.gpus)
            for give in (least, 4 * least, 16 * least):
                take = (give * out.gpus + idle) // come.gpus
                if 1 <= give <= held and take:
                    changed = {**counts, out: held - give}
                    changed[come] = changed.get(come, 0) + take
                    yield Strategy.of(changed)


def improve(
    batch: Batch,
    start: tuple[Fleet, Filling],
    models: Models,
    schemes: Sequence[Scheme],
    gpus: int,
    lower_ms: float,
    *,
    rounds: int,
) -> tuple[Fleet, Filling]:
    """Local search over strategies for one batch, by exchanges, each judged by a single fill.

    Takes the first exchange that shortens the step, searches its least time, and goes on from
    there; ends after ``rounds`` accepted exchanges, when none helps, or at ``lower_ms``.
    """
    fleet, filling = start
    seen = {fleet.strategy}
    for _ in range(rounds):
        found = False
        for strategy in neighbours(fleet.strategy, schemes, gpus):
            if strategy in seen:
                continue
            seen.add(strategy)
            candidate = Fleet.of(strategy, models)
            if candidate.max_sequence < batch.longest:
                continue
            filler = Filler(candidate, batch)
            better = probe(filler, lower_ms, filling.objective_ms)
            if better is None:
                continue
            refined = dispatch(filler, lower_ms, known=better)
            if refined is not None and refined.objective_ms < filling.objective_ms:
                fleet, filling, found = candidate, refined, True
                break
        if not found:
            break
    return fleet, filling
