"""Whole iterations against the best static strategy, in chosen settings and in drawn ones.

Forward, backward and the sync, derived schemes on both sides, our dispatch and packing on both. The
static strategy holds the longest sequence of the data, as it has to run all of it; next to it the
one that is best if only the simulated steps count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from benchmarks.planning import draw_batches, plan_steps, time_cpu
from benchmarks.settings import Data, published_sync
from benchmarks.tables import Output, Table
from seqplan import Batch, Infeasible, Plan, Profile, StepPlanner, Strategy, Workload, make_proposal
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.bounds.with_sync import Families, sync_bound_ms
from seqplan.planner.placement.dispatch import probe
from seqplan.planner.placement.dominance import drop_dominated
from seqplan.planner.placement.fill import Filler, Placement
from seqplan.planner.placement.fleet import Fleet, Floats
from seqplan.planner.strategies.homogeneous import best_homogeneous
from seqplan.planner.strategies.local_search import swap
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import SyncTimes

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

OTHER_SYNCS = tuple(
    setting for setting in SETTINGS if setting[2:] != (16384, 200_000) and setting[3] != 800_000
)
"""Settings that are simulated with other syncs than the derived one, too."""


@dataclass(frozen=True)
class Iterations:
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
    proposal_ms: float
    step_ms: float

    @property
    def mean_ms(self) -> float:
        """Mean iteration of our plans (ms)."""
        return fmean(self.ours)

    @property
    def ratio(self) -> float:
        """Mean iteration of the static strategy over ours."""
        return fmean(self.static[1]) / self.mean_ms

    @property
    def ratios(self) -> Floats:
        """Iterations of the static strategy over ours, step by step."""
        return np.asarray(self.static[1] / self.ours)

    @property
    def gap(self) -> float:
        """Share by which our mean iteration exceeds the mean bound."""
        return self.mean_ms / self.bound_ms - 1


def simulate_iterations(
    source: Data, profile: Profile, where: Workload, sync: SyncTimes, steps: int
) -> Iterations:
    """Propose, plan steps and simulate the static strategies on the same ones."""
    proposal, proposal_ms = time_cpu(make_proposal, profile, where, source.lengths, sync=sync)
    assert proposal.layouts is not None
    batches = draw_batches(source, where, steps)
    planned = plan_steps(StepPlanner(proposal).plan, batches)
    ours = planned.iterations_ms
    models = where.models(profile)
    families = Families(models, where.gpus, sync)
    bounds = [
        sync_bound_ms(families, batch, reached)
        for batch, reached in zip(batches, ours.tolist(), strict=True)
    ]
    longest = int(min(source.lengths.max(), where.max_len))
    static = [best_homogeneous(batches, models, where.gpus, sync, least) for least in (longest, 0)]
    holding, narrower = (
        (strategy, np.array(compute) + sync.of_strategy_ms(strategy))
        for strategy, compute in filter(None, static)
    )
    times = fmean(bounds), proposal_ms, fmean(planned.planning_ms)
    layout = proposal.layouts.chosen or "several"
    return Iterations(batches, planned.plans, layout, ours, holding, narrower, *times)


def compare_iterations(
    data: Sequence[Data],
    settings: Sequence[tuple[str, int, int, int]] = SETTINGS,
    other_syncs: Sequence[tuple[str, int, int, int]] = OTHER_SYNCS,
) -> Output:
    """Compare whole iterations with those of the best static strategy, under several syncs."""
    name = "{}, {:,}, {}K, {:,}"
    for source in data:
        table = Table(
            "model, GPUs, context, tokens | layout | ours | best static | static / ours"
            " | worst step | if only these steps count | above the bound | proposal, CPU"
            " | step, CPU",
            name + " | {} | {:.2f} s | {}: {:.2f} s | {:.3f} | {:.3f} | {}: {:.3f} | {:.1%}"
            " | {:.0f} s | {:.0f} ms",
            title=f"{source.name}: whole iterations, simulated on the A800 profiles",
        )
        for model, *where in settings:
            profile = load_shipped(f"llama-{model}-a800-80gb")
            its = _simulate(source, profile, where, choose_sync(profile, where[0]))
            (strategy, static_ms), (narrower, hindsight_ms) = its.static, its.hindsight
            table.add(
                *_list_setting(model, where),
                *(its.layout, its.mean_ms / 1e3, str(strategy), fmean(static_ms) / 1e3, its.ratio),
                *(its.ratios.min(), str(narrower), fmean(hindsight_ms) / its.mean_ms, its.gap),
                *(its.proposal_ms / 1e3, its.step_ms),
            )
        yield table
        others = Table(
            "model, GPUs, context, tokens | sync | layout | static / ours | above the bound",
            name + " | {} | {} | {:.3f} | {:.1%}",
        )
        for model, *where in other_syncs:
            profile = load_shipped(f"llama-{model}-a800-80gb")
            for kind, sync in {
                "derived, half hidden": choose_sync(profile, where[0], overlap=0.5),
                "as published": published_sync(profile, where[0]),
            }.items():
                its = _simulate(source, profile, where, sync)
                others.add(*_list_setting(model, where), kind, its.layout, its.ratio, its.gap)
        yield others


def _simulate(source: Data, profile: Profile, where: Sequence[int], sync: SyncTimes) -> Iterations:
    gpus, context, tokens = where
    steps = 8 if gpus == 64 else 2
    return simulate_iterations(source, profile, Workload(gpus, context, tokens), sync, steps)


def _list_setting(model: str, where: Sequence[int]) -> tuple[object, ...]:
    gpus, context, tokens = where
    return model.upper(), gpus, context // 1024, tokens


MODELS = ("7b", "13b", "32b")
GPUS = (8, 16, 32, 48, 64, 96, 128, 256)
CONTEXTS = (4096, 8192, 16384, 32768, 65536, 131072)
TOKENS_PER_GPU = (1000, 3125, 6000, 12_500)
OVERLAPS = (0.0, 0.5, 1.0)
DRAWN = 200_000
"""Sequences of a drawn distribution."""

SLOWER_SHOWN, GAP_SHOWN, BEHIND = 5e-5, 0.02, 1e-3
"""A setting has a row if a step is slower than the static one by more, or its gap is larger."""

SHORT = 16_384
"""Context (tokens) up to which settings are summed up apart."""

NEARBY, SWAPS, SIZES = 1000, 3, (1, 2, 4)
"""Strategies near a plan's that are tried: their number, swaps and pipelines of a swap."""


@dataclass(frozen=True)
class DrawnSetting:
    """A planning problem: ``overlap`` is the share of the sync that computation hides."""

    source: Data
    model: str
    where: Workload
    overlap: float

    @classmethod
    def draw(cls, rng: np.random.Generator, sources: Sequence[Data]) -> DrawnSetting:
        """Draw a setting."""
        gpus, context = int(rng.choice(GPUS)), int(rng.choice(CONTEXTS))
        tokens = max(gpus * int(rng.choice(TOKENS_PER_GPU)), 2 * context)
        return cls(
            source=sources[int(rng.integers(len(sources)))],
            model=MODELS[int(rng.integers(len(MODELS)))],
            where=Workload(gpus, context, tokens),
            overlap=float(rng.choice(OVERLAPS)),
        )

    def __str__(self) -> str:
        context, tokens = self.where.max_len // 1024, self.where.tokens
        hidden = f", {self.overlap:.0%} hidden" if self.overlap else ""
        cluster = f"{self.model.upper()}, {self.where.gpus} GPUs, {context}K"
        return f"{self.source.name}, {cluster}, {tokens:,}{hidden}"


def compare_drawn_settings(data: Sequence[Data], settings: int = 40, steps: int = 8) -> Output:
    """Compare whole iterations in settings that nobody chose: drawn at random.

    Model, GPUs, context, tokens of a step, lengths and the hidden share of the sync. In addition to
    the data, lengths are drawn from a Pareto distribution, with the longest tail there is, and from
    a log-normal one, as chats have. Of each first step many strategies near the plan's are tried.
    """
    rng = np.random.default_rng(0)
    sources = [*data, *_draw_distributions(rng)]
    table = Table(
        "setting | layout | best static | static / ours | worst step | above the bound",
        "{} | {} | {} | {:.4f} | {:.4f} | {:.1%}",
    )
    simulated, nearby, short, impossible = [], [], [], 0
    for setting in [DrawnSetting.draw(rng, sources) for _ in range(settings)]:
        profile = load_shipped(f"llama-{setting.model}-a800-80gb")
        sync = choose_sync(profile, setting.where.gpus, overlap=setting.overlap)
        try:
            its = simulate_iterations(setting.source, profile, setting.where, sync, steps)
        except Infeasible:  # too few GPUs for the model, or for its longest sequence
            impossible += 1
            continue
        simulated.append(its)
        if setting.where.max_len <= SHORT:
            short.append(its.ratio)
        nearby.append(_gain_nearby(its, profile, setting.where, sync, rng))
        worst = its.ratios.min()
        if worst < 1 - SLOWER_SHOWN or its.gap > GAP_SHOWN:
            table.add(setting, its.layout, str(its.static[0]), its.ratio, worst, its.gap)
    table.title = f"{len(simulated)} settings drawn at random, {steps} steps each"
    yield table
    gaps, ratios = np.array([its.gap for its in simulated]), [its.ratio for its in simulated]
    of_steps = np.concatenate([its.ratios for its in simulated])
    yield (
        f"static / ours: median {median(ratios):.3f}, least {min(ratios):.4f}, largest "
        f"{max(ratios):.3f}, of any step at least {of_steps.min():.4f}, below {1 - BEHIND} on "
        f"{(of_steps < 1 - BEHIND).sum()} of {len(of_steps)} steps\n\n"
        f"up to {SHORT // 1024}K: {len(short)} settings, median {median(short):.3f}, the two "
        f"largest {', '.join(f'{ratio:.3f}' for ratio in sorted(short)[-2:])}\n\n"
        f"above the bound: median {np.median(gaps):.1%}, p90 {np.quantile(gaps, 0.9):.1%}, largest "
        f"{gaps.max():.1%}; {impossible} settings that no scheme holds are left out\n\n"
        f"of {NEARBY} strategies near that of each first plan one was better for "
        f"{sum(gain > 0 for gain in nearby)} of {len(nearby)} plans, by at most {max(nearby):.2%}"
    )


def _gain_nearby(
    its: Iterations, profile: Profile, where: Workload, sync: SyncTimes, rng: np.random.Generator
) -> float:
    """Try strategies some random swaps away from the first plan's; by what share one was better."""
    plan, batch = its.plans[0], its.batches[0]
    if plan.regroups:
        return 0.0
    models = where.models(profile)
    schemes = sorted(drop_dominated(models))
    strategy, best_ms = plan.strategy, float(its.ours[0])
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
    return float(its.ours[0]) / best_ms - 1


def _draw_distributions(rng: np.random.Generator) -> list[Data]:
    pareto = 300 * (1 + rng.pareto(1.1, DRAWN))
    chats = rng.lognormal(6.3, 1.1, DRAWN) + 8
    return [
        Data("Pareto", np.minimum(pareto, max(CONTEXTS)).astype(np.int64)),
        Data("log-normal", np.minimum(chats, 40_000).astype(np.int64)),
    ]
