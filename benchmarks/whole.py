"""Whole iterations against the best static strategy, context parallelism and our balancing allowed.

Propagation and the exchange as derived for each layout; derived schemes are used on both sides.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import mean

import numpy as np

from benchmarks.settings import Data, markdown
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.bounds.with_exchange import Families, exchange_bound_ms
from seqplan.planner.cluster import Cluster
from seqplan.planner.exchange.choice import exchange_of
from seqplan.planner.proposal.make_proposal import make_proposal
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.planner.strategies.homogeneous import best_homogeneous
from seqplan.profiler.shipped.catalogue import shipped

SETTINGS = (
    ("32b", 64, 16384, 200_000),
    ("32b", 64, 32768, 200_000),
    ("32b", 64, 131072, 200_000),
    ("32b", 64, 131072, 800_000),
    ("13b", 64, 32768, 200_000),
    ("13b", 64, 131072, 800_000),
    ("7b", 64, 32768, 200_000),
    ("32b", 1024, 32768, 3_200_000),
)
"""Model, GPUs, context, tokens of a step."""
STEPS = {64: 8, 1024: 2}


def run(data: Sequence[Data]) -> None:
    """Print, for each data set, the chosen layout and whole iterations of both."""
    for source in data:
        rows = [_row(source, *setting) for setting in SETTINGS]
        print(f"### {source.name}: whole iterations, simulated on the A800 profiles\n")
        head = ["model, GPUs, context, tokens", "layout", "ours", "best static", "static / ours"]
        head += ["worst step", "above the bound", "proposal, CPU", "step, CPU"]
        print(markdown(head, rows) + "\n")


def _row(source: Data, model: str, gpus: int, context: int, tokens: int) -> list[str]:
    profile = shipped(f"llama-{model}-a800-80gb")
    where = Cluster(gpus, context, tokens)
    exchange = exchange_of(profile, gpus)
    began = time.process_time()
    proposal = make_proposal(profile, where, source.lengths, exchange=exchange)
    proposed_s = time.process_time() - began
    assert proposal.layouts is not None
    batches = list(Sampler(source.lengths, tokens, context, 0).batches(STEPS[gpus]))
    planner = StepPlanner(proposal)
    began = time.process_time()
    plans = [planner.plan(batch) for batch in batches]
    planned_s = (time.process_time() - began) / len(plans)
    ours = np.array([plan.predicted_ms + (plan.exchange_ms or 0.0) for plan in plans])
    models = where.models(profile)
    static = best_homogeneous(batches, models, gpus, exchange)
    families = Families(models, gpus, exchange)
    bounds = [
        exchange_bound_ms(families, batch, reached)
        for batch, reached in zip(batches, ours.tolist(), strict=True)
    ]
    row = [
        f"{model.upper()}, {gpus:,}, {context // 1024}K, {tokens:,}",
        proposal.layouts.chosen or "several",
        f"{mean(ours) / 1000:.2f} s",
    ]
    if static is None:
        row += ["–", "–", "–"]
    else:
        strategy, propagation = static
        theirs = np.array(propagation) + exchange.of_strategy_ms(strategy)
        row += [f"{strategy}: {mean(theirs) / 1000:.2f} s", f"{mean(theirs) / mean(ours):.3f}"]
        row.append(f"{(theirs / ours).min():.3f}")
    row += [f"{mean(ours) / mean(bounds) - 1:.1%}", f"{proposed_s:.0f} s"]
    return [*row, f"{planned_s * 1000:.0f} ms"]
