"""Plans of samples with images, and plans whose micro-batches have few sizes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.settings import Data, markdown
from seqplan import Cost, Phase, Plan, Planner, choose_plan_shapes
from seqplan.planner.step.shapes_planner import count_padded_tokens
from seqplan.plans.load import PhaseLoad, time_loads

SETTINGS = (
    ("llama3-8b-h100-80gb", 8, 400_000),
    ("llama-7b-a800-80gb", 64, 1_500_000),
    ("llama-32b-a800-80gb", 64, 800_000),
)
MAX_LEN, DRAWS, SAMPLED = 32_768, 5, 10
SHARES, NUMBERS = (0.2, 0.4), (4, 8, 16)
"""Parts of the work that are images', and numbers of sizes."""

FIRST_SAMPLED = 100
"""Seed of the first step that sizes are chosen from: others than those that are timed."""


def run(data: Sequence[Data]) -> None:
    """Print gaps of both, against plans by tokens and plans of free sizes."""
    images, shapes = [], []
    for source in data:
        for profile, gpus, tokens in SETTINGS:
            free = Planner.from_profile(profile, gpus, MAX_LEN, execution="static")
            drawn = [_draw(source, tokens, seed) for seed in range(DRAWS)]
            plans = [free.plan(lengths) for lengths in drawn]
            names = [source.name, profile, f"{gpus}"]
            images += [[*names, *_images_row(free, drawn, share)] for share in SHARES]
            sampled = [
                free.plan(_draw(source, tokens, FIRST_SAMPLED + seed)) for seed in range(SAMPLED)
            ]
            for number in NUMBERS:
                sizes = choose_plan_shapes(sampled, number)
                few = Planner.from_profile(profile, gpus, MAX_LEN, shapes=sizes)
                shapes.append([*names, f"{number}", *_shapes_row(few, plans)])
    head = ["lengths", "profile", "GPUs"]
    print(f"### Images in half of the samples, {DRAWS} steps\n")
    columns = [*head, "images' work", "gap, median", "largest", "by tokens over ours", "CPU"]
    print(markdown(columns, images) + "\n")
    print(f"### Few sizes, chosen from {SAMPLED} other steps, {DRAWS} steps\n")
    columns = [*head, "sizes", "slower than free sizes, median", "padding", "gap, median", "CPU"]
    print(markdown(columns, shapes) + "\n")


def _draw(source: Data, tokens: int, seed: int) -> list[int]:
    pool = source.lengths[source.lengths <= MAX_LEN]
    drawn = np.random.default_rng(seed).choice(pool, 20_000)
    return [int(n) for n in drawn[: int(np.searchsorted(np.cumsum(drawn), tokens))]]


def _images_row(planner: Planner, drawn: Sequence[Sequence[int]], share: float) -> list[str]:
    gaps, ratios, cpu_ms = [], [], []
    for seed, text in enumerate(drawn):
        patches = _draw_patches(len(text), seed)
        # Four patches become a token of the language model.
        tokens = [min(n + sum(p) // 4, MAX_LEN) for n, p in zip(text, patches, strict=True)]
        plan = planner.plan(tokens)
        vision = _scale_vision(plan, patches, share)
        began = time.process_time()
        made = planner.plan(tokens, loads=[vision])
        cpu_ms.append(1e3 * (time.process_time() - began))
        gaps.append(made.gap)
        ratios.append(_time_with(plan, made.loads) / made.predicted_ms)
    return [
        f"{share:.0%}",
        f"{np.median(gaps):.1%}",
        f"{max(gaps):.1%}",
        f"{np.mean(ratios):.2f} (at least {min(ratios):.2f})",
        f"{np.median(cpu_ms):,.0f} ms",
    ]


def _draw_patches(samples: int, seed: int) -> list[list[int]]:
    """Draw one to three images for half of the samples."""
    rng = np.random.default_rng([seed, 1])
    return [
        rng.integers(256, 8_192, rng.integers(1, 4)).tolist() if rng.random() < 0.5 else []
        for _ in range(samples)
    ]


def _scale_vision(plan: Plan, patches: list[list[int]], share: float) -> Phase:
    """Return images of which all are this share of the GPU-time."""
    vision = Phase("vision", patches, Cost(2e-6, 0.01, 0.0))
    text_ms = sum(len(p.ranks) * b.cost_ms for p in plan.pipelines for b in p.micro_batches)
    scale = share / (1 - share) * text_ms / float(vision.work_ms.sum())
    return replace(vision, cost=Cost(2e-6 * scale, 0.01 * scale, 3.0))


def _time_with(plan: Plan, loads: tuple[PhaseLoad, ...]) -> float:
    return max(
        pipeline.predicted_ms
        + sum(time_loads(loads, pipeline.scheme, b.sequences) for b in pipeline.micro_batches)
        for pipeline in plan.pipelines
    )


def _shapes_row(planner: Planner, plans: Sequence[Plan]) -> list[str]:
    slower, padding, gaps, cpu_ms = [], [], [], []
    for plan in plans:
        began = time.process_time()
        made = planner.plan(plan.lengths)
        cpu_ms.append(1e3 * (time.process_time() - began))
        slower.append(made.predicted_ms / plan.predicted_ms - 1)
        padding.append(count_padded_tokens(made) / made.tokens - 1)
        gaps.append(made.gap)
    return [
        f"{np.median(slower):.1%}",
        f"{np.mean(padding):.2%}",
        f"{np.median(gaps):.1%}",
        f"{np.median(cpu_ms):,.0f} ms",
    ]
