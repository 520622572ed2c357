"""Notice of a rank that died, for jobs on NCCL, whose hosts learn nothing of it themselves.

Each rank waits on a gloo group for a message of its two neighbors, which they send at the end. A
process that dies closes its connections, and the wait fails at once. The neighbors end, then
theirs, so that every rank of the job ends.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

EXIT_CODE = 1
"""Exit code of a process whose neighbor died."""

_FOREVER = timedelta(days=365)
"""Time-out of the wait for neighbors: as long as a job may take."""


@contextmanager
def watch_ranks(grace_s: float = 10.0) -> Iterator[None]:
    """End this process if another rank dies within the block. Collective at its start and end.

    ``grace_s``: seconds in which the block may still end by itself, as it does with ``RankLost`` on
    gloo. Then one line on stderr names the neighbor, and the process exits with code 1, whatever
    its threads wait for. A block that is left by an exception counts as a rank that dies, when its
    process ends. A process that hangs, or a network that loses packets, is not noticed.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size == 1:
        yield
        return
    group = dist.new_group(timeout=_FOREVER, backend="gloo")
    dist.barrier(group=group)  # neighbors are connected once all ranks have met
    neighbors = sorted({(rank - 1) % world_size, (rank + 1) % world_size})
    left, ending = threading.Event(), threading.Lock()

    def wait_for(neighbor: int) -> None:
        try:
            dist.recv(torch.empty(1), neighbor, group=group)
        except RuntimeError:
            if not left.wait(grace_s):
                with ending:
                    _end_process(rank, neighbor)

    waits = [
        threading.Thread(target=wait_for, args=(neighbor,), daemon=True) for neighbor in neighbors
    ]
    for wait in waits:
        wait.start()
    try:
        yield
    except BaseException:
        left.set()
        raise
    for neighbor in neighbors:
        try:
            dist.send(torch.zeros(1), neighbor, group=group)
        except RuntimeError:  # the wait for it ends this process
            continue
    for wait in waits:
        wait.join()
    left.set()


def _end_process(rank: int, neighbor: int) -> None:
    """End this process though its main thread may wait for the device."""
    print(
        f"rank {rank}: a rank is lost: rank {neighbor} has ended; "
        "see the log of the rank that ended first",
        file=sys.stderr,
        flush=True,
    )
    os._exit(EXIT_CODE)
