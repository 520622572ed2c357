"""Hydraulis as published: Eq. 4's pool, random greedy dispatch, packing by integer programs.

Per step every strategy of the pool that holds the batch is dispatched (Alg. 1) and estimated by the
bound of Eq. 2–3; the best is packed pipeline by pipeline (Eq. 1, with the pruning of appendix C).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import cheap_bound_ms
from seqplan.planner.placement.fleet import Fleet, PipelineClass
from seqplan.planner.placement.pack import pack
from seqplan.planner.proposal.eq4 import continuous_proposal, integer_strategies
from seqplan.planner.simulation.iteration import Execution
from seqplan.planner.systems.programs.greedy_dispatch import dispatch_bound_ms, greedy_dispatch
from seqplan.planner.systems.setting import ComparedSystem, Setting, Skipped
from seqplan.plans.scheme import Strategy

NAME = "Hydraulis"
TRIALS, FAST_TRIALS, FAST_STRATEGIES = 100, 4, 10
CBC_S = 0.5
"""Time limit of CBC for each number of micro-batches, as published."""


def hydraulis(
    setting: Setting,
    lengths: npt.NDArray[np.int64],
    *,
    fast: bool = False,
    cbc_s: float = CBC_S,
) -> list[ComparedSystem | Skipped]:
    """Set up the published method on a data set's ``lengths`` (truncated), and ours.

    Ours uses its pool. ``fast``: for large clusters, and labeled so: few trials, longest first as
    few random orders would be unfair, on the strategies of least lower bound, and our packing
    in place of CBC.
    """
    if setting.in_lockstep:
        why = "its pipelines run independently, but here all ranks run in lockstep"
        return [Skipped("hydraulis", NAME, why)]
    pool = eq4_pool(setting, lengths)
    if not pool:
        return [Skipped("hydraulis", NAME, "Eq. 4 finds no strategy for these lengths and GPUs")]
    how = f"{TRIALS} trials of Alg. 1, Eq. 1 by CBC ({cbc_s:g} s for each V)"
    if fast:
        how = (
            f"fast: {FAST_TRIALS} trials of Alg. 1, longest first, on the {FAST_STRATEGIES} "
            "strategies of least bound; our packing in place of CBC"
        )
    published: ComparedSystem | Skipped = ComparedSystem(
        "hydraulis",
        f"{NAME}, fast" if fast else f"{NAME}, as published",
        f"Eq. 4's {len(pool)} strategies; {how}",
        False,
        lambda batch: run_published_step(setting, pool, batch, fast=fast, cbc_s=cbc_s),
    )
    if not fast and importlib.util.find_spec("pulp") is None:
        why = "its packing by CBC needs the pulp package: pip install 'seqplan[reference]'"
        published = Skipped("hydraulis", f"{NAME}, as published", why)
    return [
        published,
        ComparedSystem(
            "hydraulis-balanced",
            f"{NAME}'s strategies, balanced",
            f"Eq. 4's {len(pool)} strategies; our selection, dispatch and packing",
            True,
            lambda batch: setting.run_balanced(batch, pool),
        ),
    ]


def eq4_pool(setting: Setting, lengths: npt.NDArray[np.int64]) -> list[Strategy]:
    """List all integer strategies of Eq. 4, those for the longest sequences first."""
    values, counts = np.unique(lengths, return_counts=True)
    ordered = list(setting.models.values())
    proposal = continuous_proposal(ordered, values, counts.astype(np.float64))
    longest_of = integer_strategies(proposal, ordered, setting.workload.gpus)
    return sorted(longest_of, key=lambda strategy: (-longest_of[strategy], str(strategy)))


def run_published_step(
    setting: Setting, pool: Sequence[Strategy], batch: Batch, *, fast: bool, cbc_s: float
) -> Execution:
    """Run one step as published. ``ValueError`` when no strategy of the pool holds the batch."""
    fleets = [Fleet.from_strategy(strategy, setting.models) for strategy in pool]
    holding = [fleet for fleet in fleets if fleet.max_sequence >= batch.longest]
    if not holding:
        raise ValueError(f"no strategy of Eq. 4 holds {batch.longest} tokens")
    if fast:
        holding.sort(key=lambda fleet: (cheap_bound_ms(fleet.classes, batch), str(fleet.strategy)))
        holding = holding[:FAST_STRATEGIES]
    best: tuple[float, Fleet, list[list[int]]] | None = None
    for fleet in holding:
        trials = FAST_TRIALS if fast else TRIALS
        assigned = greedy_dispatch(
            fleet.classes, batch, trials=trials, order="descending" if fast else "random"
        )
        estimate = max(
            dispatch_bound_ms(pipeline_class, [batch.lengths[i] for i in positions])
            for pipeline_class, positions in zip(fleet.pipelines, assigned, strict=True)
        )
        if best is None or estimate < best[0]:
            best = (estimate, fleet, assigned)
    assert best is not None
    _, fleet, assigned = best
    utils = [setting.models[scheme].util_len for scheme in fleet.strategy]

    def pack_pipeline(
        pipeline_class: PipelineClass, positions: list[int], util: int | None
    ) -> list[list[int]]:
        lengths = [batch.lengths[i] for i in positions]
        if fast:
            micro_batches = pack(pipeline_class, lengths).micro_batches
        else:
            from seqplan.planner.systems.programs.ilp_packing import ilp_packing

            micro_batches = ilp_packing(
                pipeline_class, lengths, util_len=util, time_limit_s=cbc_s
            ).micro_batches
        return [[positions[j] for j in micro] for micro in micro_batches]

    # CBC is a separate process, so that threads keep all cores busy.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        micro_batches = list(threads.map(pack_pipeline, fleet.pipelines, assigned, utils))
    work = list(zip(fleet.strategy, micro_batches, strict=True))
    return Execution((setting.pipelines(batch, work),))
