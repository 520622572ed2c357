"""The static baseline in lockstep: one scheme throughout, in our micro-steps."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.best_layout import best_micro_steps, layout_bound_ms
from seqplan.planner.placement.fleet import Models
from seqplan.planner.strategies.homogeneous import homogeneous_strategies
from seqplan.planner.sync.times import SyncTimes
from seqplan.plans.scheme import Strategy


def best_static_micro_steps(
    batches: Sequence[Batch],
    models: Models,
    gpus: int,
    longest: int,
    sync: SyncTimes | None,
    multiple: int,
) -> tuple[Strategy, float] | None:
    """Find the scheme with the least mean time in even micro-steps, with its sync (ms).

    Of those that hold ``longest``, the data set's longest sequence; None if there is none. Least
    bound first, as long as one may be the best.
    """
    bounds = []
    for strategy in homogeneous_strategies(models, gpus, longest):
        model = models[strategy.counts[0][0]]
        of = [layout_bound_ms(batch, [model], gpus, sync) for batch in batches]
        bounds.append((mean(bound for bound in of if bound is not None), strategy, model))
    best: tuple[Strategy, float] | None = None
    for bound, strategy, model in sorted(bounds, key=lambda entry: entry[0]):
        if best is not None and bound >= best[1]:
            break
        planned = [best_micro_steps(batch, [[model]], gpus, sync, multiple) for batch in batches]
        time = mean(micro_steps.total_ms for micro_steps in planned if micro_steps is not None)
        if best is None or time < best[1]:
            best = (strategy, time)
    return best
