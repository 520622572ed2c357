"""Steps of an attached model on four CPU ranks and of torch's DistributedDataParallel.

First documents of one length, as many on every rank, the same ones on both sides: what attaching
costs. Then ragged batches: DistributedDataParallel deals documents to ranks in the order they come
in, as its sampler does; ours are planned on a profile that the same ranks have measured before. A
step lasts as long as its slowest rank computes, counted in its processor's seconds, as four ranks
share two cores here.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.settings import markdown
from seqplan import Planner
from seqplan.plans.construct import construct_plan
from seqplan.plans.plan import Plan
from seqplan.runtime.data.tokens import SeededTokens

RANKS = 4
SIZES = {"hidden": 256, "layers": 4, "heads": 4, "kv_heads": 4, "ffn": 768, "vocab": 512}
SCHEMES = ("u1", "u2", "u4")
LONGEST, CAPACITY, MEASURED_TO = 4096, 4096, 2048
EQUAL_LENGTH, EQUAL_EACH, EQUAL_STEPS = 512, 6, 6
MEDIAN, RAGGED, RAGGED_STEPS = 128, 64, 5
"""Tokens of the middle document, documents of a ragged batch, steps."""


def run(data: object) -> None:
    """Print both tables; the ranks are forked from a process that has imported what they need."""
    process = get_context("spawn").Process(target=_compare)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit("data_parallel: a rank failed")


def ragged_lengths(step: int) -> list[int]:
    """Draw documents of a batch: log-normal, and one of 32 times the median."""
    rng = np.random.default_rng(step)
    drawn = rng.lognormal(np.log(MEDIAN), 1.0, RAGGED - 1).astype(int).clip(16, LONGEST)
    lengths = [*drawn.tolist(), 32 * MEDIAN]
    rng.shuffle(lengths)
    return lengths


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
        outcomes: list[dict[str, list[float]]] = [pipe.recv() for pipe in pipes]
    totals = {name: sum(sum(times[name]) for times in outcomes) for name in outcomes[0]}
    slowest = {
        name: sum(
            max(times) for times in zip(*(of_rank[name] for of_rank in outcomes), strict=True)
        )
        for name in outcomes[0]
    }
    rows = [
        [
            f"{RANKS} × {EQUAL_EACH} documents of {EQUAL_LENGTH} tokens",
            *_cells(totals["equal ddp"], totals["equal ours"], EQUAL_STEPS),
        ],
        [
            f"{RAGGED} documents, median about {MEDIAN}, longest {32 * MEDIAN}",
            *_cells(slowest["ragged ddp"], slowest["ragged ours"], RAGGED_STEPS),
        ],
    ]
    print("\n### Compared with DistributedDataParallel\n")
    head = ["a step", "DistributedDataParallel", "planned", "ratio", "losses differ by"]
    differences = [outcomes[0]["equal loss"], outcomes[0]["ragged loss"]]
    for row, of in zip(rows, differences, strict=True):
        row.append(f"{max(of):.1e}")
    print(markdown(head, rows) + "\n")
    print("CPU-seconds: of all ranks in the first row, of the slowest rank in the second")


def _cells(theirs: float, ours: float, steps: int) -> list[str]:
    return [f"{theirs / steps:.2f} s", f"{ours / steps:.2f} s", f"{ours / theirs:.3f}"]


def _rank(rank: int, pipe: Connection, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    meeting = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    profile = _measured_profile(rank, folder)
    equal = [[EQUAL_LENGTH] * (RANKS * EQUAL_EACH)] * EQUAL_STEPS
    alone = [
        [[place] for place in range(first, RANKS * EQUAL_EACH, RANKS)] for first in range(RANKS)
    ]
    by_hand = [
        construct_plan(lengths, {"u1": alone}, step=step) for step, lengths in enumerate(equal)
    ]
    ragged = [ragged_lengths(step) for step in range(RAGGED_STEPS)]
    planner = Planner.from_profile(profile, RANKS, LONGEST)
    planned = [planner.plan(lengths, step=step) for step, lengths in enumerate(ragged)]
    outcome: dict[str, list[float]] = {}
    for name, batches, plans in (("equal", equal, by_hand), ("ragged", ragged, planned)):
        theirs, losses = _with_ddp(rank, batches)
        ours, mine = _with_plans(plans)
        outcome[f"{name} ddp"], outcome[f"{name} ours"] = theirs, ours
        outcome[f"{name} loss"] = [abs(a / b - 1) for a, b in zip(mine, losses, strict=True)]
    pipe.send(outcome)
    dist.barrier()
    dist.destroy_process_group()


def _measured_profile(rank: int, folder: Path) -> Any:
    """Measure the model's schemes on these ranks; the profile, on every one of them."""
    from benchmarks.measured_profile import measure_profile
    from seqplan.plans.scheme import Scheme
    from seqplan.profiler.measure.design import design
    from seqplan.profiler.measure.run import Task
    from seqplan.runtime.models.llama import ModelConfig

    config: Any = SIZES
    task = Task(
        config=ModelConfig(**config),
        layers=SIZES["layers"],
        device="cpu",
        dtype="float32",
        schemes=tuple(Scheme.parse(text) for text in SCHEMES),
        points=tuple(design(128, MEASURED_TO, points=4)),
        repeats=1,
    )
    return measure_profile(task, folder, CAPACITY, rank, RANKS).profile


def _model() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

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
    return LlamaForCausalLM(config).train()


def _optimizer(parameters: Any) -> Any:
    import torch

    return torch.optim.AdamW(list(parameters), lr=1e-3)


def _with_ddp(rank: int, batches: Sequence[Sequence[int]]) -> tuple[list[float], list[float]]:
    """Train on documents in order, one a micro-batch; CPU-seconds and loss of each step."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    data = SeededTokens(SIZES["vocab"], 0)
    model = DistributedDataParallel(_model())
    optimizer = _optimizer(model.parameters())
    times, losses = [], []
    for lengths in batches:
        labels = sum(lengths) - len(lengths)
        mine = list(range(rank, len(lengths), RANKS))
        dist.barrier()
        started = time.process_time()
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for count, place in enumerate(mine, start=1):
            tokens = torch.from_numpy(data.tokens(place, 0, lengths[place]))[None]
            model.require_backward_grad_sync = count == len(mine)
            logits = model(input_ids=tokens, use_cache=False).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="sum")
            # Gradients are averaged over ranks, and the loss is of the whole batch.
            (loss * RANKS / labels).backward()  # type: ignore[no-untyped-call]
            total += loss.detach() / labels
        optimizer.step()
        times.append(time.process_time() - started)
        dist.all_reduce(total)
        losses.append(float(total))
    return times, losses


def _with_plans(plans: Sequence[Plan]) -> tuple[list[float], list[float]]:
    """Train under plans; CPU-seconds and loss of each step."""
    import torch.distributed as dist

    from seqplan import huggingface

    job = huggingface.attach(
        _model(),
        SeededTokens(SIZES["vocab"], 0),
        optimizer=lambda named: _optimizer(p for _, p in named),
    )
    times, losses = [], []
    for step in job.steps(plans):
        dist.barrier()
        started = time.process_time()
        losses.append(job.run(step).loss)
        times.append(time.process_time() - started)
    return times, losses
