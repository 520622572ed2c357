"""Rendezvous of a job's ranks and source of its plans, from a program's one-word settings."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

from seqplan.runtime.steps.fan_out import open_job
from seqplan.runtime.steps.source import FileSource, PlanSource


def plan_source(where: str | os.PathLike[str], world_size: int) -> PlanSource:
    """Open a plan file, or a planning service's job; ``ValueError`` for another URL."""
    if not isinstance(where, str) or not where.startswith(("http://", "https://")):
        return FileSource(where, world_size=world_size)
    base, separator, job = where.rstrip("/").partition("/v1/jobs/")
    if not separator or not job or "/" in job:
        raise ValueError(f"{where}: a job of a planning service is http://HOST:PORT/v1/jobs/JOB")
    return open_job(base, unquote(job), os.environ.get("SEQPLAN_TOKEN"))


def join_ranks(model: nn.Module) -> bool:
    """Make the default process group if there is none; return whether it did."""
    if dist.is_initialized():
        return False
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    backend = "nccl" if device.type == "cuda" else "gloo"
    on: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group(backend, **on)
    else:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, **on)
    return True
