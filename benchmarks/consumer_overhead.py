"""What agreeing on a step costs each rank: ``python -m benchmarks.consumer_overhead [RANKS]``.

Ranks are processes on this machine, joined by gloo over loopback. Each takes prepared steps from a
``PlanConsumer`` and rests between them, so that fetching ahead has time, as in training.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from seqplan.plans.format.plan_file import write_plans
from seqplan.plans.groups import process_groups
from seqplan.plans.plan import MicroBatch, Plan, PlannedPipeline, Provenance
from seqplan.plans.scheme import Scheme
from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.data.tokens import SeededTokens, load_share
from seqplan.runtime.sources.consumer import PlanConsumer
from seqplan.runtime.sources.fan_out import FanOutSource
from seqplan.runtime.sources.source import FileSource, PlanSource

RANKS = 4
STEPS = 100
WARM_UP = 10
REST_S = 0.03
SEQUENCES = 128
SEED = 0


def main() -> None:
    """Print the time of each way to get the plans."""
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else RANKS
    print(f"{ranks} ranks on {os.cpu_count()} CPUs, {STEPS} steps of {SEQUENCES} sequences")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plans.jsonl"
        with write_plans(path) as write:
            random = np.random.default_rng(SEED)
            for step in range(STEPS + WARM_UP):
                write(_plan(step, ranks, random))
        for kind in ("plan file", "fan-out"):
            times = _measured(kind, path, ranks)
            print(
                f"{kind}: {statistics.median(times):.2f} ms a step (median), "
                f"{np.percentile(times, 90):.2f} ms (p90)"
            )


def _plan(step: int, ranks: int, random: np.random.Generator) -> Plan:
    """A long sequence over all ranks, and micro-batches of eight others on one rank each."""
    lengths = tuple(int(length) for length in random.integers(16, 512, SEQUENCES))
    pipelines = [_pipeline(Scheme(ulysses=ranks), tuple(range(ranks)), [(0,)], lengths)]
    for rank in range(ranks):
        mine = range(1 + rank, SEQUENCES, ranks)
        batches = [tuple(mine[first : first + 8]) for first in range(0, len(mine), 8)]
        pipelines.append(_pipeline(Scheme(), (rank,), batches, lengths))
    longest = pipelines[0].predicted_ms + max(pipeline.predicted_ms for pipeline in pipelines[1:])
    return Plan(
        step=step,
        provenance=Provenance("benchmark", SEED, "sha256:none", None),
        world_size=ranks,
        ids=tuple(range(SEQUENCES * step, SEQUENCES * (step + 1))),
        lengths=lengths,
        tokens=sum(lengths),
        loss_tokens=sum(lengths) - len(lengths),
        pipelines=tuple(pipelines),
        idle_ranks=(),
        groups=process_groups(pipelines),
        predicted_ms=longest,
        lower_bound_ms=longest,
        gap=0.0,
        selection=(),
    )


def _pipeline(
    scheme: Scheme, ranks: tuple[int, ...], batches: list[tuple[int, ...]], lengths: tuple[int, ...]
) -> PlannedPipeline:
    planned = []
    for batch in batches:
        held = [lengths[position] for position in batch]
        planned.append(MicroBatch(batch, sum(held), scheme.pad_micro_batch(held), 1.0))
    return PlannedPipeline(scheme, ranks, tuple(planned), float(len(planned)))


def _measured(kind: str, path: Path, ranks: int) -> list[float]:
    """Milliseconds in ``next`` of every rank and step."""
    context = multiprocessing.get_context("spawn")
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )
    ends, processes = [], []
    for rank in range(ranks):
        here, there = context.Pipe()
        arguments = (there, kind, path, rank, ranks, store.port)
        process = context.Process(target=_rank, args=arguments, daemon=True)
        process.start()
        there.close()
        ends.append(here)
        processes.append(process)
    times = [value for end in ends for value in end.recv()]
    for process in processes:
        process.join()
    return times


def _rank(end: Connection, kind: str, path: Path, rank: int, ranks: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", port, is_master=False)  # type: ignore[attr-defined]
    limit = timedelta(seconds=120)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
    source: PlanSource = FileSource(path)
    if kind == "fan-out":
        source.close()
        source = FanOutSource(lambda: FileSource(path), store, rank, ranks)
    times = []
    group = dist.new_group(backend="gloo", timeout=limit)
    with PlanConsumer(
        source, rank=rank, world_size=ranks, prepare=_tokens, control_group=group
    ) as steps:
        dist.barrier()
        begun = time.perf_counter()
        for step in steps:
            times.append((time.perf_counter() - begun) * 1000)
            steps.acknowledge(step.view.step)
            time.sleep(REST_S)
            # The ranks of a real step end together: skew between them is not the consumer's.
            dist.barrier()
            begun = time.perf_counter()
    end.send(times[WARM_UP:])
    dist.barrier()
    dist.destroy_process_group()


def _tokens(view: RankView) -> int:
    data = SeededTokens(50_000, SEED)
    batches = [batch for pipeline in view.pipelines for batch in pipeline.micro_batches]
    return sum(len(load_share(data, batch).tokens) for batch in batches)


if __name__ == "__main__":
    main()
