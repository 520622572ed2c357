"""Against the published pipeline on the same batches: Eq. 4's pool, Alg. 1, Eq. 1 by CBC."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.settings import PROFILE, Data, cluster, markdown
from seqplan.planner.batch import Batch
from seqplan.planner.fleet import Fleet
from seqplan.planner.homogeneous import strategy_ms
from seqplan.planner.make_proposal import make_proposal
from seqplan.planner.order import order_micro_batches
from seqplan.planner.published.eq4 import continuous_proposal, integer_strategies
from seqplan.planner.published.greedy_dispatch import dispatch_bound_ms, greedy_dispatch
from seqplan.planner.published.ilp_packing import ilp_packing
from seqplan.planner.sampler import Sampler
from seqplan.planner.simulate import simulate_ms
from seqplan.planner.simulate_plan import simulate_plan_ms
from seqplan.planner.step import StepPlanner
from seqplan.planner.tailor import Models
from seqplan.plans.scheme import Strategy
from seqplan.profiler.shipped import shipped

GPUS, STEPS, SEED, TRIALS = 64, 5, 3, 100
CBC_S = 0.5
"""Time limit of CBC for each number of micro-batches, as published."""


def run(data: Sequence[Data]) -> None:
    """Print both pipelines' times, judged alike, and the ratio."""
    profile = shipped(PROFILE)
    rows = []
    for item in data:
        where = cluster(GPUS)
        ours = StepPlanner(make_proposal(profile, where, item.lengths))
        pool = _pool(item.lengths, ours.models)
        for batch in Sampler(item.lengths, where.tokens, where.max_len, SEED).batches(STEPS):
            start = time.perf_counter()
            plan = ours.plan(batch)
            ours_s = time.perf_counter() - start
            start = time.perf_counter()
            strategy, form_s, simulated = published_step(pool, batch, ours.models)
            theirs_s = time.perf_counter() - start
            same = strategy_ms(strategy, batch, ours.models)
            rows.append(
                [
                    item.name,
                    str(batch.step),
                    str(strategy),
                    f"{form_s:,.0f} / {simulated:,.0f}",
                    f"{same:,.0f}",
                    f"{plan.predicted_ms:,.0f} / {simulate_plan_ms(plan):,.0f}",
                    f"{form_s / plan.predicted_ms:.2f} / {simulated / simulate_plan_ms(plan):.2f}",
                    f"{theirs_s:.1f} s / {ours_s * 1000:.0f} ms",
                ]
            )
    print(f"### Published pipeline on the same batches ({PROFILE}, {GPUS} GPUs; ms)\n")
    print(f"{TRIALS} trials of Alg. 1, CBC {CBC_S} s per number of micro-batches, one process\n")
    head = ["lengths", "step", "published strategy", "published: form S / simulated"]
    head += ["same strategy, our dispatch and packing", "ours: form S / simulated"]
    print(markdown([*head, "ratio", "planning"], rows) + "\n")


def _pool(lengths: npt.NDArray[np.int64], models: Models) -> list[Strategy]:
    """Eq. 4's integer strategies, one for every L where they differ."""
    values, counts = np.unique(np.minimum(lengths, 32768), return_counts=True)
    ordered = list(models.values())
    relaxed = continuous_proposal(ordered, values, counts.astype(np.float64))
    return list(integer_strategies(relaxed, ordered, GPUS))


def published_step(
    pool: Sequence[Strategy], batch: Batch, models: Models
) -> tuple[Strategy, float, float]:
    """The strategy that the published method selects, and its time: form S and simulated (ms).

    Every candidate that holds the batch is dispatched by Alg. 1 and estimated by its bound; the
    best is packed pipeline by pipeline by Eq. 1.
    """
    best: tuple[float, Fleet, list[list[int]]] | None = None
    for strategy in pool:
        fleet = Fleet.of(strategy, models)
        if fleet.max_sequence < batch.longest:
            continue
        each = [item for item in fleet.classes for _ in range(item.count)]
        assigned = greedy_dispatch(fleet.classes, batch, trials=TRIALS)
        estimate = max(
            dispatch_bound_ms(item, [batch.lengths[i] for i in positions])
            for item, positions in zip(each, assigned, strict=True)
        )
        if best is None or estimate < best[0]:
            best = (estimate, fleet, assigned)
    if best is None:
        raise ValueError(f"no published candidate holds {batch.longest} tokens")
    _, fleet, assigned = best
    form_s, simulated = [0.0], [0.0]
    all_classes = [one for one in fleet.classes for _ in range(one.count)]
    for scheme, item, positions in zip(fleet.strategy, all_classes, assigned, strict=True):
        if not positions:
            continue
        lengths = [batch.lengths[i] for i in positions]
        util = models[scheme].util_len
        packed = ilp_packing(item, lengths, util_len=util, time_limit_s=CBC_S)
        costs = [
            float(item.work_ms(np.array([lengths[j] for j in micro])).sum()) + item.c
            for micro in packed.micro_batches
        ]
        ordered = [costs[j] for j in order_micro_batches(costs, item.pp)]
        form_s.append(sum(costs) + (item.pp - 1) * max(costs))
        simulated.append(simulate_ms(ordered, item.pp))
    return fleet.strategy, max(form_s), max(simulated)
