"""A lower bound on a step that counts whole pipelines: every strategy is refuted by itself.

``all_strategies_bound_ms`` allows fractions of pipelines. Here a strategy is a row of whole counts.
Values of sequences that prove a bound (``certificate``) limit what each class can hold by a time:
rows that hold less than all values together are refuted by it, whatever else they are. The other
rows get a separate bound each, and the values that prove it refute further rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from seqplan import Batch, Strategy
from seqplan.planner.bounds.certificate import CERTIFY_GAP, certify
from seqplan.planner.bounds.gpu_time import cheap_bound_ms
from seqplan.planner.bounds.held_value import HeldValue, Mixes, Relaxation, list_fixed_mixes
from seqplan.planner.bounds.relaxation import relax
from seqplan.planner.bounds.resources import ROUNDING
from seqplan.planner.bounds.with_sync import Families
from seqplan.planner.placement.fleet import Fleet, PipelineClass

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PRICED_AT = (1.0, 0.995, 0.98)
"""Times, over that to be refuted, at which all strategies together are priced."""

MOST_ROWS = 200_000
"""Strategies that are listed at most; beyond that nothing more is proven."""


def each_strategy_bound_ms(families: Families, batch: Batch, reached_ms: float) -> float:
    """Prove a bound on step and sync over all strategies of whole pipelines (ms).

    Never above ``reached_ms``, a time with sync that one reaches. 0 if there are more than
    ``MOST_ROWS`` strategies that prices alone do not refute.
    """
    least = reached_ms
    for family in sorted(families.members, key=lambda member: member.quick_bound_ms(batch)):
        if family.quick_bound_ms(batch) >= least:
            break
        every = _EachStrategy(family.relaxation.classes, batch, families.whole.gpus)
        schemes = family.relaxation.schemes
        time_ms = least - family.sync_ms
        rows = every.list_rows(time_ms)
        if rows is None:
            return 0.0
        while len(rows):
            row, rows = rows[0], rows[1:]
            counts = {s: int(n) for s, n in zip(schemes, row, strict=True) if n}
            fleet = Fleet.from_strategy(Strategy.from_counts(counts), family.relaxation.models)
            if fleet.max_sequence < batch.longest:
                continue
            time_ms = min(time_ms, every.bound_fleet_ms(fleet, time_ms))
            places = [schemes.index(scheme) for scheme, _ in fleet.strategy.counts]
            rows = every.drop_refuted(rows, fleet, places, time_ms)
        least = min(least, time_ms + family.sync_ms)
    return least


class _EachStrategy:
    """Strategies of whole pipelines of some classes on a number of GPUs, for one batch."""

    def __init__(self, classes: Sequence[PipelineClass], batch: Batch, gpus: int) -> None:
        self._classes, self._batch, self._gpus = classes, batch, gpus
        self._sizes = np.array([k.gpus for k in classes], dtype=np.int64)

    def list_rows(self, time_ms: float) -> Counts | None:
        """List the counts of strategies that prices do not refute (rows, classes), closest first.

        Strategies to which no pipeline can be added; None beyond ``MOST_ROWS``.
        """
        cuts = [
            cut
            for share in PRICED_AT
            if (priced := relax(self._classes, self._batch, time_ms * share, self._gpus))
            if (cut := self._make_cut(priced, range(len(self._classes)), time_ms)) is not None
        ]
        rows: list[list[int]] = []
        order = np.argsort(-self._sizes, kind="stable")
        held = np.array(cuts)[:, order] if cuts else np.zeros((0, len(order)))
        sizes = self._sizes[order]
        density = held / sizes
        # What a GPU can hold at most in this class or a later one.
        best_after = np.flip(np.maximum.accumulate(np.flip(density, 1), 1), 1)
        smallest = int(sizes[-1])
        row = np.zeros(len(order), dtype=np.int64)

        def fill(place: int, left: int, value: Floats) -> bool:
            if left < smallest:
                if (value >= 1 - ROUNDING).all():
                    rows.append(row.tolist())
                return len(rows) <= MOST_ROWS
            if place == len(order) or (value + left * best_after[:, place] < 1 - ROUNDING).any():
                return True
            for n in range(left // int(sizes[place]), -1, -1):
                row[place] = n
                rest = left - n * int(sizes[place])
                if not fill(place + 1, rest, value + n * held[:, place]):
                    return False
            row[place] = 0
            return True

        if not fill(0, self._gpus, np.zeros(len(held))):
            return None
        listed = np.zeros((len(rows), len(order)), dtype=np.int64)
        if rows:
            listed[:, order] = np.array(rows)
        slack = (listed[:, order] @ held.T).min(axis=1) if len(held) else np.zeros(len(rows))
        return listed[np.argsort(-slack, kind="stable")]

    def bound_fleet_ms(self, fleet: Fleet, time_ms: float) -> float:
        """Bound the step of one strategy, no further than ``time_ms`` (ms)."""
        cheap_ms = cheap_bound_ms(fleet.classes, self._batch)
        if cheap_ms >= time_ms:
            return time_ms
        return min(max(cheap_ms, certify(fleet, self._batch, time_ms)), time_ms)

    def drop_refuted(
        self, rows: Counts, fleet: Fleet, places: Sequence[int], time_ms: float
    ) -> Counts:
        """Leave out the rows that the prices of one strategy's bound refute, too.

        ``places``: of the strategy's classes.
        """
        if not len(rows):
            return rows
        priced = relax(fleet.classes, self._batch, time_ms / (1 + CERTIFY_GAP))
        cut = None
        if priced is not None:
            cut = self._make_cut(priced, places, time_ms)
        return rows if cut is None else rows[rows @ cut >= 1 - ROUNDING]

    def _make_cut(self, priced: Relaxation, places: Sequence[int], time_ms: float) -> Floats | None:
        """Compute the share of all values that a pipeline of each class can hold by a time.

        ``places``: of the classes that ``priced`` is of, in its order. None if nothing has a value.
        """
        needed = float(priced.values @ self._batch.multiplicity)
        if needed <= 0:
            return None
        mixes = dict(zip(places, priced.mixes, strict=True))
        only_work = np.eye(priced.resources)[:1]
        extra = list_fixed_mixes(priced)
        held = []
        for k, pipeline_class in enumerate(self._classes):
            levels = len(priced.levels) if pipeline_class.pp > 1 else 0
            of_class = mixes.get(k) or Mixes(only_work, np.repeat(only_work, levels, axis=0))
            # HeldValue takes the mixes of class k from the relaxation.
            alone = Relaxation(
                priced.scale, priced.pipelines, priced.values, (of_class,), priced.levels
            )
            held.append(HeldValue(pipeline_class, self._batch, alone, 0, extra).most(time_ms))
        cut = np.array(held) / needed
        return cut if np.isfinite(cut).all() else None
