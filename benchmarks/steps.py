"""One step in one process: planning time, gap, exact answers, placements and files entered."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from types import FrameType

import numpy as np

from benchmarks.planning import PlannedSteps, count_sequences, draw_batches, plan_steps, time_wall
from benchmarks.settings import CLUSTERS, PROFILE, Data, published_schemes, workload
from benchmarks.tables import Cells, Output, Table, write_csv
from seqplan import Batch, Planner, Scheme, StepPlanner, Strategy, Workload, make_proposal
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.bounds.gpu_time import area_bound_ms, single_bound_ms
from seqplan.planner.exact.close_gap import EXACT_GAP
from seqplan.planner.placement.dispatch import TOLERANCE, dispatch
from seqplan.planner.placement.fill import VARIABLE, Filler, Filling, Shortfall, kernel_state
from seqplan.planner.placement.fleet import Fleet
from seqplan.planner.problem import PlanningOptions
from seqplan.plans import scheme

CONTEXTS = (32768, 16384)

PUBLISHED_S = {64: (5.46 + 10.15) / 10, 1024: (38.56 + 13.46) / 10}
"""Hydraulis table 2: greedy dispatch and packing of ten iterations, ten processes, CommonCrawl."""

SEED = 3
"""Not the proposal's: its batches are others."""


def plan_one_step(
    data: Sequence[Data], steps: int = 60, contexts: Sequence[int] = CONTEXTS
) -> Output:
    """Time planning and state gaps over steps that the proposal has not seen."""
    table = Table(
        "lengths | context | GPUs | mean step | planning median | p90 | gap median | p90 | largest"
        " | published planning",
        "{} | {:,} | {:,} | {:,.0f} ms | {:.1f} ms | {:.1f} ms | {:.2%} | {:.2%} | {:.2%}"
        " | {:.2f} s",
        title=f"One step in one process, {steps} steps ({PROFILE})",
    )
    for source, context, gpus in product(data, contexts, CLUSTERS):
        where = workload(gpus, context)
        proposal = make_proposal(published_schemes(), where, source.lengths, sync=None)
        batches = draw_batches(source, where, steps, SEED)
        planned = plan_steps(StepPlanner(proposal).plan, batches, timed=time_wall)
        times, gaps = (np.quantile(v, (0.5, 0.9)) for v in (planned.planning_ms, planned.gaps))
        cells = planned.compute_ms, *times, *gaps, max(planned.gaps), PUBLISHED_S[gpus]
        table.add(source.name, context, gpus, *cells)
    yield table


def close_gaps(
    data: Sequence[Data], gpus: int = 64, steps: int = 60, contexts: Sequence[int] = CONTEXTS
) -> Output:
    """Close the gaps above ``EXACT_GAP`` of the same steps by constraint programming."""
    table = Table(
        "lengths | context | step | strategy | gap before | after | step shorter by | planning",
        "{} | {:,} | {} | {} | {:.2%} | {:.2%} | {:.2%} | {:.1f} s",
        title=f"Exact answers, {steps} steps, {gpus} GPUs ({PROFILE})",
    )
    gaps = []
    for source, context in product(data, contexts):
        where = workload(gpus, context)
        proposal = make_proposal(published_schemes(), where, source.lengths, sync=None)
        planner, exact = StepPlanner(proposal), StepPlanner(proposal, PlanningOptions(exact=True))
        for batch in draw_batches(source, where, steps, SEED):
            before = planner.plan(batch)
            if before.gap <= EXACT_GAP:
                continue
            after, ms = time_wall(exact.plan, batch)
            gaps.append(after.gap)
            shorter = 1 - after.predicted_ms / before.predicted_ms
            cells = batch.step, str(before.strategy), before.gap, after.gap, shorter, ms / 1e3
            table.add(source.name, context, *cells)
    yield table
    closed = sum(round(gap, 4) <= EXACT_GAP for gap in gaps)
    yield f"{closed} of {len(gaps)} steps end at or below {EXACT_GAP:.0%}"


def plan_in_process(
    data: Sequence[Data],
    settings: Sequence[tuple[int, int, int]] = (
        *((64, 200_000, 20), (1024, 3_200_000, 6), (8192, 25_600_000, 3)),
    ),
    context: int = 32_768,
) -> Output:
    """Plan steps inside a program, from a profile alone: CPU time and gap, with proof or not.

    ``settings``: GPUs, tokens of a step, steps. The layout is left to the planner.
    """
    table = Table(
        "lengths, GPUs | sequences | with proof: CPU | gap | without: CPU | gap"
        " | time without over with proof",
        "{}, {:,} | {:,.0f} | {:.0f} ms | {:.2%} | {:.0f} ms | {:.2%} | {:.4f}",
        title=f"Planned in process, {PROFILE}, 32K, no proposal",
    )
    for source, (gpus, tokens, steps) in product(data, settings):
        batches = draw_batches(source, Workload(gpus, context, tokens), steps)
        proven, quick = (_plan_in_process(gpus, context, batches, prove) for prove in (True, False))
        ratio = quick.iterations_ms.sum() / proven.iterations_ms.sum()
        medians = [median(v) for p in (proven, quick) for v in (p.planning_ms, p.gaps)]
        table.add(source.name, gpus, count_sequences(batches), *medians, ratio)
    yield table


def scale_planning(
    data: Sequence[Data],
    numbers: Sequence[int] = (64, 256, 1_024, 4_096, 8_192),
    tokens_per_gpu: int = 3_125,
    steps: int = 5,
) -> Output:
    """Plan steps of the code lengths inside a program over the number of GPUs.

    ``docs/data/scaling.csv`` holds the results, of which the site draws a chart.
    """
    (code,) = (source for source in data if source.name == "code")
    rows = []
    for gpus in numbers:
        batches = draw_batches(code, Workload(gpus, 32_768, tokens_per_gpu * gpus), steps)
        planned = _plan_in_process(gpus, 32_768, batches)
        figures = median(planned.planning_ms), median(planned.gaps)
        rows.append((gpus, int(count_sequences(batches)), *figures))
    written = ((gpus, count, f"{ms:.1f}", f"{gap:.5f}") for gpus, count, ms, gap in rows)
    write_csv("scaling.csv", ("gpus", "sequences", "cpu_ms", "gap"), written)
    title = f"Planning a step over the GPUs: {PROFILE}, code, 32K"
    head = "GPUs | sequences | planning, CPU | gap"
    yield Table(head, "{:,} | {:,} | {:.0f} ms | {:.2%}", rows, title)


def _plan_in_process(
    gpus: int, context: int, batches: Sequence[Batch], prove: bool = True
) -> PlannedSteps:
    planner = Planner.from_profile(PROFILE, gpus, context, prove=prove)
    planner.plan(batches[0].lengths)
    return plan_steps(lambda batch: planner.plan(batch.lengths), batches, repeats=3)


PER_64 = {
    Scheme(tp=4, ulysses=8): 1,
    Scheme(tp=4, ulysses=4): 1,
    Scheme(tp=4, ulysses=2): 1,
    Scheme(tp=4): 2,
}
"""Pipelines on 64 GPUs, of a strategy like those that proposals hold."""


def compare_fills(
    data: Sequence[Data], sizes: Sequence[int] = (64, 1024, 8192), repeats: int = 25
) -> Output:
    """Time one greedy placement by the native extension and by the reference in Python.

    A successful one, and one just below its capacity; tokens of a step grow with the GPUs.
    """
    if kernel_state() != "compiled":
        yield f"one fill: left out, as the fill is {kernel_state()}"
        return
    models = {model.scheme: model for model in load_shipped(PROFILE).usable(64, 32768)}
    timed = "{:.2f} ms | {:.3f} ms | {:.0f}×"
    table = Table(
        "lengths | GPUs | sequences | succeeds: Python | compiled | faster"
        " | fails: Python | compiled | faster",
        " | ".join(["{} | {:,} | {:,}", timed, timed]),
        title=f"One fill, fastest of {repeats} ({PROFILE}, 32,768 tokens of context)",
    )
    for source, gpus in product(data, sizes):
        counts = {scheme: number * (gpus // 64) for scheme, number in PER_64.items()}
        fleet = Fleet.from_strategy(Strategy.from_counts(counts), models)
        where = Workload(gpus, 32768, CLUSTERS[64] * (gpus // 64))
        (batch,) = draw_batches(source, where, 1, SEED)
        cells = [
            c
            for target in _find_targets(fleet, batch)
            for c in _time_fills(fleet, batch, target, repeats)
        ]
        table.add(source.name, gpus, len(batch.lengths), *cells)
    yield table


def _find_targets(fleet: Fleet, batch: Batch) -> tuple[float, float]:
    """Find a time by which a fill succeeds, and one just below by which it fails (ms)."""
    lower = max(single_bound_ms(fleet.classes, batch), area_bound_ms(fleet.classes, batch))
    best = dispatch(Filler(fleet, batch), lower)
    assert best is not None
    fails = best.objective_ms * (1 - 4 * TOLERANCE)
    while isinstance(Filler(fleet, batch).fill(fails), Filling):
        fails *= 1 - 4 * TOLERANCE
    return best.objective_ms, fails


def _time_fills(fleet: Fleet, batch: Batch, target: float, repeats: int) -> Cells:
    """Time the reference and the extension in turn: both meet the same machine (ms)."""
    with _fill_by("python"):
        python = Filler(fleet, batch)
    with _fill_by(""):
        compiled = Filler(fleet, batch)
    pairs = [[time_wall(f.fill, target) for f in (python, compiled)] for _ in range(repeats)]
    (slow, _), (fast, _) = pairs[-1]
    assert _list_parts(slow) == _list_parts(fast)
    python_ms, compiled_ms = (min(ms for _, ms in timed) for timed in zip(*pairs, strict=True))
    return python_ms, compiled_ms, python_ms / compiled_ms


@contextmanager
def _fill_by(implementation: str) -> Iterator[None]:
    """Fill by the reference (``python``) or by the extension (empty)."""
    before = os.environ.get(VARIABLE, "")
    os.environ[VARIABLE] = implementation
    try:
        yield
    finally:
        os.environ[VARIABLE] = before


def _list_parts(outcome: Filling | Shortfall) -> object:
    return outcome if isinstance(outcome, Shortfall) else (outcome.bins, outcome.pipeline_ms)


SOURCES = Path(scheme.__file__).resolve().parents[1]


@dataclass
class CallPath:
    """Calls by file of this project, and changes of file between them."""

    calls: Counter[str] = field(default_factory=Counter)
    changes: int = 0
    last: str = ""
    names: dict[str, str] = field(default_factory=dict)

    def record(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call if it is of this project: an argument of ``sys.setprofile``."""
        name = self._name(frame.f_code.co_filename) if event == "call" else ""
        if name:
            self.calls[name] += 1
            self.changes += name != self.last
            self.last = name

    def _name(self, path: str) -> str:
        if path not in self.names:
            real = Path(path).resolve()
            ours = not path.startswith("<") and real.is_relative_to(SOURCES)
            inside = ours and ".venv" not in real.parts
            self.names[path] = str(real.relative_to(SOURCES)) if inside else ""
        return self.names[path]


def count_files(data: Sequence[Data], gpus: int = 64, context: int = 32_768) -> Output:
    """Count files that a default plan runs through, changes of file, and calls by folder.

    A reader who follows a plan opens these files. Without the native extension every call is a
    Python call, which the interpreter's profile events count.
    """
    table = Table(
        "lengths | files | changes of file | calls | calls by folder",
        "{} | {:,} | {:,} | {:,} | {}",
    )
    for source in data:
        (batch,) = draw_batches(source, Workload(gpus, context, CLUSTERS[64]), 1)
        path = CallPath()
        with _fill_by("python"):
            planner = Planner.from_profile(PROFILE, gpus, context)
            planner.plan(batch.lengths)
            sys.setprofile(path.record)
            try:
                planner.plan(batch.lengths)
            finally:
                sys.setprofile(None)
        folders: Counter[str] = Counter()
        for name, calls in path.calls.items():
            folders[str(Path(name).parent)] += calls
        shares = ", ".join(f"{folder} {calls:,}" for folder, calls in folders.most_common())
        table.add(source.name, len(path.calls), path.changes, path.calls.total(), shares)
    yield table
