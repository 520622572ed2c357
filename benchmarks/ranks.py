"""A benchmark's ranks: processes of this machine that meet over gloo, and what each returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

Result = TypeVar("Result")


def on_ranks(
    ranks: int,
    task: Callable[..., Result],
    arguments: tuple[Any, ...],
    preload: Sequence[str] = (),
    *,
    cuda: bool = False,
) -> list[Result]:
    """Run ``task(rank, *arguments)`` on each rank, of one thread; what they return, by rank.

    ``preload``: modules that a server imports once, from which ranks are then forked; without any,
    each rank is a new process. ``cuda``: all on device 0, over NCCL, which takes each rank for a
    machine by its ``NCCL_HOSTID`` and would else reject that they share a device.
    """
    context: ForkServerContext | SpawnContext = get_context("spawn")
    if preload:
        context = get_context("forkserver")
        context.set_forkserver_preload([*preload])
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes, processes = [], []
    for rank in range(ranks):
        here, there = context.Pipe()
        process = context.Process(
            target=_rank, args=(there, rank, ranks, store.port, task, arguments, cuda), daemon=True
        )
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    results: list[Result] = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    return results


def _rank(
    pipe: Connection,
    rank: int,
    ranks: int,
    port: int,
    task: Callable[..., Result],
    arguments: tuple[Any, ...],
    cuda: bool,
) -> None:
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False)
    device = None
    if cuda:
        os.environ |= {"NCCL_HOSTID": f"rank{rank}", "NCCL_SOCKET_IFNAME": "lo"}
        device = torch.device("cuda", 0)
        torch.cuda.set_device(device)
    backend = "nccl" if cuda else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, device_id=device)
    pipe.send(task(rank, *arguments))
    dist.destroy_process_group()
