"""Recomputation modes per micro-batch on four CPU ranks, compared with full recomputation.

A Llama of transformers trains on batches with a long tail, packed into micro-batches of a few
documents; long documents are alone. A micro-batch may keep ``BUDGET`` bytes for backward, which the
longest documents do under full recomputation only. Once all run under it, once each under the
lightest mode that fits. Time is CPU-seconds of all ranks, which share cores here.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.settings import markdown
from seqplan.plans.construct import construct_plan
from seqplan.plans.plan import Plan
from seqplan.runtime.data.tokens import SeededTokens

RANKS, STEPS = 4, 3
SIZES = {"hidden": 512, "layers": 8, "heads": 8, "kv_heads": 4, "ffn": 1408, "vocab": 512}
DOCUMENTS, MEDIAN, LONGEST = 36, 96, 1024
"""Of a batch: documents, tokens of the middle one and of the longest."""

PACKED = 256
"""Tokens of a micro-batch of several documents."""

BUDGET = 128 * 2**20
"""Bytes that a micro-batch may keep for backward."""

CANDIDATES = ("none", "elementwise", "full")
TO_REACH = 1.15


@dataclass(frozen=True)
class Outcome:
    """Steps of one rank: CPU-seconds, losses, and (mode, tokens, saved bytes) of micro-batches."""

    seconds: list[float]
    losses: list[float]
    micro_batches: list[tuple[str, int, int]]


def run(data: object) -> None:
    """Print both tables; the ranks are forked from a process that has imported transformers."""
    process = get_context("spawn").Process(target=_compare)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit("recomputation: a rank failed")


def draw_lengths(step: int) -> list[int]:
    """Draw documents of a batch: log-normal, and one of twice the longest of those."""
    rng = np.random.default_rng(step)
    drawn = rng.lognormal(np.log(MEDIAN), 1.1, DOCUMENTS - 1).astype(int).clip(8, LONGEST // 2)
    return [*drawn.tolist(), LONGEST]


def pack(lengths: Sequence[int]) -> list[list[list[int]]]:
    """Assign documents to the least busy rank, the longest first; pack each rank's first-fit."""
    ranks: list[list[list[int]]] = [[] for _ in range(RANKS)]
    loads = [0] * RANKS
    for place in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        rank = loads.index(min(loads))
        loads[rank] += lengths[place]
        for micro_batch in ranks[rank]:
            if sum(lengths[i] for i in micro_batch) + lengths[place] <= PACKED:
                micro_batch.append(place)
                break
        else:
            ranks[rank].append([place])
    return ranks


def set_modes(plan: Plan, mode_of: Callable[[int], str]) -> Plan:
    """Give each micro-batch the mode of its tokens."""
    pipelines = []
    for pipeline in plan.pipelines:
        batches = [replace(b, recompute=mode_of(b.tokens)) for b in pipeline.micro_batches]
        pipelines.append(replace(pipeline, micro_batches=tuple(batches)))
    return replace(plan, pipelines=tuple(pipelines))


def find_lightest(tokens: int, bytes_per_token: Mapping[str, float]) -> str:
    """Return the lightest mode under which so many tokens keep no more than the budget."""
    return next(mode for mode in CANDIDATES if tokens * bytes_per_token[mode] <= BUDGET)


def _compare() -> None:
    import torch
    import torch._dynamo  # an optimizer imports it when it is made, which takes seconds
    import transformers

    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    forking = get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        pipes = []
        for rank in range(RANKS):
            here, there = forking.Pipe()
            forking.Process(target=_rank, args=(rank, there, Path(folder)), daemon=True).start()
            there.close()
            pipes.append(here)
        outcomes: list[dict[str, Outcome]] = [pipe.recv() for pipe in pipes]
    _print_results({name: [of[name] for of in outcomes] for name in outcomes[0]})


def _print_results(outcomes: Mapping[str, Sequence[Outcome]]) -> None:
    micro_batches = [b for of in outcomes["by micro-batch"] for b in of.micro_batches]
    most_in_full = max(size for of in outcomes["full"] for _, _, size in of.micro_batches)
    rows = []
    for mode in CANDIDATES:
        moded = [batch for batch in micro_batches if batch[0] == mode]
        tokens = sum(batch[1] for batch in moded)
        most = max(moded, key=lambda batch: batch[2], default=(mode, 0, 0))
        per_token = sum(batch[2] for batch in moded) / max(tokens, 1) / 2**10
        share = tokens / sum(batch[1] for batch in micro_batches)
        size = f"{most[2] / 2**20:.0f} MiB"
        rows.append([mode, str(len(moded)), f"{share:.0%}", f"{per_token:.0f} KiB", size])
    print(f"\n### Recomputation modes, {RANKS} ranks\n")
    header = ["mode", "micro-batches", "of the tokens", "saved a token", "saved at most"]
    print(markdown(header, rows) + "\n")
    print(
        f"budget of a micro-batch: {BUDGET / 2**20:.0f} MiB; "
        f"full everywhere keeps {most_in_full / 2**20:.0f} MiB at most\n"
    )
    seconds = {
        name: statistics.median(map(sum, zip(*(of.seconds for of in ranks), strict=True)))
        for name, ranks in outcomes.items()
    }
    ratio = seconds["full"] / seconds["by micro-batch"]
    rows = [[name, f"{value:.1f} s"] for name, value in seconds.items()]
    print(markdown(["recomputation", "CPU-seconds a step"], rows) + "\n")
    same = all(of.losses == outcomes["full"][0].losses for r in outcomes.values() for of in r)
    print(f"full over by micro-batch: {ratio:.3f} (to reach: {TO_REACH})")
    print(f"losses of both are {'bit-equal' if same else 'DIFFERENT'}")


def _rank(rank: int, pipe: Connection, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    meeting = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    plans = []
    for step in range(STEPS):
        lengths = draw_lengths(step)
        plans.append(construct_plan(lengths, {"u1": pack(lengths)}, step=step))
    sizes = _measure_bytes()
    full = [set_modes(plan, lambda tokens: "full") for plan in plans]
    chosen = [set_modes(plan, lambda tokens: find_lightest(tokens, sizes)) for plan in plans]
    outcome = {"full": _train(rank, full), "by micro-batch": _train(rank, chosen)}
    pipe.send(outcome)
    dist.barrier()
    dist.destroy_process_group()


def _attach() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from seqplan import huggingface

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=SIZES["vocab"],
        hidden_size=SIZES["hidden"],
        intermediate_size=SIZES["ffn"],
        num_hidden_layers=SIZES["layers"],
        num_attention_heads=SIZES["heads"],
        num_key_value_heads=SIZES["kv_heads"],
        max_position_embeddings=LONGEST,
    )
    return huggingface.attach(
        LlamaForCausalLM(config).train(),
        SeededTokens(SIZES["vocab"], 0),
        optimizer=lambda named: torch.optim.AdamW([p for _, p in named], lr=1e-3),
        loss_rows=128,
    )


def _measure_bytes() -> dict[str, float]:
    """Measure what a token keeps under each mode, on a micro-batch of one document a rank."""
    job, tokens = _attach(), 256
    plan = construct_plan([tokens] * RANKS, {"u1": [[[rank]] for rank in range(RANKS)]})
    sizes = {}
    plans = [
        replace(set_modes(plan, lambda tokens, mode=mode: mode), step=number)  # type: ignore[misc]
        for number, mode in enumerate(CANDIDATES)
    ]
    for step in job.steps(plans):
        (report,) = job.run(step, count_saved=True).micro_batches
        sizes[report.recompute] = report.saved_bytes / tokens
    return sizes


def _train(rank: int, plans: Sequence[Plan]) -> Outcome:
    """Train under plans; CPU-seconds are of steps whose bytes are not counted."""
    import torch.distributed as dist

    job = _attach()
    seconds, losses, micro_batches = [], [], []
    for step in job.steps(plans):
        counted = step.view.step == 0
        dist.barrier()
        started = time.process_time()
        result = job.run(step, count_saved=counted)
        if not counted:
            seconds.append(time.process_time() - started)
        losses.append(result.loss)
        views = [batch for p in step.view.pipelines for batch in p.micro_batches]
        micro_batches += [
            (str(report.recompute), view.tokens, report.saved_bytes)
            for view, report in zip(views, result.micro_batches, strict=counted)
        ]
    return Outcome(seconds, losses, micro_batches)
