"""Build a strategy of one layout for one batch: prices decide which pipelines open.

Within a layout pipelines differ in Ulysses and ring only, so that GPU-time compares their schemes:
each sequence goes to the scheme on which it takes the least, and every scheme gets the pipelines
that its sequences need. No candidates and no linear program are needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import area_only_bound_ms, gpu_ms
from seqplan.planner.placement.dispatch import dispatch, probe
from seqplan.planner.placement.dominance import drop_dominated
from seqplan.planner.placement.fill import Filler, FillStarter, Placement
from seqplan.planner.placement.fill_tables import FillTables
from seqplan.planner.placement.fleet import Fleet, Floats, Ints, Models, PipelineClass
from seqplan.planner.sync.times import Layout, layouts_of
from seqplan.plans.scheme import Scheme, Strategy

TOLERANCE = 2e-3
"""Relative width at which the search for the least target that pipelines suffice for ends."""

SLACK = 1.02
"""By how much the target of the pipelines' counts may exceed what placing on them then reaches."""

_LARGEST_STEP = 16.0
_ROUND = 1.0 + 1e-12


@dataclass(frozen=True)
class LayoutSchemes:
    """The schemes of one layout that no other replaces, and their classes, in order."""

    layout: Layout
    models: Models
    classes: tuple[PipelineClass, ...]

    @classmethod
    def list_from_models(cls, models: Models) -> list[LayoutSchemes]:
        """List the layouts of ``models``, ascending; those without room for a token are left out.

        A layout with groups of 3, 5 or 6 times as many ranks as others is there twice: with all,
        and with groups of powers of two alone, as fewer sizes at times waste less. None of it
        depends on a batch: made once, it serves all.
        """
        layouts = []
        usable = {scheme: model for scheme, model in models.items() if model.max_sequence > 0}
        for layout in sorted(layouts_of(usable)):
            of_layout = {s: m for s, m in usable.items() if (s.tp, s.pp) == layout}
            powers = {s: m for s, m in of_layout.items() if s.sp & (s.sp - 1) == 0}
            for some in [of_layout, powers] if 0 < len(powers) < len(of_layout) else [of_layout]:
                kept = drop_dominated(some)
                classes = tuple(PipelineClass.from_model(model, 1) for model in kept.values())
                layouts.append(cls(layout, kept, classes))
        return layouts

    def holds(self, batch: Batch) -> bool:
        """Whether some scheme holds the batch's longest sequence."""
        return any(k.capacity >= batch.longest for k in self.classes)

    def bound_ms(self, batch: Batch, gpus: int) -> float:
        """Bound the step of every plan of the layout (ms), see ``area_only_bound_ms``."""
        return area_only_bound_ms(self.classes, batch, gpus)


class Constructive:
    """Makes strategies of one layout for one batch on ``gpus`` GPUs.

    ``ramped``: as of ``Filler``.
    """

    def __init__(
        self, layout: LayoutSchemes, batch: Batch, gpus: int, *, ramped: bool = False
    ) -> None:
        self._layout = layout
        self._schemes = list(layout.models)
        self._classes = layout.classes
        self._batch, self._gpus, self._ramped = batch, gpus, ramped
        lengths = batch.distinct
        alone = np.array([k.alone_ms(lengths) for k in self._classes])
        self._gpu_ms = gpu_ms(self._classes, lengths)
        self._alone_ms: Floats = np.where(np.isfinite(self._gpu_ms), alone, np.inf)
        tables = FillTables.from_batch(batch)
        self._costs = [tables.find_costs(k, ramped=ramped) for k in self._classes]
        self._starter = FillStarter(tables, self._classes)
        self._known_runs: dict[bytes, list[tuple[int, int]] | None] = {}

    def place(self, below_ms: float) -> Placement | None:
        """Make a strategy and place the batch on it, all ended before ``below_ms``; or None.

        1. The least target is sought for which the pipelines that prices require fit the GPUs:
           galloping up from the bound, then bisecting to ``TOLERANCE``.
        2. GPUs that are left go to the schemes in use, the most used first.
        3. The batch is placed on that strategy as on any other (``dispatch``).

        With stages also at prices that count bubbles, which serves many GPUs better and few worse.
        """
        if not self._layout.holds(self._batch):
            return None
        low = self._layout.bound_ms(self._batch, self._gpus)
        best = None
        for peaks in (False, True) if self._layout.layout[1] > 1 else (False,):
            if low >= below_ms:
                break
            placement = self._place(low, below_ms, peaks)
            if placement is not None:
                best, below_ms = placement, placement.objective_ms
        return best

    def _place(self, low: float, below_ms: float, peaks: bool) -> Placement | None:
        counts = self._least(low, below_ms, peaks)
        if counts is None:
            return None
        strategy = self._use_remaining_gpus(counts)
        of_scheme = dict(zip(self._schemes, self._classes, strict=True))
        classes = (replace(of_scheme[scheme], count=n) for scheme, n in strategy.counts)
        filler = Filler(Fleet(strategy, tuple(classes)), self._batch, ramped=self._ramped)
        better = None if below_ms == inf else probe(filler, low, below_ms)
        if better is None and below_ms < inf:
            return None
        filling = dispatch(filler, low, known=better)
        return None if filling is None else Placement(filler.fleet, filling)

    def _least(self, low: float, below_ms: float, peaks: bool) -> dict[Scheme, int] | None:
        most = below_ms * SLACK
        if most < inf and self.counts_at(most, peaks) is None:
            most = below_ms  # a fill may fail at a target, and succeed below it
            if self.counts_at(most, peaks) is None:
                return None
        target, step = low * (1 + TOLERANCE), 2 * TOLERANCE
        while (counts := self.counts_at(target, peaks)) is None:
            if target >= most or step > _LARGEST_STEP:
                return None
            low, target, step = target, min(target * (1 + step), most), step * 2
        while target > low * (1 + TOLERANCE):
            middle = (low + target) / 2
            fewer = self.counts_at(middle, peaks)
            if fewer is None:
                low = middle
            else:
                counts, target = fewer, middle
        return counts

    def counts_at(self, target_ms: float, peaks: bool = False) -> dict[Scheme, int] | None:
        """Count the pipelines with which the batch ends by a target; None beyond the GPUs.

        Lengths that are cheapest on one scheme are a run. Runs take pipelines one after another,
        longest first: as many as their sequences fill, which then take shorter ones, too, in
        what room is left. ``peaks``: a sequence also pays for the bubbles that it makes.
        """
        runs = self._runs(target_ms, peaks)
        if runs is None:
            return None
        lengths, counts = self._batch.distinct, self._batch.multiplicity
        pipelines: dict[Scheme, int] = {}
        left = self._gpus
        for end, k in runs:
            in_run = counts.copy()
            in_run[end:] = 0
            above = int(lengths[end]) if end < len(lengths) else 0
            most = min(left // self._classes[k].gpus, int(in_run.sum()))
            if not in_run.any():
                continue
            opened, unplaced = self._fill_class(k, most, in_run, above, target_ms)
            if unplaced[:end].any():
                return None
            if end < len(lengths):
                _, counts = self._fill_class(k, opened, counts, above, target_ms)
            scheme = self._schemes[k]
            pipelines[scheme] = pipelines.get(scheme, 0) + opened
            left -= opened * scheme.gpus
        return pipelines

    def _runs(self, target_ms: float, peaks: bool) -> list[tuple[int, int]] | None:
        """List where runs of lengths end that are cheapest on one class, and that class.

        Of the classes that run a length alone by the target; None if there is none for some.
        With ``peaks``, the GPU-time of a length grows as what it leaves of the target shrinks, were
        it the largest micro-batch of its pipeline: that one passes pp − 1 times more than others.
        """
        in_time = self._alone_ms <= target_ms * _ROUND
        # Only the lengths in time decide: targets of a search mostly differ in nothing here.
        key = np.count_nonzero(in_time, axis=1).tobytes()
        if peaks:
            stages = self._layout.layout[1]
            # In time: at least the target's part of one stage is left.
            left = np.where(in_time, target_ms - (stages - 1) / stages * self._alone_ms, 1.0)
            grown = np.where(in_time, self._gpu_ms, 1.0) * target_ms / left
            return _cheapest_runs(np.where(in_time, grown, np.inf))
        if key not in self._known_runs:
            self._known_runs[key] = _cheapest_runs(np.where(in_time, self._gpu_ms, np.inf))
        return self._known_runs[key]

    def _fill_class(
        self, k: int, pipelines: int, counts: Ints, above: int, target_ms: float
    ) -> tuple[int, Ints]:
        """Fill pipelines of class ``k``; how many hold something, and the sequences left over."""
        if not pipelines:
            return 0, counts
        costs = self._costs[k]
        fill = self._starter.take_unassigned(counts)
        opened = fill.fill_class(costs, pipelines, costs.longest_alone(target_ms), above, target_ms)
        return opened, np.array(fill.counts, dtype=np.int64)

    def _use_remaining_gpus(self, counts: dict[Scheme, int]) -> Strategy:
        """Give the remaining GPUs to schemes in use, the most used first, then to any."""
        left = self._gpus - sum(scheme.gpus * n for scheme, n in counts.items())
        in_use = sorted(counts, key=lambda scheme: (-scheme.gpus * counts[scheme], scheme))
        others = sorted(self._schemes, key=lambda scheme: (-scheme.gpus, scheme))
        for scheme in [*in_use, *others]:
            more = left // scheme.gpus
            counts[scheme] = counts.get(scheme, 0) + more
            left -= more * scheme.gpus
        return Strategy.from_counts({scheme: n for scheme, n in counts.items() if n})


def _cheapest_runs(prices: Floats) -> list[tuple[int, int]] | None:
    """List runs of lengths for which one class is cheapest: end and class.

    ``prices`` (classes, n); None if a length has none.
    """
    if np.isinf(prices.min(axis=0)).any():
        return None
    cheapest = prices.argmin(axis=0)
    ends = [*(np.flatnonzero(np.diff(cheapest)) + 1).tolist(), len(cheapest)]
    return [(end, int(cheapest[end - 1])) for end in ends]
