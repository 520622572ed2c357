"""CPU-seconds of a training step under each kind of parallelism, of all ranks together.

The same sequences and model under every scheme, as many pipelines of it as fit. The CPU time of
all processes, with the sync of parameters and gradients, shows the scheme's cost compared with
tp = pp = 1. Schemes take turns, and the least of several steps counts: whatever else runs on the
machine adds to a step and takes nothing from it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.ranks import on_ranks
from benchmarks.settings import Data, markdown
from seqplan.plans.groups import process_groups
from seqplan.plans.plan import MicroBatch, Plan, PlannedPipeline, Provenance
from seqplan.plans.scheme import Scheme
from seqplan.plans.views.rank_view import rank_view
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.pipeline.staged_llama import StagedLlama

WARM_UP, STEPS = 1, 3
MODELS = tuple(
    ModelConfig(hidden=hidden, layers=4, heads=8, kv_heads=4, ffn=hidden * 11 // 4, vocab=1024)
    for hidden in (256, 768)
)
"""Communication grows with the width, computation with its square."""

SCHEMES = {
    2: ("tp1", "u2", "r2", "tp2", "pp2"),
    4: ("tp1", "u4", "r4", "tp4", "pp4", "tp2.pp2", "tp2.u2"),
}
"""By the number of ranks."""

SEQUENCES, LONGEST, SEED = 8, 200, 0


@dataclass(frozen=True, slots=True)
class Seconds:
    """A step's CPU-seconds; ``transport``: of those, the time of communication threads."""

    whole: float
    transport: float


def run(data: Sequence[Data]) -> None:
    """Print one table; the sequences are drawn from the first of ``data``, cut to ``LONGEST``."""
    rng = np.random.default_rng(SEED)
    lengths = [int(length) for length in rng.choice(data[0].lengths, SEQUENCES).clip(1, LONGEST)]
    for config in MODELS:
        rows = []
        for ranks, schemes in SCHEMES.items():
            steps = _on_ranks(ranks, schemes, lengths, config)
            whole = steps[schemes[0]].whole
            for scheme, step in steps.items():
                figures = f"{step.whole:.2f}", f"{step.transport:.2f}", f"{step.whole / whole:.2f}"
                rows.append([str(ranks), scheme, *figures])
        print(
            f"### A step of {len(lengths)} sequences, {sum(lengths):,} tokens: "
            f"Llama of {config.layers} layers, hidden {config.hidden}, float32\n"
        )
        print(
            markdown(["ranks", "pipelines of", "CPU-seconds", "of gloo's threads", "÷ tp1"], rows)
        )


def planned(scheme: Scheme, lengths: Sequence[int], ranks: int) -> Plan:
    """Assign the sequences to as many pipelines as fit, two in a micro-batch."""
    count = ranks // scheme.gpus
    pipelines = []
    for number in range(count):
        positions = list(range(number, len(lengths), count))
        batches = []
        for pair in zip(positions[::2], positions[1::2], strict=True):
            held = [lengths[position] for position in pair]
            batches.append(MicroBatch(pair, sum(held), scheme.pad_micro_batch(held), 1.0))
        placed = tuple(range(number * scheme.gpus, (number + 1) * scheme.gpus))
        predicted = float(len(batches) + scheme.pp - 1)
        pipelines.append(PlannedPipeline(scheme, placed, tuple(batches), predicted))
    return Plan(
        step=0,
        provenance=Provenance("benchmark", 0, "none", None),
        world_size=ranks,
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


def _on_ranks(
    ranks: int, schemes: Sequence[str], lengths: list[int], config: ModelConfig
) -> dict[str, Seconds]:
    """Least CPU-seconds of a step by scheme, of all ranks together."""
    preload = ["torch._dynamo", "benchmarks.strategies"]  # which takes seconds
    by_rank = on_ranks(ranks, _rank, (ranks, schemes, lengths, config), preload)
    least = {}
    for scheme in schemes:
        steps = zip(*(seconds[scheme] for seconds in by_rank), strict=True)
        sums = [
            Seconds(sum(rank.whole for rank in step), sum(rank.transport for rank in step))
            for step in steps
        ]
        least[scheme] = min(sums, key=lambda step: step.whole)
    return least


def _rank(
    rank: int, ranks: int, schemes: Sequence[str], lengths: list[int], config: ModelConfig
) -> dict[str, list[Seconds]]:
    """Time steps of each scheme, in turn with the others'."""
    groups = Communicators.create()
    torch.manual_seed(0)
    tensor_degrees = sorted({Scheme.parse(scheme).tp for scheme in schemes} - {1})
    job = StagedLlama(Llama(config), groups, tensor_degrees=tensor_degrees)
    optimizer = torch.optim.AdamW([master for _, master in job.states.master_parameters()])
    prepare = job.make_preparer(SeededTokens(config.vocab, 0))
    seconds: dict[str, list[Seconds]] = {scheme: [] for scheme in schemes}
    for _ in range(WARM_UP + STEPS):
        for scheme, steps in seconds.items():
            view = rank_view(planned(Scheme.parse(scheme), lengths, ranks), rank)
            work = prepare(view)
            dist.barrier()
            whole, thread = time.process_time(), time.thread_time()
            job.run_step(view, work, optimizer)
            whole, thread = time.process_time() - whole, time.thread_time() - thread
            steps.append(Seconds(whole, whole - thread))
    return {scheme: steps[WARM_UP:] for scheme, steps in seconds.items()}
