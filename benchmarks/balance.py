"""Balancing over ranks: time and proven gap; slower ranks; few shapes; samples of several loads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from benchmarks.settings import Data, markdown
from seqplan import Balanced, Cost, Phase, balance
from seqplan.planner.balance.balanced import Execution, ModePricing
from seqplan.planner.balance.shapes import choose_shapes, pad_to_shape
from seqplan.planner.systems.loongforge import fill_largest_first, rebalance
from seqplan.planner.systems.veomni import assign_longest_first, fill_in_order

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
    print("Times over ours, mean (least). Images apart: by themselves to ranks, on both sides\n")
    head = ["samples", "vision's share of work", "samples × ranks", "gap, median / p90"]
    head += ["by tokens", "by the sum of loads", "LoongForge", "VeOmni"]
    head += ["LoongForge, images apart", "VeOmni, images apart", "CPU, median"]
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
    ratios: dict[str, list[float]] = {}
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
        windows = _fill_ranks(fill_largest_first, text, ranks)
        packed = rebalance(windows, text.work_ms.tolist(), text.tokens.tolist())
        dynamic = _fill_ranks(fill_in_order, text, ranks)
        by_sum = (text.work_ms + vision.work_ms).tolist()
        for name, parts in {
            "tokens": assign_longest_first(tokens.tolist(), ranks),
            "sum": assign_longest_first(by_sum, ranks),
            "LoongForge": packed,
            "VeOmni": dynamic,
        }.items():
            ratio = _time_ms(balanced, parts) / balanced.predicted_ms
            ratios.setdefault(name, []).append(ratio)
        items = replace(vision, sequences=[int(p) for of_sample in patches for p in of_sample])
        apart = [balance(ranks=ranks, loads=[items]), balance(ranks=ranks, loads=[text])]
        apart_ms = sum(one.predicted_ms for one in apart)
        squares = [p * p for p in items.tokens.tolist()]
        firsts = np.cumsum([0, *map(len, patches)])
        of_rank = [[k for i in part for k in range(firsts[i], firsts[i + 1])] for part in packed]
        for name, of_images, of_text in (
            ("LoongForge, images apart", rebalance(of_rank, squares, squares, room=inf), packed),
            ("VeOmni, images apart", assign_longest_first(squares, ranks), dynamic),
        ):
            theirs_ms = _time_ms(apart[0], of_images) + _time_ms(apart[1], of_text)
            ratios.setdefault(name, []).append(theirs_ms / apart_ms)
    return [
        mixture,
        f"{share:.0%}",
        f"{samples:,} × {ranks}",
        f"{np.median(gaps):.1f} / {np.percentile(gaps, 90):.1f} %",
        *(f"{np.mean(those):.2f} ({min(those):.2f})" for those in ratios.values()),
        f"{np.median(times):.0f} ms",
    ]


def _fill_ranks(
    fill: Callable[[Sequence[int], int], list[list[int]]], text: Phase, ranks: int
) -> list[list[int]]:
    """Fill a micro-batch for each rank, the smallest for which there are enough ranks."""
    tokens = text.tokens.tolist()
    room = max(*tokens, -(-sum(tokens) // ranks))
    while len(parts := fill(tokens, room)) > ranks:
        room += -(-room // 1000)
    return parts + [[] for _ in range(ranks - len(parts))]


def _time_ms(balanced: Balanced, parts: Sequence[Sequence[int]]) -> float:
    """Time one micro-batch on each rank, of these samples."""
    micro_batches = [[list(part)] for part in parts]
    return sum(replace(balanced, micro_batches=micro_batches).phase_ms.values())


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
