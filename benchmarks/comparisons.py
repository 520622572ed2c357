"""Systems of ``seqplan compare``: published settings, clusters, contexts and loads of ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from statistics import fmean, mean, median
from typing import Any

from benchmarks.planning import time_wall
from benchmarks.settings import CODE, PROFILE, Data, published_schemes, published_sync, workload
from benchmarks.tables import Cells, Output, Table, write_csv
from seqplan import Batch, Infeasible, Profile, Workload
from seqplan.planner.bounds.gpu_time import single_bound_ms
from seqplan.planner.comparison.advice import ablation
from seqplan.planner.comparison.compare import Options, compare
from seqplan.planner.comparison.results import Comparison, System, mean_compute_ms
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.sync.times import NO_SYNC, GivenSyncTimes, SyncTimes

UNAWARE = ("static", "megatron", "hotspa")
"""Systems that are run once more without a sync; Hydraulis does not weigh it anyway."""


def compare_systems(
    data: Sequence[Data], gpus: int = 64, steps: int = 20, contexts: Sequence[int] = (32768, 16384)
) -> Output:
    """Compare every system, 32B on 64 GPUs, with and without the sync."""
    profile = published_schemes()
    sync = published_sync(profile, gpus)
    for source, context in product(data, contexts):
        where = workload(gpus, context)
        whole, whole_ms = time_wall(_compare, profile, where, source, steps, sync)
        free, free_ms = time_wall(
            _compare, profile, where, source, steps, _without(sync), Options(UNAWARE)
        )
        compute = "{} | {:,.0f} | {}"
        yield Table(
            "system | forward and backward (ms) | over ours that weigh nothing else"
            " | iteration (ms) | over ours that weigh the sync | imbalance | bubble",
            compute + " | {} | {} | {:.2f} | {:.3f}",
            [
                (
                    f"{free.ours.name}, by forward and backward alone",
                    mean_compute_ms(free.ours),
                    *("1.00", "—", "—"),
                    *_load(free.ours),
                ),
                *(_compare_sync(system, whole, free) for system in whole.systems),
            ],
            f"{source.name}, context {context:,}: simulated on profile {PROFILE}, {gpus} GPUs, "
            f"{steps} steps of {where.tokens:,} tokens ({(whole_ms + free_ms) / 1e3:.0f} s)",
        )
        stages = " → ".join(f"{s.name} {gain:.2f}×" for s, gain in ablation(whole.systems))
        yield f"{sync.source}\n\nstep by step, whole iterations: {stages}"


def compare_published_clusters(
    data: Sequence[Data],
    settings: Sequence[tuple[str, int]] = (
        *(("7b", 8), ("7b", 16), ("13b", 16), ("13b", 32), ("32b", 32), ("32b", 64)),
    ),
    tokens: int = 100_000,
    steps: int = 20,
) -> Output:
    """Compare models and clusters of the published comparison with its static configurations.

    Hydraulis (arXiv 2412.07894) section 8 and Table 3: LLaMA 7B, 13B and 32B, 100,000 tokens a
    step, sequences up to 16K and 32K. Published: 1.32 to 2.66 times as fast as the baselines.
    """
    for source in data:
        table = Table(
            "setting | Megatron-like, varlen | dense | balanced | HotSPa-like | best static"
            " | imbalance ours / Megatron-like",
            "{} | {} | {} | {} | {} | {} | {:.2f} / {:.2f}",
            title=f"{source.name}: {steps} steps of {tokens:,} tokens (Table 3's configurations)",
        )
        notes = []
        for (model, gpus), context in product(settings, (16384, 32768)):
            profile = published_schemes(f"llama-{model}-a800-80gb")
            sync = published_sync(profile, gpus)
            place = f"{model.upper()}, {gpus} GPUs, {context // 1024}K"
            where = Workload(gpus, context, tokens)
            try:
                free, whole = (
                    _compare(profile, where, source, steps, times, Options(UNAWARE))
                    for times in (_without(sync), sync)
                )
            except Infeasible as error:
                notes.append(f"{place}: {error}")
                continue
            table.add(place, *_list_ratios(free, whole))
            for system in whole.systems:
                if system.key in UNAWARE:
                    about = system.description.partition(";")[0]
                    notes.append(f"{place}: {system.name}: {about}")
        yield table
        yield "Their time over ours: forward and backward alone / whole iteration."
        yield "\n".join(notes)


def compare_large(data: Sequence[Data], gpus: int = 1024, steps: int = 10) -> Output:
    """Compare systems on 1,024 GPUs; the published packing alone would take hours."""
    profile = published_schemes()
    where, sync = workload(gpus), published_sync(profile, gpus)
    options = Options((*UNAWARE, "hydraulis"), fast=True)
    for source in data:
        comparison, ms = time_wall(_compare, profile, where, source, steps, sync, options)
        ours = comparison.ours
        planning = median(step.planning_ms or 0.0 for step in ours.iterations)
        yield Table(
            "system | forward and backward (ms) | over ours | iteration, over ours",
            "{} | {:,.0f} | {:.2f} | {:.2f}",
            [
                (
                    system.name,
                    mean_compute_ms(system),
                    mean_compute_ms(system) / mean_compute_ms(ours),
                    system.mean_ms / ours.mean_ms,
                )
                for system in comparison.systems
            ],
            f"{source.name}: {gpus:,} GPUs, {steps} steps of {where.tokens:,} tokens: "
            f"compared in {ms / 1e3:.0f} s, our planning {planning:.0f} ms a step",
        )


def measure_imbalance(
    data: Sequence[Data], gpus: int = 64, steps: int = 20, contexts: Sequence[int] = (32768, 16384)
) -> Output:
    """Measure how evenly ranks are loaded, ours and Megatron-like.

    Published (Hydraulis, arXiv 2412.07894, section 8): 0.36 to 0.65 for Megatron, 0.02 to 0.10 for
    Hydraulis. A step is bound by its longest sequence if that alone takes 99 % of it.
    """
    profile = published_schemes()
    table = Table(
        "lengths | context | ours | bound by their longest sequence | there | elsewhere"
        " | Megatron-like, varlen",
        "{} | {:,} | {} | {} of {} | {} | {} | {}",
        title=f"Imbalance of the ranks: {PROFILE}, {gpus} GPUs, no sync weighed",
    )
    for source, context in product(data, contexts):
        where = workload(gpus, context)
        comparison = _compare(profile, where, source, steps, NO_SYNC, Options(("megatron",)))
        classes = [PipelineClass.from_model(model, 1) for model in where.models(profile).values()]
        bound: list[float] = []
        others: list[float] = []
        for step in comparison.ours.iterations:
            least = single_bound_ms(classes, Batch.from_lengths([step.longest]))
            (bound if least >= 0.99 * step.compute_ms else others).append(step.imbalance)
        theirs = [step.imbalance for step in comparison.systems[1].iterations]
        ours, *parts = (_summarize(v) for v in ([*bound, *others], bound, others, theirs))
        table.add(source.name, context, ours, len(bound), steps, *parts)
    yield table
    yield "Median / mean / largest over the steps, (slowest − fastest) over the fastest rank."


SWEPT = {
    "static": "best static strategy, balanced",
    "megatron-packing": "Megatron dynamic CP, packing-aware",
    "megatron": "Megatron-like, varlen windows",
}
"""Key of a system in a sweep → its name in the table."""


def sweep_contexts(
    data: Sequence[Data],
    tokens: Sequence[int] = (200_000, 800_000),
    contexts: Sequence[int] = (8_192, 16_384, 32_768, 65_536, 131_072),
) -> Output:
    """Compare whole iterations over the context, on the lengths that ship.

    ``seqplan compare --sweep`` for two numbers of tokens. ``docs/data/contexts.csv`` holds the
    results, of which the site draws a chart.
    """
    points = [(total, point) for total in tokens for point in compare_contexts(total, contexts)]
    head = ["tokens", "context", "system", "iteration_ms", "over_ours"]
    write_csv("contexts.csv", head, _list_swept(points))
    yield Table(
        f"tokens a step, context | ours | {' | '.join(SWEPT.values())}",
        "{:,}, {}K | {:.2f} s | {:.2f} | {:.2f} | {:.2f}",
        [
            (
                *(total, point["value"] // 1024, systems["ours"]["mean_ms"] / 1000),
                *(systems[key]["speedup"] for key in SWEPT),
            )
            for total, point in points
            if (systems := list_systems(point))
        ],
        f"Over the context: {PROFILE}, 64 GPUs, code, 16 steps",
    )


def compare_contexts(tokens: int, contexts: Sequence[int]) -> list[dict[str, Any]]:
    """Return the point of each context, as ``seqplan compare --json`` has it."""
    command = ["compare", str(CODE), "--profile", PROFILE, "--gpus", "64", "--max-len"]
    command += [str(contexts[0]), "--tokens", str(tokens), "--json"]
    command += ["--systems", "static,megatron,megatron-dcp"]
    command += ["--sweep", f"max-len={','.join(map(str, contexts))}"]
    completed = subprocess.run(
        [sys.executable, "-m", "seqplan.api.cli", *command],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    (sweep,) = json.loads(completed.stdout)["sweeps"]
    points: list[dict[str, Any]] = sweep["points"]
    return points


def list_systems(point: dict[str, Any]) -> dict[str, Any]:
    """Return the systems of a point by their keys."""
    return {system["key"]: system for system in point["systems"]}


def _list_swept(points: Sequence[tuple[int, dict[str, Any]]]) -> Iterator[Cells]:
    for tokens, point in points:
        systems = list_systems(point)
        for key in ("ours", *SWEPT):
            yield tokens, point["value"], key, systems[key]["mean_ms"], systems[key]["speedup"]


def _compare(
    profile: Profile,
    where: Workload,
    source: Data,
    steps: int,
    sync: SyncTimes,
    options: Options | None = None,
) -> Comparison:
    options = options or Options()
    return compare(profile, where, source.lengths, steps, sync, seed=0, options=options)


def _without(sync: SyncTimes) -> SyncTimes:
    return GivenSyncTimes(0.0, sync.optimizer_ms, "no sync", 0.0, 0.0)


def _compare_sync(system: System, whole: Comparison, free: Comparison) -> Cells:
    """Propagation over plans that minimize it, iterations over plans that minimize those."""
    alone = next((s for s in free.systems if s.key == system.key), system)
    selects = system.key in ("ours", "hydraulis-balanced")
    ratios = whole.speedups(system)
    ratio = system.mean_ms / whole.ours.mean_ms
    return (
        system.name,
        mean_compute_ms(system if selects else alone),
        "—" if selects else f"{mean_compute_ms(alone) / mean_compute_ms(free.ours):.2f}",
        f"{system.mean_ms:,.0f}",
        f"{ratio:.2f} ({min(ratios):.2f}–{max(ratios):.2f})",
        *_load(system),
    )


def _load(system: System) -> tuple[float, float]:
    """Return the mean imbalance and bubble."""
    steps = system.iterations
    return fmean(step.imbalance for step in steps), fmean(step.bubble_ratio for step in steps)


def _list_ratios(free: Comparison, whole: Comparison) -> Cells:
    cells: list[object] = []
    for key in ("megatron", "megatron-dense", "megatron-balanced", "hotspa", "static"):
        pairs = [next((s for s in c.systems if s.key == key), None) for c in (free, whole)]
        alone, both = pairs
        if alone is None or both is None:
            cells.append("—")
            continue
        compute = mean_compute_ms(alone) / mean_compute_ms(free.ours)
        cells.append(f"{compute:.2f} / {both.mean_ms / whole.ours.mean_ms:.2f}")
    loads = {system.key: _load(system)[0] for system in free.systems}
    return [*cells, loads["ours"], loads["megatron"]]


def _summarize(values: Sequence[float]) -> str:
    if not values:
        return "—"
    return f"{median(values):.3f} / {mean(values):.3f} / {max(values):.3f}"
