"""What one process of a training check does: run plans as a rank, or train without any.

Both make the same model and the same data from the settings, and report each step's results.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from seqplan.plans.format.plan_file import read_plans
from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.check.reference import dense_attention, dense_experts, reference_step
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.files import FoldedTokens, token_file
from seqplan.runtime.data.tokens import SeededTokens, TokenData
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.pipeline.staged_llama import StagedLlama
from seqplan.runtime.sources.consumer import PlanConsumer
from seqplan.runtime.sources.source import FileSource
from seqplan.runtime.training.run_step import MicroBatchReport

LOCALHOST = "127.0.0.1"
WAIT_S = 1800.0
"""How long a rank waits for the others: longer than any step that is worth checking."""

PLAN_S = 120.0
"""How long a step's plan and tokens may take; many ranks may share few cores."""

LEARNING_RATE, EPSILON, CLIP_NORM = 1e-3, 1e-6, 1.0
"""Of AdamW. At its usual ε of 1e-8 an update is the sign of the gradient, so that elements whose
gradients cancel to rounding errors would differ by whole updates between two correct runs."""


@dataclass(frozen=True)
class CheckSettings:
    """A check: ``steps`` plans from ``first_step`` on, in a file for the ``ranks`` and another.

    ``folder``: for the processes' logs. ``parameters``: .npz file for the ranks' final values.
    ``data``: a token file, None for tokens seeded by sample id. ``model``: sizes of the Llama.
    ``count_saved``: whether the bytes are counted that micro-batches keep for backward.
    """

    ranks: int
    folder: str
    plans: str
    reference_plans: str
    first_step: int
    steps: int
    parameters: str
    data: str | None
    seed: int
    dtype: str
    model: dict[str, Any]
    count_saved: bool = False


def log_path(settings: CheckSettings, number: int) -> Path:
    """Return the log path of the process with this number."""
    name = f"rank-{number}" if number < settings.ranks else "reference"
    return Path(settings.folder, f"{name}.log")


def run_process(settings: CheckSettings, number: int, pipe: Connection) -> None:
    """Be rank ``number`` or, above the ranks, the reference; its messages go through ``pipe``.

    They are those of a ``step`` or another event, at the end ``done`` or ``error``.
    Printed lines go to the process' log.
    """
    with open(log_path(settings, number), "wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    _end_with_parent()
    torch.set_num_threads(1)  # a small model's operations are not worth more
    try:
        if number < settings.ranks:
            _run_rank(settings, number, pipe)
        else:
            _run_reference(settings, pipe)
    except ValueError as error:  # a plan or data: known errors of one line
        pipe.send({"error": str(error), "input": True})
    except Exception as error:
        first = str(error).splitlines()[:1]
        pipe.send({"error": ": ".join([type(error).__name__, *first]), "input": False})
    else:
        pipe.send({"done": True})


def _run_rank(settings: CheckSettings, rank: int, pipe: Connection) -> None:
    limit = timedelta(seconds=WAIT_S)
    if rank == 0:
        # The system chooses the port, and the store keeps it: no other process can take it.
        store = TCPStore(LOCALHOST, 0, is_master=True, wait_for_workers=False, timeout=limit)
        pipe.send({"port": store.port})
    else:
        store = TCPStore(LOCALHOST, pipe.recv(), is_master=False, timeout=limit)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=settings.ranks, timeout=limit
    )
    groups = Communicators.create(WAIT_S)
    plans = FileSource(settings.plans, world_size=settings.ranks)
    model = _model(settings, settings.seed + rank)  # rank 0's values must win
    job = StagedLlama(
        model,
        groups,
        tensor_degrees=plans.tensor_degrees(),
        expert_parallel=plans.expert_parallel(),
    )
    optimizer = _optimizer([master for _, master in job.states.master_parameters()])
    with PlanConsumer(
        plans,
        rank=rank,
        world_size=settings.ranks,
        prepare=job.make_preparer(_data(settings)),
        control_group=groups.control,
        start_step=settings.first_step,
        timeout_s=PLAN_S,
    ) as consumer:
        for step in islice(consumer, settings.steps):
            result = job.run_step(
                step.view,
                step.prepared,
                optimizer,
                clip_norm=CLIP_NORM,
                count_saved=settings.count_saved,
            )
            consumer.acknowledge(result.step)
            pipe.send(
                {
                    "step": result.step,
                    "loss": result.loss,
                    "gradient_norm": result.gradient_norm,
                    "ms": 1000 * result.step_s,
                    "saved_bytes": _number_micro_batches(step.view, result.micro_batches),
                }
            )
    values: dict[str, Any] = {name: parameter.numpy() for name, parameter in job.states.export()}
    if rank == 0:
        np.savez(settings.parameters, **values)
    # All ranks leave together: the store is rank 0's.
    dist.barrier(group=groups.control)
    dist.destroy_process_group()


def _number_micro_batches(
    view: RankView, reports: Sequence[MicroBatchReport]
) -> list[tuple[int, int, int]]:
    """List pipeline, place in it and saved bytes of this rank's counted micro-batches."""
    places = [
        (pipeline.index, place)
        for pipeline in view.pipelines
        for place in range(len(pipeline.micro_batches))
    ]
    return [
        (*place, report.saved_bytes) for place, report in zip(places, reports, strict=bool(reports))
    ]


def _run_reference(settings: CheckSettings, pipe: Connection) -> None:
    # The initial values of the ranks; bfloat16 is compared with fp32 from there on.
    model = _model(settings, settings.seed, attend=dense_attention, run=dense_experts)
    if settings.dtype == "bfloat16":
        model = model.float()
    optimizer = _optimizer(list(model.parameters()))
    data = _data(settings)
    for plan in islice(read_plans(settings.reference_plans), settings.steps):
        loss, norm = reference_step(plan, data, model, optimizer, clip_norm=CLIP_NORM)
        pipe.send({"step": plan.step, "loss": loss, "gradient_norm": norm})
    with np.load(settings.parameters) as ranks:
        differences = {
            name: np.abs(ranks[name] - parameter.detach().numpy()).max()
            for name, parameter in model.named_parameters()
        }
    # NaN counts as the largest of all, and is reported as NaN.
    worst = max(differences, key=lambda name: np.nan_to_num(differences[name], nan=np.inf))
    pipe.send({"parameter_difference": float(differences[worst]), "parameter": worst})


def _model(settings: CheckSettings, seed: int, **options: Any) -> Llama:
    torch.manual_seed(seed)
    return Llama(ModelConfig(**settings.model), **options).to(getattr(torch, settings.dtype))


def _optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, eps=EPSILON)


def _data(settings: CheckSettings) -> TokenData:
    if settings.data is None:
        return SeededTokens(settings.model["vocab"], settings.seed)
    return FoldedTokens(token_file(settings.data), settings.model["vocab"])


def _end_with_parent() -> None:
    """End the process at once, whatever it waits for, when its parent has ended."""
    parent = parent_process()
    assert parent is not None

    def watch(join: Callable[[], None]) -> None:
        join()
        os._exit(1)

    threading.Thread(target=watch, args=(parent.join,), name="parent", daemon=True).start()
