"""Steps on the GPU of this machine: every kind of scheme, every recomputation mode, a restart.

Several ranks share the device, each with a process and NCCL communicators like those of a rank with
a device: ``NCCL_HOSTID`` makes NCCL take them for machines, which exchange messages over sockets.
Times then mean nothing; results are compared with those of one rank on the same sequences. Without
a GPU the ranks are CPU ones over gloo, and the model is smaller.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.ranks import on_ranks, plan_evenly
from benchmarks.settings import Data
from benchmarks.tables import Cells, Output, Table
from seqplan import Plan, Scheme, construct_plan, rank_view
from seqplan.plans.recomputation import MODES
from seqplan.profiler.measure.device import device_name
from seqplan.runtime.checkpoint import Cursor, restore, save
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.pipeline.staged_llama import StagedLlama

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
DTYPE = torch.bfloat16 if CUDA else torch.float32
SIZES: dict[str, Any] = {"heads": 8, "kv_heads": 4, "vocab": 1000, "layers": 4}
CONFIG = ModelConfig(**SIZES, hidden=512 if CUDA else 64, ffn=1408 if CUDA else 128)
DEEP = replace(CONFIG, hidden=2048, heads=16, head_dim=128, ffn=5632, layers=8) if CUDA else CONFIG

LENGTHS = (900, 260, 700, 68, 512, 33, 1, 1200)
"""Of every step's sequences, in two micro-batches on each pipeline."""

LONG = (8000, 4000, 33, 1) if CUDA else (800, 400, 33, 1)
SCHEMES = {
    2: ("u2", "r2", "tp2", "pp2"),
    4: ("u4", "r4", "u2.r2", "tp2.u2", "tp4", "tp2.pp2", "pp2.r2"),
    8: ("u8", "r8", "tp2.u4", "tp4.pp2", "u2.r4"),
}
STEPS, MODE_STEPS, RESUMED = 20, 3, 6
OPTIMIZERS: tuple[dict[str, Any], ...] = (
    {"foreach": False},
    {"foreach": True},
    {"fused": True},
    *(({"capturable": True},) if CUDA else ()),
)

Results = list[tuple[float, float]]
"""Loss and gradient norm of each step."""


def train_on_one_device(data: Sequence[Data]) -> Output:
    """Train under every scheme and mode, and resume; no data set is used."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # deterministic algorithms require it
    yield f"{device_name(DEVICE)}, {DTYPE}, torch {torch.__version__}"
    expected = on_ranks(1, _train_schemes, (1, ("u1",)), cuda=CUDA)[0]
    table = Table(
        "ranks | scheme | steps | loss off by | gradient norm off by",
        "{} | {} | {} | {:.2g} % | {:.2g} %",
    )
    for ranks, schemes in SCHEMES.items():
        results = on_ranks(ranks, _train_schemes, (ranks, schemes), cuda=CUDA)[0]
        for at, scheme in enumerate(schemes):
            of_scheme = results[at :: len(schemes)]
            worst = _compare(of_scheme, expected[at :: len(schemes)])
            table.add(ranks, scheme, len(of_scheme), *(100 * share for share in worst))
    yield table
    modes = on_ranks(1, _train_modes, cuda=CUDA)[0]
    yield Table("mode | losses and norms | ms | MiB", "{} | {} | {:,.0f} | {}", modes)
    resumed = on_ranks(1, _resume, cuda=CUDA)[0]
    yield Table("AdamW | resumed half-way", "{} | {}", resumed)


def _compare(results: Results, expected: Results) -> list[float]:
    """Return the largest differences of losses and norms, relative to the expected values."""
    return [
        max(abs(got - wanted) / abs(wanted) for got, wanted in zip(*values, strict=True))
        for values in zip(zip(*results, strict=True), zip(*expected, strict=True), strict=True)
    ]


def _train_schemes(rank: int, world: int, schemes: Sequence[str]) -> Results:
    """Train on the schemes in turn, every step on as many sequences."""
    parsed = [Scheme.parse(scheme) for scheme in schemes]
    job, optimizer = _make_job(CONFIG, {scheme.tp for scheme in parsed} - {1})
    plans = [_plan(parsed[step % len(parsed)], step, world) for step in range(STEPS)]
    return _train(job, optimizer, plans, rank)


def _train_modes(rank: int) -> list[Cells]:
    """Train a few steps in each mode; whether results are the first one's, time, most memory."""
    torch.use_deterministic_algorithms(True)
    rows: list[Cells] = []
    first: Results = []
    for mode in (*MODES, "none+0.5", "none+1"):
        job, optimizer = _make_job(DEEP)
        plans = []
        for step in range(MODE_STEPS):
            lengths = [length - (length > MODE_STEPS) * step for length in LONG]
            plan = construct_plan(lengths, {"u1": [[list(range(len(lengths)))]]}, step=step)
            (pipeline,) = plan.pipelines
            (batch,) = pipeline.micro_batches
            moded = replace(pipeline, micro_batches=(replace(batch, recompute=mode),))
            plans.append(replace(plan, pipelines=(moded,)))
        results = _train(job, optimizer, plans[:-1], rank)
        before = _restart_peak()
        began = time.perf_counter()
        results += _train(job, optimizer, plans[-1:], rank)
        ms = 1e3 * (time.perf_counter() - began)
        first = first or results
        same = "the same bits" if results == first else "differ"
        rows.append((mode, same, ms, _read_peak(before)))
        del job, optimizer
    return rows


def _restart_peak() -> int:
    if not CUDA:
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _read_peak(before: int) -> str:
    return f"{(torch.cuda.max_memory_allocated() - before) / 2**20:,.0f}" if CUDA else "–"


def _resume(rank: int) -> list[Cells]:
    """Train without a stop, and with one half-way from which a checkpoint is restored."""
    torch.use_deterministic_algorithms(True)
    groups = Communicators.create()
    plans = [_plan(Scheme(), step, 1) for step in range(RESUMED)]
    rows: list[Cells] = []
    for options in OPTIMIZERS:
        whole = _train(*_make_job(CONFIG, groups=groups, **options), plans, rank)
        with tempfile.TemporaryDirectory() as folder:
            job, optimizer = _make_job(CONFIG, groups=groups, **options)
            parts = _train(job, optimizer, plans[: RESUMED // 2], rank)
            save(folder, Cursor(RESUMED // 2, "0" * 64), job.states, optimizer, groups.control)
            job, optimizer = _make_job(CONFIG, groups=groups, **options)
            restore(folder, job.states, optimizer, groups.control)
            parts += _train(job, optimizer, plans[RESUMED // 2 :], rank)
        name = ", ".join(f"{name}={value}" for name, value in options.items())
        rows.append((name, "the same bits" if parts == whole else "differs"))
    return rows


def _plan(scheme: Scheme, step: int, world: int) -> Plan:
    """Divide the sequences evenly over as many pipelines as fit, in halves of micro-batches."""
    per_batch = max(1, len(LENGTHS) // (world // scheme.gpus) // 2)
    return plan_evenly(scheme, LENGTHS, world, per_batch, step)


def _make_job(
    config: ModelConfig,
    degrees: Collection[int] = (),
    groups: Communicators | None = None,
    **options: Any,
) -> tuple[StagedLlama, torch.optim.Optimizer]:
    torch.manual_seed(0)
    job = StagedLlama(
        Llama(config).to(DTYPE),
        groups or Communicators.create(),
        device=DEVICE,
        tensor_degrees=sorted(degrees),
    )
    masters = [master for _, master in job.states.master_parameters()]
    return job, torch.optim.AdamW(masters, lr=1e-3, **options)


def _train(
    job: StagedLlama, optimizer: torch.optim.Optimizer, plans: Sequence[Plan], rank: int
) -> Results:
    prepare = job.make_preparer(SeededTokens(CONFIG.vocab, 0))
    results = []
    for plan in plans:
        view = rank_view(plan, rank)
        done = job.run_step(view, prepare(view), optimizer, clip_norm=1.0)
        results.append((done.loss, done.gradient_norm))
    return results
