"""A benchmark's ranks: processes of this machine that meet over gloo, and their results."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from seqplan import Plan, Profile, Scheme, construct_plan
from seqplan.costs.fit.measured_profile import ProfiledDevices, fit_all, profile_document
from seqplan.profiler.measure.run import Task, measure

Result = TypeVar("Result")


def on_ranks(
    ranks: int,
    task: Callable[..., Result],
    arguments: tuple[Any, ...] = (),
    preload: Sequence[str] = (),
    *,
    cuda: bool = False,
) -> list[Result]:
    """Run ``task(rank, *arguments)`` on each rank, of one thread; return the results by rank.

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
    dist.barrier()
    dist.destroy_process_group()


def time_together(call: Callable[[], Any]) -> float:
    """Return CPU-seconds of a call that all ranks begin together."""
    dist.barrier()
    began = time.process_time()
    call()
    return time.process_time() - began


def sum_ranks(times: Sequence[Sequence[float]]) -> float:
    """Return the median over steps of all ranks' seconds; ``times`` by rank and step."""
    return median(map(sum, zip(*times, strict=True)))


def plan_evenly(
    scheme: Scheme, lengths: Sequence[int], ranks: int, per_batch: int, step: int = 0
) -> Plan:
    """Assign sequences in turn to as many pipelines as fit, ``per_batch`` in a micro-batch."""
    count = ranks // scheme.gpus
    pipelines = []
    for number in range(count):
        places = range(number, len(lengths), count)
        starts = range(0, len(places), per_batch)
        pipelines.append([list(places[start : start + per_batch]) for start in starts])
    first = step * len(lengths)
    ids = range(first, first + len(lengths))
    return construct_plan(lengths, {str(scheme): pipelines}, ids=ids, step=step, world_size=ranks)


def measure_profile(
    task: Task, folder: Path, capacity: int, rank: int, ranks: int
) -> tuple[Profile, dict[str, Any]]:
    """Measure the task's schemes on these ranks; every rank gets the profile and its document.

    ``capacity``: tokens that fit on a rank at tp = 1 in addition to the states.
    """
    measured_on, samples, syncs = measure(task, folder / "samples.jsonl", rank, ranks)
    shared: list[Any] = [None]
    if rank == 0:
        fit = fit_all(measured_on, samples)
        per_token = fit.memory.bytes_per_token[1]
        devices = ProfiledDevices(measured_on.device, ranks, capacity_bytes=0.0)
        document = profile_document(
            fit, devices, name="benchmark", source="measured by this benchmark", syncs=syncs
        )
        memory = document["memory"]
        states = memory["resident_layer_bytes"] + memory["resident_embedding_bytes"]
        states += memory["sharded_state_bytes"][0][1] / ranks
        memory["capacity_bytes"] = (capacity + 1) * per_token + states + memory["margin_bytes"]
        shared[0] = document
    dist.broadcast_object_list(shared, 0)
    return Profile.from_document(shared[0], "the measured profile"), shared[0]
