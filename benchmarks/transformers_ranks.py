"""A Llama of transformers on four CPU ranks: next to DistributedDataParallel, and modes.

Time is CPU-seconds, as ranks share cores here. Ranks are forked from a process that has imported
transformers.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import transformers
from torch.nn.parallel import DistributedDataParallel

from benchmarks.ranks import measure_profile, on_ranks, sum_ranks
from benchmarks.settings import Data
from benchmarks.tables import Output, Table
from seqplan import Plan, Planner, Scheme, construct_plan, huggingface
from seqplan.profiler.measure.design import design
from seqplan.profiler.measure.run import Task
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.models.llama import ModelConfig

RANKS = 4
PRELOAD = ("torch._dynamo", "transformers", "benchmarks.transformers_ranks")
"""Modules that ranks need, which take seconds to import."""

COMPARED = ModelConfig(hidden=256, layers=4, heads=4, kv_heads=4, ffn=768, vocab=512)
LONGEST, CAPACITY, MEASURED_TO = 4096, 4096, 2048
MEDIAN, RAGGED = 128, 64
"""Tokens of the middle document, documents of a ragged batch."""


def _make_llama(config: ModelConfig, longest: int) -> Any:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    settings = transformers.LlamaConfig(
        vocab_size=config.vocab,
        hidden_size=config.hidden,
        intermediate_size=config.ffn,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        max_position_embeddings=longest,
    )
    return transformers.LlamaForCausalLM(settings).train()


def _attach(config: ModelConfig, longest: int, **options: Any) -> Any:
    return huggingface.attach(
        _make_llama(config, longest),
        SeededTokens(config.vocab, 0),
        optimizer=lambda named: torch.optim.AdamW([p for _, p in named], lr=1e-3),
        **options,
    )


def compare_data_parallel(
    data: Sequence[Data], each: int = 6, tokens: int = 512, equal: int = 6, ragged: int = 5
) -> Output:
    """Compare steps of an attached model with torch's DistributedDataParallel.

    First documents of one length, as many on every rank, the same ones on both sides: the cost of
    attaching. Then ragged batches: DistributedDataParallel assigns documents to ranks in the order
    they come in, as its sampler does; ours are planned on a profile that the same ranks have
    measured before. A step lasts as long as its slowest rank computes.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = (Path(folder), [[tokens] * (RANKS * each)] * equal, ragged)
        by_rank = on_ranks(RANKS, _compare_data_parallel, arguments, PRELOAD)
    table = Table(
        "a step | DistributedDataParallel | planned | ratio | losses differ by",
        "{} | {:.2f} s | {:.2f} s | {:.3f} | {:.1e}",
        title="Compared with DistributedDataParallel",
    )
    for name, kind, of_step in (
        (f"{RANKS} × {each} documents of {tokens} tokens", "equal", sum),
        (f"{RAGGED} documents, median about {MEDIAN}, longest {32 * MEDIAN}", "ragged", max),
    ):
        theirs, ours = (
            float(np.mean([of_step(t) for t in zip(*(r[kind][at] for r in by_rank), strict=True)]))
            for at in (0, 1)
        )
        table.add(name, theirs, ours, ours / theirs, max(by_rank[0][kind][2]))
    yield table
    yield "CPU-seconds: of all ranks in the first row, of the slowest rank in the second"


def draw_ragged(step: int) -> list[int]:
    """Draw documents of a batch: log-normal, and one of 32 times the median."""
    rng = np.random.default_rng(step)
    drawn = rng.lognormal(np.log(MEDIAN), 1.0, RAGGED - 1).astype(int).clip(16, LONGEST)
    lengths = [*drawn.tolist(), 32 * MEDIAN]
    rng.shuffle(lengths)
    return lengths


def _compare_data_parallel(
    rank: int, folder: Path, equal: list[list[int]], steps: int
) -> dict[str, tuple[list[float], list[float], list[float]]]:
    """Return seconds of DistributedDataParallel and of plans, and differences of losses."""
    task = Task(
        config=COMPARED,
        layers=COMPARED.layers,
        device="cpu",
        dtype="float32",
        schemes=tuple(Scheme.parse(text) for text in ("u1", "u2", "u4")),
        points=tuple(design(128, MEASURED_TO, points=4)),
        repeats=1,
    )
    profile, _ = measure_profile(task, folder, CAPACITY, rank, RANKS)
    places = range(len(equal[0]))
    alone = [[[place] for place in places[first::RANKS]] for first in range(RANKS)]
    by_hand = [construct_plan(lengths, {"u1": alone}, step=n) for n, lengths in enumerate(equal)]
    ragged = [draw_ragged(step) for step in range(steps)]
    planner = Planner.from_profile(profile, RANKS, LONGEST)
    planned = [planner.plan(lengths, step=step) for step, lengths in enumerate(ragged)]
    outcome = {}
    for name, batches, plans in (("equal", equal, by_hand), ("ragged", ragged, planned)):
        theirs, losses = _train_data_parallel(rank, batches)
        ours, mine = _train_plans(plans)
        apart = [abs(a / b - 1) for a, b in zip(mine, losses, strict=True)]
        outcome[name] = theirs, ours, apart
    return outcome


def _train_data_parallel(
    rank: int, batches: Sequence[Sequence[int]]
) -> tuple[list[float], list[float]]:
    """Train on documents in order, one a micro-batch; CPU-seconds and loss of each step."""
    data = SeededTokens(COMPARED.vocab, 0)
    model = DistributedDataParallel(_make_llama(COMPARED, LONGEST))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
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


def _train_plans(plans: Sequence[Plan]) -> tuple[list[float], list[float]]:
    """Train under plans; CPU-seconds and loss of each step."""
    job = _attach(COMPARED, LONGEST)
    times, losses = [], []
    for step in job.steps(plans):
        dist.barrier()
        started = time.process_time()
        losses.append(job.run(step).loss)
        times.append(time.process_time() - started)
    return times, losses


RECOMPUTED = ModelConfig(hidden=512, layers=8, heads=8, kv_heads=4, ffn=1408, vocab=512)
DOCUMENTS, MIDDLE, LAST = 36, 96, 1024
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


def compare_recomputation(
    data: Sequence[Data], config: ModelConfig = RECOMPUTED, steps: int = 3
) -> Output:
    """Compare recomputation modes per micro-batch with full recomputation.

    Batches with a long tail are packed into micro-batches of a few documents; long documents are
    alone. A micro-batch may keep ``BUDGET`` bytes for backward, which the longest documents do
    under full recomputation only. Once all run under it, once each under the lightest mode that
    fits. The first step counts bytes, the others time.
    """
    by_rank = on_ranks(RANKS, _recompute, (config, steps), PRELOAD)
    outcomes = {name: [of[name] for of in by_rank] for name in by_rank[0]}
    micro_batches = [b for of in outcomes["by micro-batch"] for b in of.micro_batches]
    most_in_full = max(size for of in outcomes["full"] for _, _, size in of.micro_batches)
    table = Table(
        "mode | micro-batches | of the tokens | saved a token | saved at most",
        "{} | {} | {:.0%} | {:.0f} KiB | {:.0f} MiB",
        title=f"Recomputation modes, {RANKS} ranks",
    )
    for mode in CANDIDATES:
        moded = [batch for batch in micro_batches if batch[0] == mode]
        tokens, size = sum(batch[1] for batch in moded), sum(batch[2] for batch in moded)
        most = max((size for _, _, size in moded), default=0)
        share = tokens / sum(tokens for _, tokens, _ in micro_batches)
        table.add(mode, len(moded), share, size / max(tokens, 1) / 2**10, most / 2**20)
    yield table
    yield (
        f"budget of a micro-batch: {BUDGET / 2**20:.0f} MiB; "
        f"full everywhere keeps {most_in_full / 2**20:.0f} MiB at most"
    )
    seconds = {name: sum_ranks([of.seconds for of in ranks]) for name, ranks in outcomes.items()}
    yield Table("recomputation | CPU-seconds a step", "{} | {:.1f} s", list(seconds.items()))
    ratio = seconds["full"] / seconds["by micro-batch"]
    same = all(of.losses == outcomes["full"][0].losses for r in outcomes.values() for of in r)
    yield (
        f"full over by micro-batch: {ratio:.3f} (to reach: {TO_REACH})\n"
        f"losses of both are {'bit-equal' if same else 'DIFFERENT'}"
    )


def draw_lengths(step: int) -> list[int]:
    """Draw documents of a batch: log-normal, and one of twice the longest of those."""
    rng = np.random.default_rng(step)
    drawn = rng.lognormal(np.log(MIDDLE), 1.1, DOCUMENTS - 1).astype(int).clip(8, LAST // 2)
    return [*drawn.tolist(), LAST]


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


def _recompute(rank: int, config: ModelConfig, steps: int) -> dict[str, Outcome]:
    plans = []
    for step in range(steps):
        lengths = draw_lengths(step)
        plans.append(construct_plan(lengths, {"u1": pack(lengths)}, step=step))
    sizes = _measure_bytes(config)
    full = [set_modes(plan, lambda tokens: "full") for plan in plans]
    chosen = [set_modes(plan, lambda tokens: find_lightest(tokens, sizes)) for plan in plans]
    return {"full": _train_modes(config, full), "by micro-batch": _train_modes(config, chosen)}


def _measure_bytes(config: ModelConfig) -> dict[str, float]:
    """Measure the bytes of a token under each mode, on a micro-batch of one document a rank."""
    job, tokens = _attach(config, LAST, loss_rows=128), 256
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


def _train_modes(config: ModelConfig, plans: Sequence[Plan]) -> Outcome:
    """Train under plans; CPU-seconds are of steps whose bytes are not counted."""
    job = _attach(config, LAST, loss_rows=128)
    outcome = Outcome([], [], [])
    for step in job.steps(plans):
        counted = step.view.step == 0
        dist.barrier()
        started = time.process_time()
        result = job.run(step, count_saved=counted)
        if not counted:
            outcome.seconds.append(time.process_time() - started)
        outcome.losses.append(result.loss)
        views = [batch for p in step.view.pipelines for batch in p.micro_batches]
        outcome.micro_batches.extend(
            (str(report.recompute), view.tokens, report.saved_bytes)
            for view, report in zip(views, result.micro_batches, strict=counted)
        )
    return outcome
