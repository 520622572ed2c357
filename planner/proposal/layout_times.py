"""Times of layouts on the evaluated batches: with fixed groups, and with regrouping."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from seqplan.planner.placement.fleet import Floats
from seqplan.planner.proposal.batch_times import EXACT_BELOW, BatchTimes
from seqplan.planner.proposal.layouts import ONE_LAYOUT
from seqplan.planner.proposal.scenarios import LayoutTimes
from seqplan.planner.strategies.regrouping import RegroupLayout
from seqplan.planner.sync.times import Layout, SyncTimes, layouts_of
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


def regrouping_times(
    layouts: Sequence[RegroupLayout],
    judged: Sequence[BatchTimes],
    strategies: Sequence[Strategy],
    times: Floats,
) -> dict[Layout, Floats]:
    """Find, for each layout, the time of groups that regroup on each judged batch.

    ``times`` (strategies, batches): of groups that stay. All in ms, with sync. Infinite if
    regrouping is not faster than the layout's strategies, or far behind the best of all.
    """
    positions = strategies_by_layout(strategies)
    best = times.min(axis=0)
    regrouped = {}
    for entry in layouts:
        static_ms = times[positions.get(entry.layout, [])].min(axis=0, initial=np.inf)
        limits = np.minimum(static_ms, best * (1 + 3 * ONE_LAYOUT)).tolist()
        regrouped[entry.layout] = np.array(
            [
                batch_times.regrouping_ms(entry, limit)
                for batch_times, limit in zip(judged, limits, strict=True)
            ]
        )
    return regrouped


def layout_times(
    times: Floats,
    strategies: Sequence[Strategy],
    holds: Sequence[bool],
    regrouped: Mapping[Layout, Floats],
    regrouping_holds: Mapping[Layout, bool],
    sync: SyncTimes,
    searched: Collection[Layout],
) -> LayoutTimes:
    """Compare layouts by the best of their strategies, or of groups that regroup, per batch.

    ``times`` (strategies, batches) and ``regrouped`` (batches) in ms with sync; ``holds``:
    whether a strategy, ``regrouping_holds``: whether a layout holds the longest sequence there is.
    ``searched``: layouts that count even if they are far behind the best, where the times of others
    are rough; the fastest always counts.
    """
    nowhere = np.full(times.shape[1], np.inf)
    best: dict[Layout, Floats] = {
        layout: times[members].min(axis=0)
        for layout, members in strategies_by_layout(strategies).items()
        if any(holds[i] for i in members)
    }
    exposed_ms = {layout: sync.compute_exposed_ms([layout]) for layout in best}
    for layout, reached in regrouped.items():
        if regrouping_holds[layout]:
            stays = best.get(layout, nowhere)
            of_stays, of_regrouping = (
                sync.compute_exposed_ms([layout], regrouping=regroups) for regroups in (False, True)
            )
            exposed_ms[layout] = float(np.where(reached < stays, of_regrouping, of_stays).mean())
            best[layout] = np.minimum(stays, reached)
    by_layout = {layout: float(row.mean()) for layout, row in best.items()}
    static = [
        (strategies[i], float(times[i].mean()))
        for i, strategy in enumerate(strategies)
        if strategy.homogeneous and holds[i] and np.isfinite(times[i]).all()
    ]
    several = np.minimum(times.min(axis=0), np.min([nowhere, *regrouped.values()], axis=0))
    exact_ms = max(float(several.mean()) * EXACT_BELOW, min(by_layout.values(), default=0.0))
    finite = {
        layout: mean
        for layout, mean in by_layout.items()
        if np.isfinite(mean) and (layout in searched or mean <= exact_ms)
    }
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
