"""Rendezvous of a job's ranks, from the environment that a launcher sets."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]


def join_ranks(device: torch.device) -> bool:
    """Make the default process group of ranks on ``device`` if there is none; whether it did."""
    if dist.is_initialized():
        return False
    backend = "nccl" if device.type == "cuda" else "gloo"
    on: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group(backend, **on)
    else:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, **on)
    return True
