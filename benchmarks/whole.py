"""Whole iterations against the best static strategy, context parallelism and our balancing allowed.

Propagation and the sync as derived for each layout; derived schemes are used on both sides.
The static strategy holds the longest sequence of the data, as it has to run all of it; next to it
the one that is best if only the simulated steps count.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

from benchmarks.settings import Data, markdown, published_sync
from seqplan.costs.profile import Profile
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.bounds.with_sync import Families, sync_bound_ms
from seqplan.planner.placement.fleet import Floats
from seqplan.planner.proposal.make_proposal import make_proposal
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.planner.strategies.homogeneous import best_homogeneous
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import SyncTimes
from seqplan.planner.workload import Workload
from seqplan.plans.plan import Plan
from seqplan.plans.scheme import Strategy

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


OTHER_SYNCS = tuple(
    setting for setting in SETTINGS if setting[2:] != (16384, 200_000) and setting[3] != 800_000
)
"""Settings that are simulated with other syncs than the derived one, too."""


@dataclass(frozen=True)
class Judged:
    """Iterations in ms of the same steps: ours, of static strategies, and the proven bound.

    ``static`` holds the longest sequence of the data, ``hindsight`` that of these steps only.
    """

    batches: list[Batch]
    plans: list[Plan]
    layout: str
    ours: Floats
    static: tuple[Strategy, Floats]
    hindsight: tuple[Strategy, Floats]
    bound_ms: float
    proposal_s: float
    step_s: float

    @property
    def of_static(self) -> Floats:
        """Divide the static strategy's iterations by ours, step by step."""
        return np.asarray(self.static[1] / self.ours)

    @property
    def gap(self) -> float:
        """Return by which share our mean iteration is above the mean bound."""
        return float(mean(self.ours)) / self.bound_ms - 1


def run(data: Sequence[Data]) -> None:
    """Print, for each data set, the chosen layout and whole iterations of both."""
    for source in data:
        print(f"### {source.name}: whole iterations, simulated on the A800 profiles\n")
        head = ["model, GPUs, context, tokens", "layout", "ours", "best static", "static / ours"]
        head += ["worst step", "if only these steps count", "above the bound"]
        head += ["proposal, CPU", "step, CPU"]
        print(markdown(head, [_row(source, *setting) for setting in SETTINGS]) + "\n")
        head = ["model, GPUs, context, tokens", "sync", "layout", "static / ours"]
        head += ["above the bound"]
        rows = [row for setting in OTHER_SYNCS for row in _other_rows(source, *setting)]
        print(markdown(head, rows) + "\n")


def _row(source: Data, model: str, gpus: int, context: int, tokens: int) -> list[str]:
    profile = load_shipped(f"llama-{model}-a800-80gb")
    judged = judge(
        source, profile, Workload(gpus, context, tokens), choose_sync(profile, gpus), STEPS[gpus]
    )
    ours_ms = mean(judged.ours)
    strategy, static_ms = judged.static
    narrower, hindsight_ms = judged.hindsight
    return [
        f"{model.upper()}, {gpus:,}, {context // 1024}K, {tokens:,}",
        judged.layout,
        f"{ours_ms / 1000:.2f} s",
        f"{strategy}: {mean(static_ms) / 1000:.2f} s",
        f"{mean(static_ms) / ours_ms:.3f}",
        f"{judged.of_static.min():.3f}",
        f"{narrower}: {mean(hindsight_ms) / ours_ms:.3f}",
        f"{judged.gap:.1%}",
        f"{judged.proposal_s:.0f} s",
        f"{judged.step_s * 1000:.0f} ms",
    ]


def _other_rows(
    source: Data, model: str, gpus: int, context: int, tokens: int
) -> Iterator[list[str]]:
    profile = load_shipped(f"llama-{model}-a800-80gb")
    syncs = {
        "derived, half hidden": choose_sync(profile, gpus, overlap=0.5),
        "as published": published_sync(profile, gpus),
    }
    for name, sync in syncs.items():
        judged = judge(source, profile, Workload(gpus, context, tokens), sync, STEPS[gpus])
        ours_ms = mean(judged.ours)
        yield [
            f"{model.upper()}, {gpus:,}, {context // 1024}K, {tokens:,}",
            name,
            judged.layout,
            f"{mean(judged.static[1]) / ours_ms:.3f}",
            f"{judged.gap:.1%}",
        ]


def judge(source: Data, profile: Profile, where: Workload, sync: SyncTimes, steps: int) -> Judged:
    """Propose, plan steps and simulate the static strategies on the same ones."""
    began = time.process_time()
    proposal = make_proposal(profile, where, source.lengths, sync=sync)
    proposal_s = time.process_time() - began
    assert proposal.layouts is not None
    sampler = Sampler(source.lengths, where.tokens, where.max_len, 0)
    batches = list(sampler.batches(steps))
    planner = StepPlanner(proposal)
    began = time.process_time()
    plans = [planner.plan(batch) for batch in batches]
    step_s = (time.process_time() - began) / len(plans)
    ours = np.array([plan.predicted_ms + (plan.sync_ms or 0.0) for plan in plans])
    models = where.models(profile)
    families = Families(models, where.gpus, sync)
    bounds = [
        sync_bound_ms(families, batch, reached)
        for batch, reached in zip(batches, ours.tolist(), strict=True)
    ]
    static = [
        best_homogeneous(batches, models, where.gpus, sync, longest)
        for longest in (int(sampler.lengths.max()), 0)
    ]
    holding, narrower = (
        (strategy, np.array(compute) + sync.of_strategy_ms(strategy))
        for strategy, compute in filter(None, static)
    )
    layout = proposal.layouts.chosen or "several"
    return Judged(batches, plans, layout, ours, holding, narrower, mean(bounds), proposal_s, step_s)
