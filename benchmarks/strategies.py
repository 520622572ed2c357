"""CPU-seconds of a training step under each kind of parallelism, of all ranks together.

The same sequences and model under every scheme, as many pipelines of it as there is room for; what
all processes compute together, the exchange of parameters and gradients included, says what the
scheme costs beside tp = pp = 1.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from benchmarks.settings import Data, markdown
from seqplan.plans.groups import process_groups
from seqplan.plans.plan import MicroBatch, Plan, PlannedPipeline, Planner
from seqplan.plans.scheme import Scheme
from seqplan.plans.views.rank_view import rank_view
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.pipeline.staged_llama import StagedLlama
from seqplan.runtime.training.model import Llama, ModelConfig

RANKS, WARM_UP, STEPS = 4, 1, 5
CONFIG = ModelConfig(hidden=256, layers=4, heads=8, kv_heads=4, ffn=704, vocab=1024)
SCHEMES = ("tp1", "u2", "r2", "tp2", "pp2", "u4", "r4", "tp4", "pp4", "tp2.pp2", "tp2.u2")
SEQUENCES, LONGEST, SEED = 24, 400, 0


def run(data: Sequence[Data]) -> None:
    """Print one table; the sequences are drawn from the first of ``data``, cut to ``LONGEST``."""
    rng = np.random.default_rng(SEED)
    lengths = [int(length) for length in rng.choice(data[0].lengths, SEQUENCES).clip(1, LONGEST)]
    seconds = _on_ranks(lengths)
    whole = seconds[SCHEMES[0]]
    rows = [[scheme, f"{taken:.2f}", f"{taken / whole:.2f}"] for scheme, taken in seconds.items()]
    print(
        f"### A step of {len(lengths)} sequences, {sum(lengths):,} tokens, on {RANKS} ranks: "
        f"Llama of {CONFIG.layers} layers, hidden {CONFIG.hidden}, float32\n"
    )
    print(markdown(["pipelines of", "CPU-seconds", "÷ tp1"], rows))


def planned(scheme: Scheme, lengths: Sequence[int]) -> Plan:
    """Deal the sequences to as many pipelines as there is room for, two in a micro-batch."""
    count = RANKS // scheme.gpus
    pipelines = []
    for number in range(count):
        positions = list(range(number, len(lengths), count))
        batches = []
        for pair in zip(positions[::2], positions[1::2], strict=True):
            held = [lengths[position] for position in pair]
            batches.append(MicroBatch(pair, sum(held), scheme.padded_tokens(held), 1.0))
        ranks = tuple(range(number * scheme.gpus, (number + 1) * scheme.gpus))
        predicted = float(len(batches) + scheme.pp - 1)
        pipelines.append(PlannedPipeline(scheme, ranks, tuple(batches), predicted))
    return Plan(
        step=0,
        planner=Planner("benchmark", 0, "none", None),
        world_size=RANKS,
        ids=tuple(range(len(lengths))),
        lengths=tuple(lengths),
        tokens=sum(lengths),
        loss_tokens=sum(lengths) - len(lengths),
        pipelines=tuple(pipelines),
        idle_ranks=(),
        groups=process_groups(pipelines),
        predicted_ms=1.0,
        lower_bound_ms=1.0,
        gap=0.0,
        selection=(),
    )


def _on_ranks(lengths: list[int]) -> dict[str, float]:
    """Median CPU-seconds of a step by scheme, of all ranks together."""
    context = multiprocessing.get_context("spawn")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes, processes = [], []
    for rank in range(RANKS):
        here, there = context.Pipe()
        process = context.Process(
            target=_rank, args=(there, rank, store.port, lengths), daemon=True
        )
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    by_rank: list[dict[str, list[float]]] = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    return {
        scheme: statistics.median(
            sum(times) for times in zip(*(taken[scheme] for taken in by_rank), strict=True)
        )
        for scheme in SCHEMES
    }


def _rank(pipe: Connection, rank: int, port: int, lengths: list[int]) -> None:
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    groups = Communicators.create()
    torch.manual_seed(0)
    job = StagedLlama(Llama(CONFIG), groups, tensor_degrees=(2, 4))
    optimizer = torch.optim.AdamW([master for _, master in job.states.master_parameters()])
    prepare = job.preparation(SeededTokens(CONFIG.vocab, 0))
    taken: dict[str, list[float]] = {scheme: [] for scheme in SCHEMES}
    for _ in range(WARM_UP + STEPS):
        for scheme, times in taken.items():
            view = rank_view(planned(Scheme.parse(scheme), lengths), rank)
            work = prepare(view)
            dist.barrier()
            started = time.process_time()
            job.run_step(view, work, optimizer)
            times.append(time.process_time() - started)
    pipe.send({scheme: times[WARM_UP:] for scheme, times in taken.items()})
    dist.destroy_process_group()
