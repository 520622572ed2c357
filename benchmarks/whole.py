"""Whole iterations against the best static strategy, context parallelism and our balancing allowed.

Propagation and the exchange as derived for each layout; derived schemes are used on both sides.
The static strategy holds the longest sequence of the data, as it has to run all of it; beside it
the one that is best if only the steps judged count.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import mean

import numpy as np
import numpy.typing as npt

from benchmarks.settings import Data, markdown
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.bounds.with_exchange import Families, exchange_bound_ms
from seqplan.planner.cluster import Cluster
from seqplan.planner.exchange.choice import exchange_of
from seqplan.planner.exchange.times import Exchange
from seqplan.planner.proposal.make_proposal import make_proposal
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.planner.strategies.homogeneous import best_homogeneous
from seqplan.plans.scheme import Strategy
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
        head += ["worst step", "if only these steps count", "above the bound"]
        head += ["proposal, CPU", "step, CPU"]
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
    longest = min(int(source.lengths.max()), context)
    static = best_homogeneous(batches, models, gpus, exchange, longest)
    in_hindsight = best_homogeneous(batches, models, gpus, exchange)
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
    if static is None or in_hindsight is None:
        row += ["–"] * 4
    else:
        theirs = _iterations_ms(static, exchange)
        row += [f"{static[0]}: {mean(theirs) / 1000:.2f} s", f"{mean(theirs) / mean(ours):.3f}"]
        row.append(f"{(theirs / ours).min():.3f}")
        of_these = mean(_iterations_ms(in_hindsight, exchange)) / mean(ours)
        row.append(f"{in_hindsight[0]}: {of_these:.3f}")
    row += [f"{mean(ours) / mean(bounds) - 1:.1%}", f"{proposed_s:.0f} s"]
    return [*row, f"{planned_s * 1000:.0f} ms"]


def _iterations_ms(
    planned: tuple[Strategy, Sequence[float]], exchange: Exchange
) -> npt.NDArray[np.float64]:
    """Return the iterations of a strategy from its propagation times, all in ms."""
    strategy, propagation = planned
    return np.array(propagation) + exchange.of_strategy_ms(strategy)
