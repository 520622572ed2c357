"""Process groups of blocks of ranks: as few calls as the backend allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Protocol

import torch.distributed as dist

from seqplan.runtime.errors import communicating

Ranks = tuple[int, ...]
"""Global ranks of a group, in its order."""

_DOING = "making the groups of tensor parallelism"


class GroupMaker(Protocol):
    """Makes process groups of some ranks, on all ranks of the job together."""

    def make(self, blocks: Sequence[Ranks]) -> dict[Ranks, dist.ProcessGroup | None]:
        """Make a group of each block; None for blocks without this rank.

        Collective: all ranks call it with the same blocks in one order.
        """


class NewGroups:
    """One call of ``new_group`` a block."""

    def __init__(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def make(self, blocks: Sequence[Ranks]) -> dict[Ranks, dist.ProcessGroup | None]:
        """See ``GroupMaker``."""
        rank = dist.get_rank()
        groups: dict[Ranks, dist.ProcessGroup | None] = {}
        for block in blocks:
            with communicating(_DOING):
                group = dist.new_group(list(block), timeout=self._timeout, sort_ranks=False)
            groups[block] = group if rank in block else None
        return groups


class SplitGroups:
    """One call of ``split_group`` for all blocks that share no rank; ``parent`` spans all ranks.

    NCCL only, with a default group that was made with ``device_id``.
    """

    def __init__(self, parent: dist.ProcessGroup, timeout: timedelta) -> None:
        self._parent, self._timeout = parent, timeout
        self._unsorted = NewGroups(timeout)

    def make(self, blocks: Sequence[Ranks]) -> dict[Ranks, dist.ProcessGroup | None]:
        """See ``GroupMaker``; a block whose ranks do not ascend takes a call of ``new_group``."""
        rank = dist.get_rank(self._parent)
        # A split sorts the ranks of its parts.
        ascending = [block for block in blocks if list(block) == sorted(block)]
        groups = self._unsorted.make([block for block in blocks if block not in set(ascending)])
        for part in split_into_disjoint(ascending):
            with communicating(_DOING):
                group = dist.split_group(
                    self._parent, [list(block) for block in part], timeout=self._timeout
                )
            groups |= {block: group if rank in block else None for block in part}
        return groups


def split_into_disjoint(blocks: Iterable[Ranks]) -> list[list[Ranks]]:
    """Distribute blocks over as few lists as a greedy pass finds; no two of a list share a rank."""
    parts: list[tuple[list[Ranks], set[int]]] = []
    for block in blocks:
        for part, taken in parts:
            if taken.isdisjoint(block):
                part.append(block)
                taken.update(block)
                break
        else:
            parts.append(([block], set(block)))
    return [part for part, _ in parts]


def group_maker_for(parent: dist.ProcessGroup, timeout_s: float) -> GroupMaker:
    """Return how groups are made next to ``parent``: by splits on NCCL, else one by one."""
    timeout = timedelta(seconds=timeout_s)
    world = dist.group.WORLD
    bound = getattr(world, "bound_device_id", None) is not None
    if bound and dist.get_backend(parent) == "nccl":
        return SplitGroups(parent, timeout)
    return NewGroups(timeout)
