"""Integer strategies from fractional pipeline counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from seqplan.planner.placement.fleet import Floats, Models
from seqplan.plans.scheme import Scheme, Strategy

_WHOLE = 1e-6


def round_strategies(
    schemes: Sequence[Scheme], pipelines: Floats, models: Models, gpus: int, longest: int
) -> list[Strategy]:
    """Round pipeline counts to integer strategies, each able to hold ``longest`` tokens.

    The whole parts are kept; what GPUs remain go, in turn, to the largest fractional parts, to the
    scheme with most use of its kind, or to the largest scheme that fits. Left-over GPUs are filled.
    """
    whole = {s: int(np.floor(n + _WHOLE)) for s, n in zip(schemes, pipelines, strict=True)}
    part = {s: float(n) - whole[s] for s, n in zip(schemes, pipelines, strict=True)}
    used = [s for s, n in zip(schemes, pipelines, strict=True) if n > _WHOLE]
    by_part = sorted(used, key=lambda s: (-part[s], s))
    by_use = sorted(used, key=lambda s: (-whole[s], s))
    by_size = sorted(used, key=lambda s: (-s.gpus, s))
    strategies: dict[Strategy, None] = {}
    for priority in (by_part, by_use, by_size, by_size[::-1]):
        counts = _hold(dict(whole), models, gpus, longest)
        if counts is None:
            return []
        left = gpus - sum(s.gpus * n for s, n in counts.items())
        for scheme in priority if priority is by_part else []:
            if part[scheme] > 0.3 and scheme.gpus <= left:
                counts[scheme] = counts.get(scheme, 0) + 1
                left -= scheme.gpus
        strategies.setdefault(Strategy.from_counts(_fill_up(counts, left, priority, models)))
    return list(strategies)


def _hold(
    counts: dict[Scheme, int], models: Models, gpus: int, longest: int
) -> dict[Scheme, int] | None:
    """Give up schemes of ``counts`` for one that holds the longest sequence; None without one."""
    if any(n and models[s].max_sequence >= longest for s, n in counts.items()):
        return counts
    holding = [s for s, m in models.items() if m.max_sequence >= longest]
    if not holding:
        return None
    least = min(holding, key=lambda s: (s.gpus, models[s].alone_ms(longest), s))
    while sum(s.gpus * n for s, n in counts.items()) + least.gpus > gpus:
        scheme = max((s for s, n in counts.items() if n), key=lambda s: (counts[s], s))
        counts[scheme] -= 1
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
