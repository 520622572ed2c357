"""What layouts reach on the judged batches: by groups that stay, and by groups that re-form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from seqplan.planner.placement.fleet import Floats
from seqplan.planner.proposal.batch_times import BatchTimes
from seqplan.planner.proposal.layouts import ONE_LAYOUT
from seqplan.planner.proposal.scenarios import LayoutTimes
from seqplan.planner.strategies.regrouping import ReformingLayout
from seqplan.planner.sync.times import Exchange, Layout, layouts_of
from seqplan.plans.scheme import Strategy


def strategies_by_layout(strategies: Sequence[Strategy]) -> dict[Layout, list[int]]:
    """List the positions of the strategies of each layout; none of those of several layouts."""
    positions: dict[Layout, list[int]] = {}
    for i, strategy in enumerate(strategies):
        if len(layouts := strategy_layouts(strategy)) == 1:
            positions.setdefault(next(iter(layouts)), []).append(i)
    return positions


def strategy_layouts(strategy: Strategy) -> frozenset[Layout]:
    """Collect the layouts of a strategy's pipelines."""
    return layouts_of(scheme for scheme, _ in strategy.counts)


def reforming_times(
    layouts: Sequence[ReformingLayout],
    judged: Sequence[BatchTimes],
    strategies: Sequence[Strategy],
    times: Floats,
) -> dict[Layout, Floats]:
    """Find, for each layout, the time of groups that re-form on each judged batch.

    ``times`` (strategies, batches): of groups that stay. All in ms, with exchange. Infinite where
    re-forming is not faster than the layout's own strategies, or far behind the best of all.
    """
    positions = strategies_by_layout(strategies)
    best = times.min(axis=0)
    re_formed = {}
    for entry in layouts:
        own = times[positions.get(entry.layout, [])].min(axis=0, initial=np.inf)
        limits = np.minimum(own, best * (1 + 3 * ONE_LAYOUT)).tolist()
        re_formed[entry.layout] = np.array(
            [
                batch_times.reforming_ms(entry, limit)
                for batch_times, limit in zip(judged, limits, strict=True)
            ]
        )
    return re_formed


def layout_times(
    times: Floats,
    strategies: Sequence[Strategy],
    holds: Sequence[bool],
    re_formed: Mapping[Layout, Floats],
    reforming_holds: Mapping[Layout, bool],
    exchange: Exchange,
) -> LayoutTimes:
    """Compare layouts by the best of their strategies, or of groups that re-form, per batch.

    ``times`` (strategies, batches) and ``re_formed`` (batches) in ms with exchange; ``holds``:
    whether a strategy, ``reforming_holds``: whether a layout holds the longest sequence there is.
    """
    nowhere = np.full(times.shape[1], np.inf)
    best: dict[Layout, Floats] = {
        layout: times[members].min(axis=0)
        for layout, members in strategies_by_layout(strategies).items()
        if any(holds[i] for i in members)
    }
    exposed_ms = {layout: exchange.compute_exposed_ms([layout]) for layout in best}
    for layout, reached in re_formed.items():
        if reforming_holds[layout]:
            stays = best.get(layout, nowhere)
            of_stays, of_re_forming = (
                exchange.compute_exposed_ms([layout], re_forming=re_forms)
                for re_forms in (False, True)
            )
            exposed_ms[layout] = float(np.where(reached < stays, of_re_forming, of_stays).mean())
            best[layout] = np.minimum(stays, reached)
    by_layout = {layout: float(row.mean()) for layout, row in best.items()}
    static = [
        (strategies[i], float(times[i].mean()))
        for i, strategy in enumerate(strategies)
        if strategy.homogeneous and holds[i] and np.isfinite(times[i]).all()
    ]
    several = np.minimum(times.min(axis=0), np.min([nowhere, *re_formed.values()], axis=0))
    finite = {layout: mean for layout, mean in by_layout.items() if np.isfinite(mean)}
    return LayoutTimes(
        finite,
        float(several.mean()),
        min(static, key=lambda entry: entry[1], default=None),
        exposed_ms,
        {layout: _standard_error(best[layout] - several) for layout in finite},
    )


def _standard_error(differences: Floats) -> float:
    """Estimate how far the mean of some batches is from that of all; infinite for one batch."""
    if len(differences) < 2:
        return float("inf")
    return float(differences.std(ddof=1) / np.sqrt(len(differences)))
