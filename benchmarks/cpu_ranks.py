"""CPU-seconds and memory of the runtime on CPU ranks that meet over gloo.

Schemes of a step, gradients that leave after each micro-batch, the consumer of plans, a slow rank.
"""

from __future__ import annotations

import gc
import importlib
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.ranks import on_ranks, plan_evenly, sum_ranks, time_together
from benchmarks.settings import Data, Lengths
from benchmarks.tables import Output, Table
from seqplan import Cost, Plan, RankView, Scheme, SlowRanks, balance, construct_plan, rank_view
from seqplan.plans.format.plan_file import write_plans
from seqplan.plans.groups import process_groups
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.tokens import SeededTokens, load_share
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.pipeline.staged_llama import StagedLlama
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.sources.consumer import PlanConsumer
from seqplan.runtime.sources.fan_out import FanOutSource
from seqplan.runtime.sources.source import FileSource, PlanSource
from seqplan.runtime.states.gradient_reduction import Reduce
from seqplan.runtime.states.held_bytes import count_held_bytes
from seqplan.runtime.states.sharded_states import ShardedStates
from seqplan.runtime.training.prepare import make_preparer
from seqplan.runtime.training.run_step import run_step

SCHEMES = {
    2: ("tp1", "u2", "r2", "tp2", "pp2"),
    4: ("tp1", "u4", "r4", "tp4", "pp4", "tp2.pp2", "tp2.u2"),
}
"""By the number of ranks."""

PRELOAD = ("torch._dynamo", "benchmarks.cpu_ranks")
"""Modules that ranks need, which take seconds to import."""

Times = dict[str, list[tuple[float, float]]]
"""By scheme, CPU-seconds of a rank's steps, and those of communication threads."""


def compare_schemes(
    data: Sequence[Data],
    schemes: dict[int, tuple[str, ...]] = SCHEMES,
    hidden: Sequence[int] = (256, 768),
    sequences: int = 8,
) -> Output:
    """Time a training step under each kind of parallelism, all ranks together.

    The same sequences and model under every scheme, as many pipelines of it as fit. The CPU time of
    all processes, with the sync of parameters and gradients, shows the scheme's cost compared with
    tp = pp = 1. Schemes take turns, and the least of several steps counts: whatever else runs on
    the machine adds to a step and takes nothing from it. Communication grows with the width,
    computation with its square. Sequences are drawn from the first of ``data``, cut to 200.
    """
    lengths = data[0].draw(0, sequences).clip(1, 200).tolist()
    for width in hidden:
        table = Table(
            "ranks | pipelines of | CPU-seconds | of gloo's threads | ÷ tp1",
            "{} | {} | {:.2f} | {:.2f} | {:.2f}",
            title=f"A step of {len(lengths)} sequences, {sum(lengths):,} tokens: "
            f"Llama of 4 layers, hidden {width}, float32",
        )
        for ranks, names in schemes.items():
            by_rank = on_ranks(ranks, _time_schemes, (ranks, names, lengths, width), PRELOAD)
            first = 0.0
            for name in names:
                steps = zip(*(times[name] for times in by_rank), strict=True)
                whole, transport = min(tuple(map(sum, zip(*step, strict=True))) for step in steps)
                first = first or whole
                table.add(ranks, name, whole, transport, whole / first)
        yield table


def _time_schemes(
    rank: int, ranks: int, names: Sequence[str], lengths: list[int], width: int
) -> Times:
    """Time three steps of each scheme after a first, in turn with the others'."""
    config = ModelConfig(
        hidden=width, layers=4, heads=8, kv_heads=4, ffn=width * 11 // 4, vocab=1024
    )
    torch.manual_seed(0)
    schemes = {name: Scheme.parse(name) for name in names}
    degrees = sorted({scheme.tp for scheme in schemes.values()} - {1})
    job = StagedLlama(Llama(config), Communicators.create(), tensor_degrees=degrees)
    optimizer = torch.optim.AdamW([master for _, master in job.states.master_parameters()])
    prepare = job.make_preparer(SeededTokens(config.vocab, 0))
    times: Times = {name: [] for name in names}
    for _ in range(1 + 3):
        for name, scheme in schemes.items():
            view = rank_view(plan_evenly(scheme, lengths, ranks, per_batch=2), rank)
            work = prepare(view)
            dist.barrier()
            whole, thread = time.process_time(), time.thread_time()
            job.run_step(view, work, optimizer)
            whole, thread = time.process_time() - whole, time.thread_time() - thread
            times[name].append((whole, whole - thread))
    return {name: steps[1:] for name, steps in times.items()}


REDUCED = ModelConfig(hidden=512, layers=8, heads=8, kv_heads=4, ffn=1536, vocab=256)
RANKS = 4


def compare_reduction(
    data: Sequence[Data], config: ModelConfig = REDUCED, numbers: Sequence[int] = (1, 4)
) -> Output:
    """Compare gradients summed once a step with ones that leave after each micro-batch.

    Four CPU ranks train a Llama of 24 million fp32 parameters on documents of 64 tokens, each rank
    a pipeline with as many micro-batches as the others: bytes counted before the first step, the
    most memory that a rank's process has had by the end over what it had before its states were
    made, and CPU-seconds of a step.
    """
    table = Table(
        "micro-batches of a rank | reduced | MiB counted | of gradients | MiB taken"
        " | CPU-seconds a step",
        "{} | {} | {:.0f} | {:.0f} | {:.0f} | {:.2f}",
    )
    ways: tuple[Reduce, ...] = ("step", "micro-batch")
    for number, reduce in product(numbers, ways):
        by_rank = on_ranks(RANKS, _reduce, (reduce, number, config))
        *sizes, times = zip(*by_rank, strict=True)
        table.add(number, reduce, *(max(size) / 2**20 for size in sizes), sum_ranks(times))
    yield table


def _reduce(
    rank: int, reduce: Reduce, number: int, config: ModelConfig
) -> tuple[float, float, float, list[float]]:
    """Train four steps; counted bytes, of these gradients, bytes taken, and CPU-seconds."""
    groups = Communicators.create()
    model = Llama(config)
    importlib.import_module("torch._dynamo")  # as the optimizer does when it is made
    gc.collect()
    before = _read_memory("VmRSS")
    states = ShardedStates(model, groups.states, reduce=reduce)
    counted = count_held_bytes(states.units)
    optimizer = torch.optim.AdamW([master for _, master in states.master_parameters()])
    prepare = make_preparer(
        SeededTokens(config.vocab, 0),
        Peers(groups.attention),
        heads=config.heads,
        kv_heads=config.kv_heads,
    )
    view = rank_view(plan_evenly(Scheme(), [64] * (RANKS * number), RANKS, per_batch=1), rank)
    times = [
        time_together(lambda: run_step(view, prepare(view), model, states, optimizer))
        for _ in range(4)
    ]
    # The module's parameters were there before, and are counted.
    memory = _read_memory("VmHWM") - before + sum(p.nbytes for p in model.parameters())
    return counted.total, counted.gradients, memory, times[1:]


def _read_memory(field: str) -> int:
    """Read a size of this process from the kernel, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {field}")


WARM_UP, REST_S, SEQUENCES = 10, 0.03, 128
"""Steps of a consumer that do not count, seconds between two, sequences of each."""


def time_consumer(data: Sequence[Data], ranks: int = RANKS, steps: int = 100) -> Output:
    """Time the agreement on a step: each rank takes prepared steps from a ``PlanConsumer``.

    Ranks rest between steps, so that fetching ahead has time, as in training.
    """
    table = Table("plans from | ms a step, median | p90", "{} | {:.2f} | {:.2f}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plans.jsonl"
        with write_plans(path) as write:
            random = np.random.default_rng(0)
            for step in range(steps + WARM_UP):
                write(_plan_mixed(step, ranks, random))
        for kind in ("plan file", "fan-out"):
            times = np.concatenate(on_ranks(ranks, _consume, (kind, path, ranks), PRELOAD))
            table.add(kind, *np.quantile(times, (0.5, 0.9)))
    table.title = f"Agreement of {ranks} ranks on {steps} steps of {SEQUENCES} sequences"
    yield table


def _plan_mixed(step: int, ranks: int, random: np.random.Generator) -> Plan:
    """Plan a long sequence over all ranks, and micro-batches of eight others on one rank each."""
    lengths = random.integers(16, 512, SEQUENCES).tolist()
    alone = []
    for rank in range(ranks):
        mine = list(range(1 + rank, SEQUENCES, ranks))
        alone.append([mine[first : first + 8] for first in range(0, len(mine), 8)])
    ids = range(SEQUENCES * step, SEQUENCES * (step + 1))
    plan = construct_plan(lengths, {f"u{ranks}": [[[0]]], "u1": alone}, ids=ids, step=step)
    together, *others = plan.pipelines
    others = [replace(pipeline, ranks=(rank,)) for rank, pipeline in enumerate(others)]
    pipelines = (together, *others)
    groups = process_groups(pipelines)
    return replace(plan, world_size=ranks, pipelines=pipelines, groups=groups)


def _consume(rank: int, kind: str, path: Path, ranks: int) -> list[float]:
    """Return milliseconds in ``next`` of every step."""
    limit = timedelta(seconds=120)
    group = dist.new_group(backend="gloo", timeout=limit)
    source: PlanSource = FileSource(path)
    if kind == "fan-out":
        source.close()
        store = dist.distributed_c10d._get_default_store()
        source = FanOutSource(lambda: FileSource(path), store, rank, ranks)
    times = []
    with PlanConsumer(
        source, rank=rank, world_size=ranks, prepare=_count_tokens, control_group=group
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
    return times[WARM_UP:]


def _count_tokens(view: RankView) -> int:
    data = SeededTokens(50_000, 0)
    batches = [batch for pipeline in view.pipelines for batch in pipeline.micro_batches]
    return sum(len(load_share(data, batch).tokens) for batch in batches)


SLOW, FACTOR = 2, 1.5
DOCUMENTS, MEDIAN, LONGEST, CAPACITY = 64, 60, 512, 1024
VOCABULARY, HIDDEN = 64, 256


@dataclass
class Ran:
    """Steps of one rank: CPU-seconds, losses of all ranks, and the factors at the end."""

    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    slowdown: tuple[float | None, ...] = ()


def slow_one_rank(data: Sequence[Data], steps: int = 80, compared: int = 16) -> Output:
    """Slow one of four ranks by 1.5, and plan with and without its factor.

    Every rank trains the same small model on its part of each step; the slow one computes half of
    each micro-batch once more, for nothing. ``seqplan.SlowRanks`` computes its factor from the
    ranks' times, which takes 64 steps. A step takes as long as its slowest rank, in CPU-seconds, as
    ranks share cores here.
    """
    blind, aware = (on_ranks(RANKS, _train, (steps, aware), PRELOAD) for aware in (False, True))
    table = Table(
        "planned | slowest rank of a step | ranks, CPU-seconds",
        "{} | {:.3f} s | {}",
        title=f"One rank of {RANKS} that takes {FACTOR} times as long",
    )
    slowest = []
    for name, ranks in (("without its factor", blind), ("with its factor", aware)):
        last = [of_rank.seconds[-compared:] for of_rank in ranks]
        slowest.append(median(map(max, zip(*last, strict=True))))
        table.add(name, slowest[-1], ", ".join(f"{median(times):.3f}" for times in last))
    yield table
    ideal = FACTOR * (RANKS - 1 + 1 / FACTOR) / RANKS
    apart = max(abs(a - b) for a, b in zip(blind[0].losses, aware[0].losses, strict=True))
    yield (
        f"faster by {slowest[0] / slowest[1]:.2f} (to reach: 1.2, at most {ideal:.2f}); "
        f"factors found: {aware[0].slowdown}\n"
        f"losses differ by {apart:.1e} at most in {steps} steps"
    )


def _train(rank: int, steps: int, aware: bool) -> Ran:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, HIDDEN),
        torch.nn.Linear(HIDDEN, 4 * HIDDEN),
        torch.nn.GELU(),
        torch.nn.Linear(4 * HIDDEN, VOCABULARY),
    ).double()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    found, ran, cost = SlowRanks(RANKS), Ran(), Cost(0.0, 1.0, 10.0)
    for step in range(steps):
        rng = np.random.default_rng(step)
        lengths = rng.lognormal(np.log(MEDIAN), 1.0, DOCUMENTS).astype(int).clip(4, LONGEST)
        slowdown = found.slowdown if aware else None
        balanced = balance(lengths, RANKS, CAPACITY, cost, execution="uniform", slowdown=slowdown)
        began = time.thread_time()
        loss = torch.zeros((), dtype=torch.float64)
        gradients = [torch.zeros_like(p) for p in parameters]
        for micro in filter(None, balanced.micro_batches[rank]):
            tokens, labels = _draw_tokens(lengths, micro, step)
            if rank == SLOW:  # as much again as half of the micro-batch, for nothing
                half = len(tokens) // 2
                torch.autograd.grad(_sum_losses(model, tokens[:half], labels[:half]), parameters)
            part = _sum_losses(model, tokens, labels) / int(lengths.sum())
            loss += part.detach()
            torch._foreach_add_(gradients, torch.autograd.grad(part, parameters))
        seconds = time.thread_time() - began
        for parameter, gradient in zip(parameters, gradients, strict=True):
            dist.all_reduce(gradient)
            parameter.grad = gradient
        dist.all_reduce(loss)
        optimizer.step()
        times: list[float | None] = [None] * RANKS
        dist.all_gather_object(times, seconds * 1e3)
        found.observe(balanced.rank_ms, times)
        ran.seconds.append(seconds)
        ran.losses.append(float(loss))
    ran.slowdown = found.slowdown
    return ran


def _draw_tokens(
    lengths: Lengths, micro: Sequence[int], step: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the tokens and labels of a micro-batch, which follow from step and place."""
    drawn = []
    for place in micro:
        generator = torch.Generator().manual_seed(1000 * step + place)
        drawn.append(torch.randint(VOCABULARY, (2, int(lengths[place])), generator=generator))
    tokens, labels = torch.cat(drawn, dim=1)
    return tokens, labels


def _sum_losses(model: torch.nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(tokens), labels, reduction="sum")
