"""What gradients cost that leave after each micro-batch: memory of a rank, CPU-seconds of all.

Four CPU ranks train a Llama of 24 million fp32 parameters on short documents, each rank a pipeline
with as many micro-batches as the others: bytes counted before the first step, the
most memory that a rank's process has had by the end over what it had before its states were made,
and CPU-seconds of a step, with gradients summed once a step and after each micro-batch.
"""

from __future__ import annotations

import gc
import importlib
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.ranks import on_ranks
from benchmarks.settings import Data, markdown
from seqplan.plans.groups import process_groups
from seqplan.plans.plan import MicroBatch, Plan, PlannedPipeline, Provenance
from seqplan.plans.scheme import Scheme
from seqplan.plans.views.rank_view import rank_view
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.states.gradient_reduction import Reduce
from seqplan.runtime.states.held_bytes import count_held_bytes
from seqplan.runtime.states.sharded_states import ShardedStates
from seqplan.runtime.training.prepare import make_preparer
from seqplan.runtime.training.run_step import run_step

RANKS, STEPS, TOKENS = 4, 4, 64
CONFIG = ModelConfig(hidden=512, layers=8, heads=8, kv_heads=4, ffn=1536, vocab=256)
MICRO_BATCHES = (1, 4)


class Measured(NamedTuple):
    """Of the ranks: counted bytes and gradients' part of them, bytes that a process took at most,
    and CPU-seconds of all in the median step after the first."""

    counted: int
    gradients: int
    taken: int
    seconds: float


def run(data: Sequence[Data]) -> None:
    """Print one table; no data set is used."""
    ways: list[tuple[Reduce, int]] = [
        (reduce, count) for count in MICRO_BATCHES for reduce in ("step", "micro-batch")
    ]
    rows = []
    for reduce, count in ways:
        measured = _on_ranks(reduce, count)
        sizes = (f"{size / 2**20:.0f}" for size in measured[:3])
        rows.append([str(count), reduce, *sizes, f"{measured.seconds:.2f}"])
    header = ["micro-batches of a rank", "reduced", "MiB counted", "of gradients", "MiB taken"]
    print(markdown([*header, "CPU-seconds a step"], rows))


def _on_ranks(reduce: Reduce, count: int) -> Measured:
    of_ranks = zip(*on_ranks(RANKS, _rank, (reduce, count)), strict=True)
    counted, gradients, memory, times = of_ranks
    steps = [sum(step) for step in zip(*times, strict=True)]
    return Measured(max(counted), max(gradients), max(memory), statistics.median(steps[1:]))


def _rank(rank: int, reduce: Reduce, count: int) -> tuple[int, int, int, list[float]]:
    """Train a few steps; counted bytes, of these gradients, bytes taken, and CPU-seconds."""
    groups = Communicators.create()
    model = Llama(CONFIG)
    importlib.import_module("torch._dynamo")  # as the optimizer does when it is made
    gc.collect()
    before = _resident("VmRSS")
    states = ShardedStates(model, groups.states, reduce=reduce)
    counted = count_held_bytes(states.units)
    optimizer = torch.optim.AdamW([master for _, master in states.master_parameters()])
    peers = Peers(groups.attention)
    prepare = make_preparer(
        SeededTokens(CONFIG.vocab, 0), peers, heads=CONFIG.heads, kv_heads=CONFIG.kv_heads
    )
    view = rank_view(_plan(count), rank)
    times = []
    for _ in range(STEPS):
        started = time.process_time()
        run_step(view, prepare(view), model, states, optimizer)
        times.append(time.process_time() - started)
    # The module's parameters were there before, and are counted.
    memory = _resident("VmHWM") - before + sum(p.nbytes for p in model.parameters())
    return counted.total, counted.gradients, memory, times


def _resident(field: str) -> int:
    """Read a size of this process from the kernel, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {field}")


def _plan(count: int) -> Plan:
    """A pipeline on each rank, of ``count`` micro-batches of one document each."""
    batches = RANKS * count
    pipelines = tuple(
        PlannedPipeline(
            Scheme(),
            (rank,),
            tuple(MicroBatch((rank * count + at,), TOKENS, TOKENS, 1.0) for at in range(count)),
            float(count),
        )
        for rank in range(RANKS)
    )
    return Plan(
        step=0,
        provenance=Provenance("benchmark", 0, "none", None),
        world_size=RANKS,
        ids=tuple(range(batches)),
        lengths=(TOKENS,) * batches,
        tokens=TOKENS * batches,
        loss_tokens=(TOKENS - 1) * batches,
        pipelines=pipelines,
        idle_ranks=(),
        groups=process_groups(pipelines),
        predicted_ms=1.0,
        lower_bound_ms=1.0,
        gap=0.0,
        selection=(),
    )
