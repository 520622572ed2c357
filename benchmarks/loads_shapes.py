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
    ("llama3-8b-h100-80gb", 8, 400_000, None),
    ("llama-7b-a800-80gb", 64, 1_500_000, None),
    ("llama-32b-a800-80gb", 64, 800_000, "tp4"),
)
"""Profile, GPUs, tokens of a step, and the layout of plans that sizes are chosen from: without
stages."""
MAX_LEN, DRAWS, SAMPLED = 32_768, 5, 10
CONTEXTS = (8_192, 16_384, MAX_LEN)
SHARES, NUMBERS = (0.2, 0.4), (4, 8, 16)
"""Parts of the work that are images', and numbers of sizes."""

FIRST_SAMPLED = 100
"""Seed of the first step that sizes are chosen from: others than those that are timed."""


def run(data: Sequence[Data]) -> None:
    """Print gaps of both, against plans by tokens and plans of free sizes."""
    images, shapes = [], []
    for source in data:
        for profile, gpus, tokens, layout in SETTINGS:
            names = [source.name, profile, f"{gpus}"]
            free = Planner.from_profile(profile, gpus, MAX_LEN, execution="static")
            drawn = [_draw(source, tokens, seed) for seed in range(DRAWS)]
            images += [[*names, *_images_row(free, drawn, share)] for share in SHARES]
            for max_len in CONTEXTS:
                shapes += _list_shapes_rows(source, profile, gpus, tokens, layout, max_len, names)
    head = ["lengths", "profile", "GPUs"]
    print(f"### Images in half of the samples, {DRAWS} steps\n")
    columns = [*head, "images' work", "gap, median", "largest", "by tokens over ours", "CPU"]
    print(markdown(columns, images) + "\n")
    print(f"### Few sizes, chosen from {SAMPLED} other steps, {DRAWS} steps\n")
    columns = [
        *head,
        "context",
        "sizes",
        "slower than free sizes, median / largest",
        "extra tokens",
        "gap, median",
        "CPU",
    ]
    print(markdown(columns, shapes) + "\n")


def _list_shapes_rows(
    source: Data,
    profile: str,
    gpus: int,
    tokens: int,
    layout: str | None,
    max_len: int,
    names: Sequence[str],
) -> list[list[str]]:
    free = Planner.from_profile(profile, gpus, max_len, execution="static")
    one = Planner.from_profile(profile, gpus, max_len, layout=layout, execution="static")
    plans = [free.plan(_draw(source, tokens, seed, max_len)) for seed in range(DRAWS)]
    seeds = range(FIRST_SAMPLED, FIRST_SAMPLED + SAMPLED)
    sampled = [one.plan(_draw(source, tokens, seed, max_len)) for seed in seeds]
    rows = []
    for number in NUMBERS:
        sizes = choose_plan_shapes(sampled, number)
        few = Planner.from_profile(profile, gpus, max_len, shapes=sizes)
        rows.append([*names, f"{max_len:,}", f"{number}", *_list_shapes_cells(few, plans)])
    return rows


def _draw(source: Data, tokens: int, seed: int, max_len: int = MAX_LEN) -> list[int]:
    pool = source.lengths[source.lengths <= max_len]
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


def _list_shapes_cells(planner: Planner, plans: Sequence[Plan]) -> list[str]:
    slower, padding, gaps, cpu_ms = [], [], [], []
    for plan in plans:
        began = time.process_time()
        made = planner.plan(plan.lengths)
        cpu_ms.append(1e3 * (time.process_time() - began))
        slower.append(made.predicted_ms / plan.predicted_ms - 1)
        padding.append(count_padded_tokens(made) / made.tokens - 1)
        gaps.append(made.gap)
    return [
        f"{np.median(slower):.1%} / {max(slower):.1%}",
        f"{np.mean(padding):.2%}",
        f"{np.median(gaps):.1%}",
        f"{np.median(cpu_ms):,.0f} ms",
    ]
