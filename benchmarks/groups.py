"""Groups of ranks: ones that regroup, windows of steps, any ring degree, steps in lockstep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from statistics import fmean, median

import numpy as np

from benchmarks.planning import draw_batches, plan_steps, time_cpu
from benchmarks.settings import PROFILE, Data
from benchmarks.tables import Cells, Output, Table, spread
from seqplan import Batch, Cost, Planner, Profile, Scheme, StepPlanner, Workload
from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.default_schemes import MOST_RING, MOST_SHARES
from seqplan.costs.derived.model_profiles import derive_model_profile
from seqplan.costs.model_files.listed_models import MODELS
from seqplan.costs.model_sizes import ModelSizes
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.integrations.degree_costs import by_degree, ring_costs
from seqplan.integrations.megatron_groups import plan_chains
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.batches.window import WindowSampler
from seqplan.planner.bounds.sequence_costs import sequence_costs
from seqplan.planner.execution import ExecutionKind
from seqplan.planner.lockstep.filling.rank_groups import plan_groups
from seqplan.planner.placement.dominance import drop_dominated
from seqplan.planner.placement.fleet import Models, PipelineClass
from seqplan.planner.problem import PlanningOptions, PlanningProblem
from seqplan.planner.proposal.make_proposal import make_proposal
from seqplan.planner.strategies.constructive import Constructive, LayoutSchemes
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import parse_layout

GPUS = 64
EXECUTIONS: tuple[ExecutionKind, ...] = ("static", "regroup")

REGROUPED = (
    (32_768, 200_000, "tp4"),
    (32_768, 200_000, "tp8"),
    (32_768, 800_000, "tp4"),
    (131_072, 200_000, "tp8"),
    (131_072, 800_000, "tp8"),
)
"""Context, tokens of a step and layout: those without stages that the 32B runs best on; tp4 holds
no 128K on this many GPUs."""


def compare_regrouping(
    data: Sequence[Data], settings: Sequence[tuple[int, int, str]] = REGROUPED, steps: int = 6
) -> Output:
    """Compare groups that regroup within the step with groups that stay, on one layout."""
    for source in data:
        table = Table(
            "context, tokens a step, layout | fixed groups | regrouping | gain, mean | largest"
            " | steps that regroup | above the bound | step, CPU: fixed | regrouping",
            "{}K, {:,}, {} | {:,.0f} ms | {:,.0f} ms | {:.1%} | {:.1%} | {} of {} | {:.1%}"
            " | {:.0f} ms | {:.0f} ms",
            title=f"{source.name}: groups that regroup, {GPUS} GPUs, {PROFILE}",
        )
        for context, tokens, layout in settings:
            profile = load_shipped(PROFILE).restrict(layout=parse_layout(layout))
            where, sync = Workload(GPUS, context, tokens), choose_sync(profile, GPUS)
            proposal = make_proposal(profile, where, source.lengths, sync=sync)
            batches = draw_batches(source, where, steps)
            planners = [
                StepPlanner(proposal, PlanningOptions(execution=kind)) for kind in EXECUTIONS
            ]
            fixed, free = (plan_steps(planner.plan, batches) for planner in planners)
            gains = [
                before.predicted_ms / after.predicted_ms - 1
                for before, after in zip(fixed.plans, free.plans, strict=True)
            ]
            bound_ms = fmean(plan.lower_bound_ms for plan in free.plans)
            regrouped = sum(plan.strategy.gpus > GPUS for plan in free.plans)
            table.add(
                *(context // 1024, tokens, layout, fixed.compute_ms, free.compute_ms),
                *(fixed.compute_ms / free.compute_ms - 1, max(gains), regrouped, steps),
                *(free.compute_ms / bound_ms - 1, fmean(fixed.planning_ms)),
                fmean(free.planning_ms),
            )
        yield table


WINDOWED = (
    ("32b", "tp8", 1024, 131_072, 3_200_000),
    ("7b", "tp2", 1024, 131_072, 3_200_000),
    ("32b", "tp8", 64, 131_072, 200_000),
    ("32b", "tp8", 64, 32_768, 200_000),
)
"""Model, layout, GPUs, context, tokens of a step."""


def compose_windows(
    data: Sequence[Data],
    settings: Sequence[tuple[str, str, int, int, int]] = WINDOWED,
    windows: Sequence[int] = (2, 4, 8),
    steps: int = 16,
) -> Output:
    """Compose windows of steps: the gain in computing time, and the tokens moved."""
    table = Table(
        " | ".join(
            ["lengths, model, GPUs, context | as drawn"]
            + [f"{window} steps: gain, tokens moved" for window in windows]
        ),
        "{}, {} {}, {:,}, {}K | {:,.0f} ms" + " | {:+.1%}, {:.1%}" * len(windows),
        title=f"Windows of steps, simulated on the A800 profiles, {steps} steps",
    )
    for source, (model, layout, gpus, context, tokens) in product(data, settings):
        profile = load_shipped(f"llama-{model}-a800-80gb").restrict(layout=parse_layout(layout))
        models = Workload(gpus, context, tokens).models(profile)
        classes = [PipelineClass.from_model(kept, 1) for kept in drop_dominated(models).values()]
        sampler = Sampler(source.lengths, tokens, context, 0)
        costs = sequence_costs(classes, sampler.lengths, gpus)
        drawn_ms = _place(sampler.batches(steps), models, gpus)
        gains: list[float] = []
        for window in windows:
            composed = WindowSampler(sampler, window, costs, 0)
            gains.append(drawn_ms / _place(composed.batches(steps), models, gpus) - 1)
            gains.append(composed.report().moved_tokens)
        table.add(source.name, model.upper(), layout, gpus, context // 1024, drawn_ms, *gains)
    yield table


def _place(batches: Iterable[Batch], models: Models, gpus: int) -> float:
    """Plan steps on the layout, groups that stay; the mean time of forward and backward (ms)."""
    times = []
    layout = LayoutSchemes.list_from_models(models)[0]
    for batch in batches:
        placement = Constructive(layout, batch, gpus).place(np.inf)
        assert placement is not None
        times.append(placement.objective_ms)
    return fmean(times)


def bound_lockstep(
    data: Sequence[Data],
    contexts: Sequence[int] = (32_768, 131_072),
    tokens: Sequence[int] = (200_000, 800_000),
    steps: int = 8,
) -> Output:
    """Bound steps in lockstep of 32B on 64 GPUs: the bound of plans, and a closer one."""
    table = Table(
        "lengths, context, tokens | micro-steps | gap, median | largest | CPU"
        " | closer bound, median | largest | CPU",
        "{}, {}K, {:,} | {}–{} | {:.1%} | {:.1%} | {:.2f} s | {:.1%} | {:.1%} | {:.2f} s",
        title=f"Lockstep, {PROFILE}, {GPUS} GPUs, {steps} steps",
    )
    profile = load_shipped(PROFILE)
    for source, context, total in product(data, contexts, tokens):
        where = Workload(GPUS, context, total)
        problem = PlanningProblem(profile=profile, workload=where, sync=None, execution="lockstep")
        drawn = [source.draw_tokens(n, total, total // 10, cut=context) for n in range(steps)]
        batches = [Batch.from_lengths(lengths.tolist()) for lengths in drawn]
        cells: list[float] = []
        counts = []
        for closer in (False, True):
            planner = StepPlanner(problem, PlanningOptions(prove_lockstep=closer))
            planned = plan_steps(planner.plan, batches)
            counts += [len({p.micro_step for p in plan.pipelines}) for plan in planned.plans]
            cells += median(planned.gaps), max(planned.gaps), median(planned.planning_ms) / 1e3
        table.add(source.name, context // 1024, total, min(counts), max(counts), *cells)
    yield table


POWERS, ANY = (1, 2, 4, 8, 16), (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
"""Degrees of rings."""


def compare_degrees(
    data: Sequence[Data],
    contexts: Sequence[int] = (32_768, 131_072),
    executions: Sequence[ExecutionKind] = ("lockstep", "static"),
    megatron_ranks: Sequence[int] = (6, 12, 24, 48),
    tokens: int = 1_000_000,
    steps: int = 8,
) -> Output:
    """Compare groups of any size with powers of two, in seqplan's plans and in Megatron's.

    Derived profiles of one layout, the same batches, plans without sync. Megatron's groups are of
    all divisors of its ranks, which are no power of two, with 8,192 tokens a rank.
    """
    profiles = [_derive("powers", POWERS), _derive("any", ANY)]
    ratio = "{:.3f} ({:.3f} to {:.3f})"
    table = Table(
        "lengths | execution | powers of two / any | gap of any",
        "{}, {}K | {} | " + ratio + " | {:.1%}",
        title=f"Rings of any degree, {GPUS} GPUs, {tokens:,} tokens a step, {steps} steps",
    )
    for source, context, execution in product(data, contexts, executions):
        within = source.keep_within(context)
        batches = [within.draw_tokens(step, tokens, tokens // 50) for step in range(steps)]
        powers, every = (
            [
                Planner.from_profile(p, GPUS, context, execution=execution, sync=None).plan(lengths)
                for lengths in batches
            ]
            for p in profiles
        )
        ratios = [a.predicted_ms / b.predicted_ms for a, b in zip(powers, every, strict=True)]
        gap = median(plan.gap for plan in every)
        table.add(source.name, context // 1024, execution, *spread(ratios), gap)
    yield table
    known = ring_costs(profiles[1], "tp2")
    yield Table(
        "lengths, 32K | ranks | micro-batches | powers of two / all divisors | gap | CPU",
        "{} | {} | {} | " + ratio + " | {:.1%} | {:.0f} ms",
        [
            _compare_divisors(source, known, ranks, steps, one_each=one_each)
            for source, ranks, one_each in product(data, megatron_ranks, (False, True))
        ],
        f"Megatron's groups of all divisors, 8,192 tokens a rank, {steps} steps",
    )


def _compare_divisors(
    source: Data, known: dict[int, Cost], ranks: int, steps: int, *, one_each: bool
) -> Cells:
    divisors = [degree for degree in range(1, ranks + 1) if ranks % degree == 0]
    powers, every = by_degree(known, ranks), by_degree(known, ranks, formed=divisors)
    ratios, gaps, times = [], [], []
    for step in range(steps):
        lengths = source.draw(step, 16 * ranks, cut=32_768).tolist()
        alone = plan_groups(lengths, ranks, 8_192, powers, one_each=one_each)
        best, ms = time_cpu(plan_chains, lengths, ranks, 8_192, every, one_each=one_each)
        times.append(ms)
        ratios.append(alone.predicted_ms / best.predicted_ms)
        gaps.append(best.gap)
    kind = "one by one" if one_each else "packed"
    return source.name, ranks, kind, *spread(ratios), median(gaps), median(times)


LARGE_CLUSTERS = (
    ("llama3-8b", 256, 131_072),
    ("llama3-8b", 1024, 32_768),
    ("llama3-8b", 1024, 131_072),
    ("qwen3-32b", 1024, 131_072),
    ("llama3-70b", 4096, 131_072),
    ("qwen3-30b-a3b", 256, 131_072),
    ("gpt-oss-120b", 256, 131_072),
)
"""Model, GPUs and context."""


def compare_long_rings(
    data: Sequence[Data],
    settings: Sequence[tuple[str, int, int]] = LARGE_CLUSTERS,
    tokens_a_gpu: int = 3_125,
    steps: int = 8,
) -> Output:
    """Compare long rings over whole nodes with the degrees that are usual on few nodes."""
    table = Table(
        "lengths | model, GPUs, context | few nodes' degrees | all | ratio | gap"
        " | proposal, CPU | step, CPU",
        "{} | {}, {:,}, {}K | {:.3f} s | {:.3f} s | {:.2f} ({:.2f} to {:.2f}) | {:.1%}"
        " | {:.0f} and {:.0f} s | {:.2f} and {:.2f} s",
        title=f"Long rings, derived profiles for h100-80gb, {tokens_a_gpu:,} tokens a GPU",
    )
    for source, (model, gpus, context) in product(data, settings):
        cluster = ClusterHardware(DEVICES["h100-80gb"], gpus // 8, 8)
        sizes = ModelSizes.from_mapping(MODELS[model])
        every = derive_model_profile(sizes, cluster, name=model, longest=context)
        few = every.keep_schemes(
            {
                entry.scheme
                for entry in every.schemes
                if entry.scheme.sp <= MOST_SHARES and entry.scheme.ring <= MOST_RING
            }
        )
        where = Workload(gpus, context, tokens_a_gpu * gpus)
        batches = draw_batches(source, where, steps)
        planned, proposal_s = [], []
        for profile in (few, every):
            proposal, ms = time_cpu(make_proposal, profile, where, source.lengths)
            planned.append(plan_steps(StepPlanner(proposal).plan, batches))
            proposal_s.append(ms / 1e3)
        ratios = planned[0].iterations_ms / planned[1].iterations_ms
        table.add(
            *(source.name, model, gpus, context // 1024),
            *(steps_of.iterations_ms.mean() / 1e3 for steps_of in planned),
            *(ratios.mean(), ratios.min(), ratios.max(), median(planned[1].gaps)),
            *(*proposal_s, *(median(steps_of.planning_ms) / 1e3 for steps_of in planned)),
        )
    yield table


def _derive(name: str, rings: Sequence[int]) -> Profile:
    deployment = Deployment(
        cluster=ClusterHardware(DEVICES["h100-80gb"], GPUS // 8, 8),
        sizes=ModelSizes.from_mapping(MODELS["llama3-8b"]),
        zero=1,
        recompute="none",
    )
    schemes = [Scheme(tp=2, ring=ring) for ring in rings]
    return Profile.from_document(derive_profile(deployment, schemes, name=name), name)
