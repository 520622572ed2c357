"""Bytes of micro-batches: predicted from small ones, compared with larger ones.

On CUDA the largest that runs is searched for. Elsewhere memory is not for one process alone, and
what autograd keeps is counted, as profiles count it there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from seqplan.costs.analytic.memory import layer_activation_bytes
from seqplan.costs.fit.samples import Sample
from seqplan.costs.model_sizes import SIZES, ModelSizes
from seqplan.plans.scheme import Scheme
from seqplan.profiler.measure.bench import Bench, RankWork
from seqplan.profiler.measure.design import DesignPoint
from seqplan.profiler.measure.measurer import Measurer
from seqplan.profiler.measure.out_of_memory import is_out_of_memory
from seqplan.profiler.verify.results import Figure
from seqplan.profiler.verify.settings import VerifySettings

PREDICTION_ERROR = 0.03
"""Most that predicted bytes may be off."""

LAYERS = 4
SEARCH_TO = 0.01
"""The search ends where the largest that runs and the smallest that does not are so near."""

LEAST_LENGTH, CALLS = 32, 40
"""Tokens that are not halved any more; calls of a quarter of a length that the check comes to."""

QUICK_BYTES = 2**28
"""Of the device that a quick search may fill: a small model's tokens on all of it are millions."""

TOO_MUCH = 2**50
"""Bytes that no device has."""


def check_memory(settings: VerifySettings) -> tuple[list[Figure], list[str]]:
    """Predict bytes from micro-batches of one and two sequences; then hold larger ones against."""
    length = 32 if settings.quick else 4096 if settings.cuda else 256
    config = replace(settings.model, layers=LAYERS)
    bench = settings.make_bench(LAYERS, config)
    measurer = Measurer(bench, warm=True)

    def run_sample(*lengths: int) -> Sample:
        return measurer.measure(Scheme(), DesignPoint("fit", lengths), repeats=1)

    if not (settings.quick or settings.cuda):
        length = _affordable(length, run_sample, settings.seconds_of("memory"))
    small = [run_sample(length), run_sample(length, length)]
    measured_bytes = sum(sample.whole_bytes(LAYERS) for sample in small)
    per_token = measured_bytes / sum(sample.tokens for sample in small)
    sizes = ModelSizes(**{name: getattr(config, name) for name in SIZES})
    kept_bytes = small[-1].layers_saved_bytes / (LAYERS * small[-1].tokens)
    element_bytes = torch.empty((), dtype=settings.dtype).element_size()
    figures = [
        Figure(
            "bytes kept a token and layer",
            f"{small[-1].tokens:,} tokens",
            kept_bytes,
            "B",
            assumed=layer_activation_bytes(sizes, "none", 1) * element_bytes / 2,
        )
    ]
    notes: list[str] = []
    if settings.cuda:
        figures.append(_search(settings, bench, per_token, length, notes))
    else:
        for lengths in ((length // 2, length, length // 4, 1), (4 * length,)):
            sample = run_sample(*lengths)
            counted = sample.whole_bytes(LAYERS)
            name = f"{len(lengths)} sequences, {sample.tokens:,} tokens"
            ratio, group = per_token * sample.tokens / counted, "predicted bytes over counted"
            figures.append(Figure.near_one(group, name, ratio, PREDICTION_ERROR))
    figures.append(_check_recovery(bench, lambda: run_sample(length)))
    return figures, notes


def _affordable(longest: int, sampled: Callable[[int], Sample], seconds: float) -> int:
    """Halve the length until all micro-batches of the check fit the time."""
    length = longest
    while length > LEAST_LENGTH:
        started = time.monotonic()
        sampled(length // 4)
        if CALLS * (time.monotonic() - started) <= seconds:
            break
        length //= 2
    return length


def _search(
    settings: VerifySettings, bench: Bench, per_token: float, length: int, notes: list[str]
) -> Figure:
    """Search for the largest micro-batch that runs; ratio of predicted to found tokens."""
    rank_work = RankWork(bench)
    _runs(rank_work, (length,))  # its gradients stay, as in training
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(bench.device)
    if limited := settings.quick and free > QUICK_BYTES:
        free = QUICK_BYTES
        most = torch.cuda.memory_reserved(bench.device) + QUICK_BYTES
        torch.cuda.set_per_process_memory_fraction(most / total, bench.device)
    predicted = int(free / per_token)

    def runs(tokens: int) -> bool:
        whole, rest = divmod(tokens, length)
        lengths = (length,) * whole + ((rest,) if rest else ())
        return _runs(rank_work, lengths)

    try:
        low, high = largest_that_runs(runs, predicted)
    finally:
        if limited:
            torch.cuda.set_per_process_memory_fraction(1.0, bench.device)
    notes.append(f"{predicted:,} tokens predicted, {low:,} run, {high:,} do not")
    group = "predicted tokens over the most that run"
    return Figure.near_one(group, "by bisection", predicted / max(low, 1), PREDICTION_ERROR)


def largest_that_runs(runs: Callable[[int], bool], predicted: int) -> tuple[int, int]:
    """Bisect around ``predicted``: the largest number that runs, and the smallest that does not.

    They are ``SEARCH_TO`` apart, relative; 0 if not even a token runs.
    """
    low, high = predicted, predicted
    while low > 0 and not runs(low):
        high, low = low, int(0.9 * low)
    if low == high:
        high = int(1.1 * low) + 1
        while runs(high):
            low, high = high, int(1.1 * high) + 1
    while high - low > max(1, SEARCH_TO * low):
        middle = (low + high) // 2
        if runs(middle):
            low = middle
        else:
            high = middle
    return low, high


def _runs(rank_work: RankWork, lengths: tuple[int, ...]) -> bool:
    """Run a micro-batch as training does: layers and end forward, then both backward."""
    try:
        _run(rank_work, lengths)
        torch.cuda.synchronize()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def _run(rank_work: RankWork, lengths: tuple[int, ...]) -> None:
    work = rank_work.of(Scheme(), lengths)
    assert work is not None
    hidden = work.layers.forward()
    work.alone.backward(work.alone.forward())
    work.layers.backward(hidden)


def _check_recovery(bench: Bench, again: Callable[[], Sample]) -> Figure:
    """Run out of memory, and then a micro-batch."""
    recognized = False
    try:
        torch.empty(TOO_MUCH, dtype=torch.uint8, device=bench.device)
    except RuntimeError as error:
        recognized = is_out_of_memory(error)
    runs = recognized and not again().oom
    return Figure(
        "micro-batches that run after running out of memory", "of 1", float(runs), least=1.0
    )
