"""One greedy placement: the native extension and the reference in Python."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from benchmarks.settings import CLUSTERS, PROFILE, Data, markdown
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.bounds.gpu_time import area_bound_ms, single_bound_ms
from seqplan.planner.placement.dispatch import TOLERANCE, dispatch
from seqplan.planner.placement.fill import VARIABLE, Filler, Filling, Shortfall, kernel_state
from seqplan.planner.placement.fleet import Fleet
from seqplan.plans.scheme import Scheme, Strategy

SIZES = (64, 1024, 8192)
"""GPUs; tokens of a step grow with them."""

PER_64 = {
    Scheme(tp=4, ulysses=8): 1,
    Scheme(tp=4, ulysses=4): 1,
    Scheme(tp=4, ulysses=2): 1,
    Scheme(tp=4): 2,
}
"""Pipelines on 64 GPUs, of a strategy like those that proposals hold."""

CONTEXT = 32768
REPEATS = 25
SEED = 3


def run(data: Sequence[Data]) -> None:
    """Print the time of a successful placement, and of one just below its capacity."""
    if kernel_state() != "compiled":
        print(f"one fill: left out, as the fill is {kernel_state()}\n")
        return
    models = {model.scheme: model for model in load_shipped(PROFILE).usable(64, CONTEXT)}
    rows = []
    for source in data:
        for gpus in SIZES:
            per_64 = gpus // 64
            strategy = Strategy.from_counts({scheme: n * per_64 for scheme, n in PER_64.items()})
            fleet = Fleet.from_strategy(strategy, models)
            sampler = Sampler(source.lengths, CLUSTERS[64] * per_64, CONTEXT, SEED)
            batch = next(iter(sampler.batches(1)))
            rows.append([source.name, f"{gpus:,}", f"{len(batch.lengths):,}", *_row(fleet, batch)])
    print(f"### One fill, fastest of {REPEATS} ({PROFILE}, {CONTEXT:,} tokens of context)\n")
    head = ["lengths", "GPUs", "sequences", "succeeds: Python", "compiled", "faster"]
    print(markdown([*head, "fails: Python", "compiled", "faster"], rows) + "\n")


def _row(fleet: Fleet, batch: Batch) -> list[str]:
    lower = max(single_bound_ms(fleet.classes, batch), area_bound_ms(fleet.classes, batch))
    best = dispatch(Filler(fleet, batch), lower)
    assert best is not None
    succeeds, fails = best.objective_ms, best.objective_ms * (1 - 4 * TOLERANCE)
    while isinstance(Filler(fleet, batch).fill(fails), Filling):
        fails *= 1 - 4 * TOLERANCE
    cells = []
    for target in (succeeds, fails):
        fillers = {fill: _filler(fleet, batch, fill) for fill in ("python", "")}
        times: dict[str, list[float]] = {fill: [] for fill in fillers}
        outcomes = {}
        for _ in range(REPEATS):
            for fill, filler in fillers.items():  # in turns: both meet the same machine
                start = time.perf_counter()
                outcomes[fill] = filler.fill(target)
                times[fill].append((time.perf_counter() - start) * 1000)
        assert _parts(outcomes["python"]) == _parts(outcomes[""])
        python, compiled = (min(times[fill]) for fill in fillers)
        cells += [f"{python:.2f} ms", f"{compiled:.3f} ms", f"{python / compiled:.0f}×"]
    return cells


def _filler(fleet: Fleet, batch: Batch, fill: str) -> Filler:
    """A filler by the reference (``python``) or by the kernel (empty)."""
    before = os.environ.get(VARIABLE, "")
    os.environ[VARIABLE] = fill
    try:
        return Filler(fleet, batch)
    finally:
        os.environ[VARIABLE] = before


def _parts(outcome: Filling | Shortfall) -> object:
    if isinstance(outcome, Shortfall):
        return outcome
    return outcome.bins, outcome.pipeline_ms
