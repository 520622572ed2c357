"""Balancing over ranks, and plans of samples with several loads or of few shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import inf
from statistics import fmean, median

import numpy as np

from benchmarks.planning import time_cpu
from benchmarks.settings import Data
from benchmarks.tables import Cells, Output, Table
from seqplan import Balanced, Cost, Phase, Plan, Planner, balance, choose_plan_shapes
from seqplan.planner.balance.balanced import Execution, ModePricing
from seqplan.planner.balance.shapes import choose_shapes, pad_to_shape
from seqplan.planner.step.shapes_planner import count_padded_tokens
from seqplan.planner.systems.loongforge import fill_largest_first, rebalance
from seqplan.planner.systems.veomni import assign_longest_first
from seqplan.planner.systems.windows import fill_in_order
from seqplan.plans.load import PhaseLoad, time_loads

PROFILE, SCHEME = "llama-7b-a800-80gb", "tp2"
CONTEXT = 32_768
EXECUTIONS: dict[str, Execution] = {"lockstep": "lockstep", "free": "uniform"}
"""Name of a trainer's kind in the tables → execution."""

SLOWDOWNS, FEW_SHAPES = (1.1, 1.3, 2.0), (8, 4)

MIXTURES = {
    "half with images": (0.5, 2.0),
    "a tenth with many images": (0.1, 6.0),
    "all with an image or some": (1.0, 0.5),
}
"""Share of the samples with images, and how many more than one they have in the mean."""

VISION_SHARES = (0.2, 0.4)
"""Parts of the work that are images'."""

SAMPLES = ((4096, 128), (1024, 64))
"""Samples with images, and ranks."""


def balance_ranks(data: Sequence[Data], draws: int = 9) -> Output:
    """Balance ranks: gaps and CPU, a slow rank, few shapes, samples of several loads."""
    cost, seeds = Cost.from_profile(PROFILE, SCHEME), range(draws)
    table = Table(
        "lengths, context | sequences × ranks | trainer | micro-batches a rank"
        " | gap, median | p90 | CPU, median",
        "{}, {}K | {:,} × {} | {} | {:.1f} | {:.2%} | {:.2%} | {:.0f} ms",
        title=f"Balancing, {draws} draws, costs of {SCHEME} in {PROFILE}",
    )
    shapes = ((4096, 128), (512, 16))
    for source, context, shape, kind in product(data, (4096, 8192, CONTEXT), shapes, EXECUTIONS):
        figures = _balance(source, cost, context, *shape, EXECUTIONS[kind], seeds)
        table.add(source.name, context // 1024, *shape, kind, *figures)
    yield table
    table = Table(
        " | ".join(
            ["lengths, 32K | ranks | trainer", *(f"{x}, planned around / not" for x in SLOWDOWNS)]
        ),
        "{} | {} | {}" + " | {:.3f} (at most {:.3f}) / {:.3f}" * len(SLOWDOWNS),
        title="One slow rank: the step over that of equal ranks, as a share of the least possible",
    )
    for source, ranks, kind in product(data, (8, 64), EXECUTIONS):
        ratios = [_slow_one(source, cost, ranks, EXECUTIONS[kind], x, seeds) for x in SLOWDOWNS]
        table.add(source.name, ranks, kind, *(ratio for of_factor in ratios for ratio in of_factor))
    yield table
    few = "{:.2%}, {:.1%}; {:.2%}, {:.1%}"
    table = Table(
        " | ".join(
            ["lengths, context | trainer | rounded up to 512: padding, time, shapes"]
            + [f"{number} shapes: padding, time; rounded up" for number in FEW_SHAPES]
        ),
        " | ".join(["{}, {}K | {} | {:.2%}, {:.1%}, {:.0f}", *[few] * len(FEW_SHAPES)]),
        title="Few shapes: tokens of padding, and the time over that of free shapes",
    )
    for source, context, kind in product(data, (8192, 16_384, CONTEXT), EXECUTIONS):
        figures = _shape(source, cost, context, EXECUTIONS[kind], seeds)
        table.add(source.name, context // 1024, kind, *figures)
    yield table
    yield Table(
        "samples | vision's share of work | samples × ranks | gap, median / p90 | by tokens"
        " | by the sum of loads | LoongForge | VeOmni | LoongForge, images apart"
        " | VeOmni, images apart | CPU, median",
        " | ".join(
            ["{} | {:.0%} | {:,} × {} | {:.1%} / {:.1%}", *["{:.2f} ({:.2f})"] * 6, "{:.0f} ms"]
        ),
        (
            (mixture, share, *shape, *_balance_loads(mixture, share, *shape, seeds))
            for mixture, share, shape in product(MIXTURES, VISION_SHARES, SAMPLES)
        ),
        "Samples with images: vision encoder, barrier, language model",
    )
    yield "Times over ours, mean (least). Images apart: by themselves to ranks, on both sides"


def _balance(
    source: Data,
    cost: Cost,
    context: int,
    sequences: int,
    ranks: int,
    execution: Execution,
    seeds: Sequence[int],
) -> Cells:
    gaps, times, counts = [], [], []
    for seed in seeds:
        lengths = source.draw(seed, sequences, cut=context)
        balanced, ms = time_cpu(balance, lengths, ranks, context, cost, execution=execution)
        times.append(ms)
        gaps.append(balanced.gap)
        counts.append(fmean(len(of_rank) for of_rank in balanced.micro_batches))
    return fmean(counts), *np.quantile(gaps, (0.5, 0.9)), median(times)


def _slow_one(
    source: Data, cost: Cost, ranks: int, execution: Execution, factor: float, seeds: Sequence[int]
) -> Cells:
    """Compare plans around one slow rank, and plans without its factor, with N/(N − 1 + 1/x)."""
    around, unaware = [], []
    slowdown = [1.0] * (ranks - 1) + [factor]
    for seed in seeds:
        lengths = source.draw(seed, 32 * ranks, cut=CONTEXT)
        equal = balance(lengths, ranks, CONTEXT, cost, execution=execution)
        slow = balance(lengths, ranks, CONTEXT, cost, execution=execution, slowdown=slowdown)
        least_ms = equal.predicted_ms * ranks / (ranks - 1 + 1 / factor)
        around.append(slow.predicted_ms / least_ms)
        unaware.append(_time_ms(replace(equal, slowdown=slow.slowdown)) / least_ms)
    return fmean(around), max(around), fmean(unaware)


def _shape(
    source: Data, cost: Cost, context: int, execution: Execution, seeds: Sequence[int]
) -> Cells:
    """Compare few shapes with free ones, 1,024 sequences on 16 ranks; means of the draws."""
    draws, kinds = [], []
    for seed in seeds:
        lengths = source.keep_within(context).draw(seed, 1024)
        free = balance(lengths, 16, context, cost, execution=execution)
        assert isinstance(free.pricing, ModePricing)
        sizes = [s for of_rank in free.padded_tokens for s in of_rank if s]
        fixed = tuple(range(512, -(-max(sizes) // 512) * 512 + 1, 512))
        kinds.append(len({pad_to_shape(size, fixed) for size in sizes}))
        ways = [replace(free, pricing=replace(free.pricing, shapes=fixed))]
        for number in FEW_SHAPES:
            ways.append(balance(lengths, 16, context, cost, execution=execution, shapes=number))
            pricing = replace(free.pricing, shapes=choose_shapes(sizes, number))
            ways.append(replace(free, pricing=pricing))
        draws.append(
            [
                figure
                for way in ways
                for figure in (
                    sum(map(sum, way.padded_tokens)) / int(lengths.sum()) - 1,
                    _time_ms(way) / free.predicted_ms - 1,
                )
            ]
        )
    padding, slower, *rest = np.mean(draws, axis=0)
    return padding, slower, fmean(kinds), *rest


def _balance_loads(
    mixture: str, share: float, samples: int, ranks: int, seeds: Sequence[int]
) -> Cells:
    """Compare balancing by load vectors with longest first by one number."""
    with_images, more = MIXTURES[mixture]
    gaps: list[float] = []
    times: list[float] = []
    ratios: list[list[float]] = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        images = np.where(rng.random(samples) < with_images, rng.poisson(more, samples) + 1, 0)
        patches = [np.clip(rng.lognormal(7, 0.8, n), 64, 16_000).astype(int) for n in images]
        merged = np.array([int(p.sum()) // 4 for p in patches])
        tokens = rng.lognormal(6, 1, samples).astype(int) + 1 + merged
        text = Phase("text", tokens.tolist(), Cost(1.2e-6, 0.05, 20.0))
        vision = _scale_vision([p.tolist() for p in patches], share, float(text.work_ms.sum()))
        balanced, ms = time_cpu(balance, ranks=ranks, loads=[vision, text])
        times.append(ms)
        gaps.append(balanced.gap)
        windows = _fill_ranks(fill_largest_first, text, ranks)
        packed = rebalance(windows, text.work_ms.tolist(), text.tokens.tolist())
        dynamic = _fill_ranks(fill_in_order, text, ranks)
        by_sum = (text.work_ms + vision.work_ms).tolist()
        by_tokens = assign_longest_first(tokens.tolist(), ranks)
        together = (by_tokens, assign_longest_first(by_sum, ranks), packed, dynamic)
        items = replace(vision, sequences=[int(p) for of_sample in patches for p in of_sample])
        apart = [balance(ranks=ranks, loads=[items]), balance(ranks=ranks, loads=[text])]
        squares = [p * p for p in items.tokens.tolist()]
        firsts = np.cumsum([0, *map(len, patches)])
        of_rank = [[k for i in part for k in range(firsts[i], firsts[i + 1])] for part in packed]
        by_images = (
            (rebalance(of_rank, squares, squares, room=inf), packed),
            (assign_longest_first(squares, ranks), dynamic),
        )
        apart_ms = sum(one.predicted_ms for one in apart)
        ratios.append(
            [_time_parts(balanced, parts) / balanced.predicted_ms for parts in together]
            + [sum(map(_time_parts, apart, parts)) / apart_ms for parts in by_images]
        )
    of_ways = [f for way in zip(*ratios, strict=True) for f in (fmean(way), min(way))]
    return *np.quantile(gaps, (0.5, 0.9)), *of_ways, median(times)


def _fill_ranks(
    fill: Callable[[Sequence[int], int], list[list[int]]], text: Phase, ranks: int
) -> list[list[int]]:
    """Fill a micro-batch for each rank, the smallest for which there are enough ranks."""
    tokens = text.tokens.tolist()
    room = max(*tokens, -(-sum(tokens) // ranks))
    while len(parts := fill(tokens, room)) > ranks:
        room += -(-room // 1000)
    return parts + [[] for _ in range(ranks - len(parts))]


def _time_parts(balanced: Balanced, parts: Sequence[Sequence[int]]) -> float:
    """Time one micro-batch on each rank, of these samples (ms)."""
    return _time_ms(replace(balanced, micro_batches=[[list(part)] for part in parts]))


def _time_ms(balanced: Balanced) -> float:
    return sum(balanced.phase_ms.values())


def _scale_vision(patches: list[list[int]], share: float, text_ms: float) -> Phase:
    """Return images of which all are this share of the work."""
    vision = Phase("vision", patches, Cost(2e-6, 0.01, 0.0))
    scale = share / (1 - share) * text_ms / float(vision.work_ms.sum())
    return replace(vision, cost=Cost(2e-6 * scale, 0.01 * scale, 3.0))


PLANNED = (
    ("llama3-8b-h100-80gb", 8, 400_000, None),
    ("llama-7b-a800-80gb", 64, 1_500_000, "tp1"),
    ("llama-32b-a800-80gb", 64, 800_000, "tp4"),
)
"""Profile, GPUs, tokens of a step, and the layout of plans that sizes are chosen from: without
stages."""

NUMBERS, SAMPLED = (4, 8, 16), range(100, 110)
"""Numbers of sizes; seeds of the steps that they are chosen from: others than those timed."""


def plan_loads_and_shapes(
    data: Sequence[Data],
    settings: Sequence[tuple[str, int, int, str | None]] = PLANNED,
    contexts: Sequence[int] = (8_192, 16_384, CONTEXT),
    steps: int = 5,
) -> Output:
    """Plan samples with images, and steps whose micro-batches have few sizes."""
    images = Table(
        "lengths | profile | GPUs | images' work | gap, median | largest | by tokens over ours"
        " | CPU",
        "{} | {} | {} | {:.0%} | {:.1%} | {:.1%} | {:.2f} (at least {:.2f}) | {:,.0f} ms",
        title=f"Images in half of the samples, {steps} steps",
    )
    for source, (profile, gpus, tokens, _) in product(data, settings):
        planner = Planner.from_profile(profile, gpus, CONTEXT, execution="static")
        drawn = [_draw(source, tokens, seed) for seed in range(steps)]
        for share in VISION_SHARES:
            images.add(source.name, profile, gpus, share, *_plan_images(planner, drawn, share))
    yield images
    yield Table(
        "lengths | profile | GPUs | context | sizes | slower than free sizes, median / largest"
        " | extra tokens | gap, median | CPU",
        "{} | {} | {} | {:,} | {} | {:.1%} / {:.1%} | {:.2%} | {:.1%} | {:,.0f} ms",
        (
            cells
            for source, setting, context in product(data, settings, contexts)
            for cells in _plan_shapes(source, *setting, context, steps)
        ),
        f"Few sizes, chosen from {len(SAMPLED)} other steps, {steps} steps",
    )


def _plan_shapes(
    source: Data, profile: str, gpus: int, tokens: int, layout: str | None, context: int, steps: int
) -> Iterator[Cells]:
    free = Planner.from_profile(profile, gpus, context, execution="static")
    one = Planner.from_profile(profile, gpus, context, layout=layout, execution="static")
    plans = [free.plan(_draw(source, tokens, seed, context)) for seed in range(steps)]
    sampled = [one.plan(_draw(source, tokens, seed, context)) for seed in SAMPLED]
    for number in NUMBERS:
        sizes = choose_plan_shapes(sampled, number)
        planner = Planner.from_profile(profile, gpus, context, shapes=sizes)
        shaped, times = zip(*(time_cpu(planner.plan, p.lengths) for p in plans), strict=True)
        slower = [
            _iteration_ms(s) / _iteration_ms(p) - 1 for s, p in zip(shaped, plans, strict=True)
        ]
        padding = fmean(count_padded_tokens(plan) / plan.tokens - 1 for plan in shaped)
        gap = median(plan.gap for plan in shaped)
        figures = median(slower), max(slower), padding, gap, median(times)
        yield source.name, profile, gpus, context, number, *figures


def _iteration_ms(plan: Plan) -> float:
    return plan.predicted_ms + (plan.sync_ms or 0.0)


def _draw(source: Data, tokens: int, seed: int, context: int = CONTEXT) -> list[int]:
    lengths: list[int] = source.keep_within(context).draw_tokens(seed, tokens, 20_000).tolist()
    return lengths


def _plan_images(planner: Planner, drawn: Sequence[Sequence[int]], share: float) -> Cells:
    gaps, ratios, times = [], [], []
    for seed, text in enumerate(drawn):
        patches = _draw_patches(len(text), seed)
        # Four patches become a token of the language model.
        tokens = [min(n + sum(p) // 4, CONTEXT) for n, p in zip(text, patches, strict=True)]
        plan = planner.plan(tokens)
        text_ms = sum(len(p.ranks) * b.cost_ms for p in plan.pipelines for b in p.micro_batches)
        vision = _scale_vision(patches, share, text_ms)
        balanced, ms = time_cpu(planner.plan, tokens, loads=[vision])
        times.append(ms)
        gaps.append(balanced.gap)
        ratios.append(_time_with(plan, balanced.loads) / balanced.predicted_ms)
    return median(gaps), max(gaps), fmean(ratios), min(ratios), median(times)


def _draw_patches(samples: int, seed: int) -> list[list[int]]:
    """Draw one to three images for half of the samples."""
    rng = np.random.default_rng([seed, 1])
    return [
        rng.integers(256, 8_192, rng.integers(1, 4)).tolist() if rng.random() < 0.5 else []
        for _ in range(samples)
    ]


def _time_with(plan: Plan, loads: tuple[PhaseLoad, ...]) -> float:
    return max(
        pipeline.predicted_ms
        + sum(time_loads(loads, pipeline.scheme, b.sequences) for b in pipeline.micro_batches)
        for pipeline in plan.pipelines
    )
