"""Whole iterations against the best static strategy in settings that nobody chose: drawn at random.

Model, GPUs, context, tokens of a step, lengths and the hidden share of the sync. In addition to
the data, lengths are drawn from a Pareto distribution, with the longest tail there is, and from a
log-normal one, as chats have. Of each first step many strategies near the plan's are tried, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

import numpy as np

from benchmarks.settings import Data, markdown
from benchmarks.whole import Judged, judge
from seqplan.costs.profile import Profile
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.errors import Infeasible
from seqplan.planner.placement.dispatch import probe
from seqplan.planner.placement.fill import Filler, Placement
from seqplan.planner.placement.fleet import Fleet, drop_dominated
from seqplan.planner.strategies.local_search import swap
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import SyncTimes
from seqplan.planner.workload import Workload

SETTINGS, STEPS, DRAWN = 40, 8, 200_000
MODELS = ("7b", "13b", "32b")
GPUS = (8, 16, 32, 48, 64, 96, 128, 256)
CONTEXTS = (4096, 8192, 16384, 32768, 65536, 131072)
TOKENS_PER_GPU = (1000, 3125, 6000, 12_500)
OVERLAPS = (0.0, 0.5, 1.0)
SLOWER_SHOWN, GAP_SHOWN, BEHIND = 5e-5, 0.02, 1e-3
NEARBY, SWAPS, SIZES = 1000, 3, (1, 2, 4)


@dataclass(frozen=True)
class Setting:
    """A planning problem: ``overlap`` is the share of the sync that computation hides."""

    source: Data
    model: str
    where: Workload
    overlap: float

    def __str__(self) -> str:
        context, tokens = self.where.max_len // 1024, self.where.tokens
        hidden = f", {self.overlap:.0%} hidden" if self.overlap else ""
        return (
            f"{self.source.name}, {self.model.upper()}, {self.where.gpus} GPUs, {context}K, "
            f"{tokens:,}{hidden}"
        )


def run(data: Sequence[Data]) -> None:
    """Print steps that are slower or far from the bound, and a summary of settings."""
    rng = np.random.default_rng(0)
    sources = [*data, *_distributions(rng)]
    rows, judged, nearby, impossible = [], [], [], 0
    for setting in [_drawn(rng, sources) for _ in range(SETTINGS)]:
        profile = load_shipped(f"llama-{setting.model}-a800-80gb")
        sync = choose_sync(profile, setting.where.gpus, overlap=setting.overlap)
        try:
            outcome = judge(setting.source, profile, setting.where, sync, STEPS)
        except Infeasible:  # too few GPUs for the model, or for its longest sequence
            impossible += 1
            continue
        judged.append(outcome)
        nearby.append(_gain_nearby(outcome, profile, setting.where, sync, rng))
        ratio, worst = _ratio(outcome), outcome.of_static.min()
        if worst < 1 - SLOWER_SHOWN or outcome.gap > GAP_SHOWN:
            row = [str(setting), outcome.layout, str(outcome.static[0])]
            rows.append([*row, f"{ratio:.4f}", f"{worst:.4f}", f"{outcome.gap:.1%}"])
    print(f"### {len(judged)} settings drawn at random, {STEPS} steps each\n")
    head = ["setting", "layout", "best static", "static / ours", "worst step", "above the bound"]
    print(markdown(head, rows) + "\n")
    gaps = np.array([outcome.gap for outcome in judged])
    ratios = [_ratio(outcome) for outcome in judged]
    of_steps = np.concatenate([outcome.of_static for outcome in judged])
    behind = int((of_steps < 1 - BEHIND).sum())
    print(
        f"static / ours: median {median(ratios):.3f}, least {min(ratios):.4f}, largest "
        f"{max(ratios):.3f}, of any step at least {of_steps.min():.4f}, below {1 - BEHIND} on "
        f"{behind} of {len(of_steps)} steps\n\n"
        f"above the bound: median {np.median(gaps):.1%}, p90 {np.quantile(gaps, 0.9):.1%}, largest "
        f"{gaps.max():.1%}; {impossible} settings that no scheme holds are left out\n"
    )
    better = sum(gain > 0 for gain in nearby)
    print(
        f"of {NEARBY} strategies near that of each first plan one was better for {better} of "
        f"{len(nearby)} plans, by at most {max(nearby):.2%}\n"
    )


def _ratio(judged: Judged) -> float:
    """Divide the static strategy's mean iteration by ours."""
    return float(mean(judged.static[1]) / mean(judged.ours))


def _gain_nearby(
    judged: Judged, profile: Profile, where: Workload, sync: SyncTimes, rng: np.random.Generator
) -> float:
    """Try strategies some random swaps away from the first plan's; by what share one was better."""
    plan, batch = judged.plans[0], judged.batches[0]
    if plan.regroups:
        return 0.0
    models = where.models(profile)
    schemes = sorted(drop_dominated(models))
    strategy, best_ms = plan.strategy, float(judged.ours[0])
    for _ in range(NEARBY):
        tried = strategy
        for _ in range(int(rng.integers(1, SWAPS + 1))):
            outgoing = tried.counts[int(rng.integers(len(tried.counts)))][0]
            incoming = schemes[int(rng.integers(len(schemes)))]
            tried = swap(tried, outgoing, incoming, int(rng.choice(SIZES)), where.gpus) or tried
        fleet = Fleet.from_strategy(tried, models)
        sync_ms = sync.of_strategy_ms(tried)
        if fleet.max_sequence < batch.longest or sync_ms >= best_ms:
            continue
        filling = probe(Filler(fleet, batch), 0.0, best_ms - sync_ms)
        if filling is not None:
            strategy, best_ms = tried, Placement(fleet, filling).objective_ms + sync_ms
    return float(judged.ours[0]) / best_ms - 1


def _distributions(rng: np.random.Generator) -> list[Data]:
    pareto = 300 * (1 + rng.pareto(1.1, DRAWN))
    chats = rng.lognormal(6.3, 1.1, DRAWN) + 8
    return [
        Data("Pareto", np.minimum(pareto, max(CONTEXTS)).astype(np.int64)),
        Data("log-normal", np.minimum(chats, 40_000).astype(np.int64)),
    ]


def _drawn(rng: np.random.Generator, sources: Sequence[Data]) -> Setting:
    gpus, context = int(rng.choice(GPUS)), int(rng.choice(CONTEXTS))
    tokens = max(gpus * int(rng.choice(TOKENS_PER_GPU)), 2 * context)
    return Setting(
        source=sources[int(rng.integers(len(sources)))],
        model=MODELS[int(rng.integers(len(MODELS)))],
        where=Workload(gpus, context, tokens),
        overlap=float(rng.choice(OVERLAPS)),
    )
