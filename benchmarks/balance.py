"""Balancing over ranks: planning time and proven gap; slower ranks; samples of several loads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush

import numpy as np

from benchmarks.settings import Data, markdown
from seqplan import Balanced, Cost, Phase, balance
from seqplan.planner.balance.balanced import Execution, ModePricing
from seqplan.planner.balance.shapes import choose_shapes, pad_to_shape

SHAPES = ((4096, 128), (512, 16))
CONTEXTS = (4096, 8192, 32_768)
DRAWS = 9
PROFILE, SCHEME = "llama-7b-a800-80gb", "tp2"


SLOWDOWNS, RANKS = (1.1, 1.3, 2.0), (8, 64)

FEW_SHAPES, SHAPE_CONTEXTS = (8, 4), (8192, 16_384, 32_768)

MIXTURES = {
    "half with images": (0.5, 2.0),
    "a tenth with many images": (0.1, 6.0),
    "all with an image or some": (1.0, 0.5),
}
"""Share of the samples with images, and how many more than one they have in the mean."""

VISION_SHARES = (0.2, 0.4)


def run(data: Sequence[Data]) -> None:
    """Print gap and time of a call by data set, context and trainer."""
    cost = Cost.from_profile(PROFILE, SCHEME)
    rows = [
        _row(source, cost, context, sequences, ranks, lockstep=lockstep)
        for source in data
        for context in CONTEXTS
        for sequences, ranks in SHAPES
        for lockstep in (True, False)
    ]
    print(f"### Balancing, {DRAWS} draws, costs of {SCHEME} in {PROFILE}\n")
    head = ["lengths, context", "sequences × ranks", "trainer", "micro-batches a rank"]
    head += ["gap, median", "p90", "CPU, median"]
    print(markdown(head, rows) + "\n")
    print("### One slow rank: the step over that of equal ranks, as a share of what it must cost\n")
    slow = [
        _slow_row(source, cost, ranks, lockstep=lockstep)
        for source in data
        for ranks in RANKS
        for lockstep in (True, False)
    ]
    head = ["lengths, 32K", "ranks", "trainer"]
    head += [f"{factor}, planned around / not" for factor in SLOWDOWNS]
    print(markdown(head, slow) + "\n")
    print("### Few shapes: tokens of padding, and the time over that of free shapes\n")
    shaped = [
        _shapes_row(source, cost, context, lockstep=lockstep)
        for source in data
        for context in SHAPE_CONTEXTS
        for lockstep in (True, False)
    ]
    head = ["lengths, context", "trainer", "rounded up to 512: padding, time, shapes"]
    head += [f"{number} shapes: padding, time; rounded up" for number in FEW_SHAPES]
    print(markdown(head, shaped) + "\n")
    print("### Samples with images: vision encoder, barrier, language model\n")
    loads = [
        _loads_row(name, share, samples, ranks)
        for name in MIXTURES
        for share in VISION_SHARES
        for samples, ranks in ((4096, 128), (1024, 64))
    ]
    head = ["samples", "vision's share of work", "samples × ranks", "gap, median", "p90"]
    head += ["by tokens", "by the sum of loads", "CPU, median"]
    print(markdown(head, loads) + "\n")


def _slow_row(source: Data, cost: Cost, ranks: int, *, lockstep: bool) -> list[str]:
    """Compare plans around one slow rank, and plans that do not know it, with N/(N − 1 + 1/x)."""
    row = [source.name, str(ranks), "lockstep" if lockstep else "free"]
    for factor in SLOWDOWNS:
        around, unaware = [], []
        for draw in range(DRAWS):
            drawn = np.random.default_rng(draw).choice(source.lengths, 32 * ranks)
            lengths = np.minimum(drawn, 32_768)
            slowdown = [1.0] * (ranks - 1) + [factor]
            execution: Execution = "lockstep" if lockstep else "uniform"
            equal = balance(lengths, ranks, 32_768, cost, execution=execution)
            slow = balance(lengths, ranks, 32_768, cost, execution=execution, slowdown=slowdown)
            least_ms = equal.predicted_ms * ranks / (ranks - 1 + 1 / factor)
            around.append(slow.predicted_ms / least_ms)
            unaware.append(sum(replace(equal, slowdown=slow.slowdown).phase_ms.values()) / least_ms)
        row.append(f"{np.mean(around):.3f} (at most {max(around):.3f}) / {np.mean(unaware):.3f}")
    return row


def _shapes_row(source: Data, cost: Cost, context: int, *, lockstep: bool) -> list[str]:
    """Compare few shapes with free ones, 1,024 sequences on 16 ranks; means of the draws."""
    execution: Execution = "lockstep" if lockstep else "uniform"
    figures: dict[object, list[tuple[float, float]]] = {}
    kinds = []
    for draw in range(DRAWS):
        pool = source.lengths[source.lengths <= context]
        lengths = np.random.default_rng(draw).choice(pool, 1024)
        free = balance(lengths, 16, context, cost, execution=execution)
        sizes = [s for of_rank in free.padded_tokens for s in of_rank if s]
        fixed = tuple(range(512, -(-max(sizes) // 512) * 512 + 1, 512))
        kinds.append(len({pad_to_shape(size, fixed) for size in sizes}))
        rounded = {"512": fixed} | {f"{k} up": choose_shapes(sizes, k) for k in FEW_SHAPES}
        ways: dict[object, Balanced] = {
            name: replace(free, pricing=replace(free.pricing, shapes=shapes))
            for name, shapes in rounded.items()
            if isinstance(free.pricing, ModePricing)
        }
        for number in FEW_SHAPES:
            ways[number] = balance(lengths, 16, context, cost, execution=execution, shapes=number)
        for name, way in ways.items():
            padded = sum(map(sum, way.padded_tokens)) / int(lengths.sum()) - 1
            slower = sum(way.phase_ms.values()) / free.predicted_ms - 1
            figures.setdefault(name, []).append((padded, slower))

    def means(name: object) -> str:
        """Print the mean padding and the mean price in time."""
        padded, slower = np.mean(figures[name], axis=0)
        return f"{padded:.2%}, {slower:.1%}"

    return [
        f"{source.name}, {context // 1024}K",
        "lockstep" if lockstep else "free",
        f"{means('512')}, {np.mean(kinds):.0f}",
        *(f"{means(number)}; {means(f'{number} up')}" for number in FEW_SHAPES),
    ]


def _loads_row(mixture: str, share: float, samples: int, ranks: int) -> list[str]:
    """Compare balancing by load vectors with longest first by one number."""
    with_images, more = MIXTURES[mixture]
    gaps: list[float] = []
    times: list[float] = []
    by_tokens: list[float] = []
    by_sum: list[float] = []
    for draw in range(DRAWS):
        rng = np.random.default_rng(draw)
        images = np.where(rng.random(samples) < with_images, rng.poisson(more, samples) + 1, 0)
        patches = [np.clip(rng.lognormal(7, 0.8, n), 64, 16_000).astype(int) for n in images]
        merged = np.array([int(p.sum()) // 4 for p in patches])
        tokens = rng.lognormal(6, 1, samples).astype(int) + 1 + merged
        text = Phase("text", tokens.tolist(), Cost(1.2e-6, 0.05, 20.0))
        vision = Phase("vision", [p.tolist() for p in patches], Cost(2e-6, 0.01, 0.0))
        scale = share / (1 - share) * text.work_ms.sum() / vision.work_ms.sum()
        vision = replace(vision, cost=Cost(2e-6 * scale, 0.01 * scale, 3.0))
        began = time.process_time()
        balanced = balance(ranks=ranks, loads=[vision, text])
        times.append((time.process_time() - began) * 1000)
        gaps.append(balanced.gap * 100)
        for ratios, key in (
            (by_tokens, tokens.astype(float)),
            (by_sum, text.work_ms + vision.work_ms),
        ):
            ratios.append(_longest_first_ms(balanced, key, ranks) / balanced.predicted_ms)
    return [
        mixture,
        f"{share:.0%}",
        f"{samples:,} × {ranks}",
        f"{np.median(gaps):.1f} %",
        f"{np.percentile(gaps, 90):.1f} %",
        f"{np.mean(by_tokens):.2f} (at least {min(by_tokens):.2f})",
        f"{np.mean(by_sum):.2f} (at least {min(by_sum):.2f})",
        f"{np.median(times):.0f} ms",
    ]


def _longest_first_ms(
    balanced: Balanced, key: np.ndarray[tuple[int], np.dtype[np.float64]], ranks: int
) -> float:
    """Time samples assigned longest first by ``key``, each to the rank with least of it."""
    heap, parts = [(0.0, rank) for rank in range(ranks)], [[list[int]()] for _ in range(ranks)]
    for sample in np.argsort(-key, kind="stable").tolist():
        load, rank = heappop(heap)
        parts[rank][0].append(sample)
        heappush(heap, (load + float(key[sample]), rank))
    return sum(replace(balanced, micro_batches=parts).phase_ms.values())


def _row(
    source: Data, cost: Cost, context: int, sequences: int, ranks: int, *, lockstep: bool
) -> list[str]:
    gaps, times, counts = [], [], []
    for draw in range(DRAWS):
        drawn = np.random.default_rng(draw).choice(source.lengths, sequences)
        lengths = np.minimum(drawn, context)
        began = time.process_time()
        balanced = balance(
            lengths, ranks, context, cost, execution="lockstep" if lockstep else "uniform"
        )
        times.append((time.process_time() - began) * 1000)
        gaps.append(balanced.gap * 100)
        counts.append(np.mean([len(of_rank) for of_rank in balanced.micro_batches]))
    return [
        f"{source.name}, {context // 1024}K",
        f"{sequences:,} × {ranks}",
        "lockstep" if lockstep else "free",
        f"{np.mean(counts):.1f}",
        f"{np.median(gaps):.2f} %",
        f"{np.percentile(gaps, 90):.2f} %",
        f"{np.median(times):.0f} ms",
    ]
