"""The communicators of a training job, made once at its start, whatever strategies follow."""

from __future__ import annotations

import atexit
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from seqplan.runtime.errors import communicating

Value = TypeVar("Value")

EXIT_PAUSE_S = 0.05
"""Pause at the end of a process, for gloo's threads. Without it, about 1 of 50 programs that end
right after a collective aborts on 2 busy cores."""


@dataclass(frozen=True, slots=True)
class Communicators:
    """Four groups of all ranks, none of which carries another's traffic.

    ``attention``: point-to-point transfers within pipelines; ``tensor``: those of tensor
    parallelism by messages; ``states``: parameters and gradients, which overlap with them;
    ``control``: agreement on plans, on CPU (gloo) whatever the backend of the others.
    ``timeout_s``: what they were made with, also for the groups of tensor parallelism.
    """

    attention: dist.ProcessGroup
    tensor: dist.ProcessGroup
    states: dist.ProcessGroup
    control: dist.ProcessGroup
    timeout_s: float = 600.0

    @classmethod
    def create(cls, timeout_s: float = 600.0) -> Communicators:
        """Make the groups; every rank calls it, after ``init_process_group``.

        ``timeout_s``: how long a rank waits for the others before it raises, which must exceed
        the longest step, as idle ranks wait all of it. A rank that dies is noticed at once with
        gloo; with NCCL torch ends the process after that time.
        ``RuntimeError`` before ``init_process_group``.
        """
        if not dist.is_initialized():
            raise RuntimeError("call torch.distributed.init_process_group first")
        timeout = timedelta(seconds=timeout_s)
        groups = cls(
            attention=dist.new_group(timeout=timeout),
            tensor=dist.new_group(timeout=timeout),
            states=dist.new_group(timeout=timeout),
            control=dist.new_group(timeout=timeout, backend="gloo"),
            timeout_s=timeout_s,
        )
        atexit.unregister(_pause_for_gloo)  # once, however many groups there are
        atexit.register(_pause_for_gloo)
        # Point-to-point batches of some ranks only work once all ranks have met in the group.
        for group in (groups.attention, groups.tensor, groups.states):
            dist.barrier(group=group)
        return groups

    def close(self) -> None:
        """Destroy the groups after their last use; all ranks call it.

        What they hold is free once nothing refers to them: on NCCL memory of the device, on gloo
        connections, and a thread of each group that looks for messages every 10 ms.
        """
        for group in (self.attention, self.tensor, self.states, self.control):
            dist.destroy_process_group(group)


def _pause_for_gloo() -> None:
    """Let gloo's threads release the tensors of their last collective.

    They need the interpreter for that; while it ends, they would abort the process.
    """
    time.sleep(EXIT_PAUSE_S)


def gather_objects(value: Value, group: dist.ProcessGroup, doing: str) -> list[Value]:
    """Return every rank's value, in rank order; collective over ``group``, a CPU group.

    ``doing``: what ranks are doing, for the message if one is lost.
    """
    values = [value] * dist.get_world_size(group)
    with communicating(doing):
        dist.all_gather_object(values, value, group=group)
    return values


def raise_on_all_ranks(
    error_message: str | None,
    group: dist.ProcessGroup,
    doing: str,
    error: type[Exception] = ValueError,
) -> None:
    """Raise ``error`` on every rank if any rank has an error message.

    Collective over ``group``, a CPU group; ``error_message``: this rank's, None without;
    ``doing``: what ranks are doing, for the message if one is lost.
    """
    for text in gather_objects(error_message, group, doing):
        if text is not None:
            raise error(text)
