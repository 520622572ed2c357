"""The collectives of a tp group: over a process group, or by messages of a parent communicator.

Process groups (``process_groups``) are made by all ranks together, in one order: at the start for
every aligned block of the degrees that strategies have, later for a plan's other groups. They are
never made by their members alone, since the name that members give a group depends on how many they
have made already, and members that have made different numbers wait for each other for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from seqplan.plans.views.placement import Placement
from seqplan.runtime.dtypes import accumulation_dtype
from seqplan.runtime.errors import communicating
from seqplan.runtime.sequence_parallel.peers import Peers, Transfer
from seqplan.runtime.tensor_parallel.process_groups import Ranks, group_maker_for

DIRECT_BYTES = 16_384
"""Up to here an all-reduce by messages sends everything to everyone, once, rather than parts twice:
the time of a small message is its latency."""

# Named so from torch 2.13 on, which warns of the names before.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_DOING = "exchanging tensors of a tp group"
_LOG = logging.getLogger(__name__)

Finish = Callable[[], Tensor]
"""Waits for a collective that is under way and returns its result; called once."""


class TensorGroup(Protocol):
    """What tensor parallelism needs of ``degree`` ranks, of which this one is at ``index``.

    Results are the same on all ranks, bit for bit for sums. All ranks start collectives
    in one order; their inputs must not change before the end.
    """

    degree: int
    index: int

    def all_gather(self, mine: Tensor) -> Finish:
        """Start joining all ranks' rows, in rank order: (rows, …) → (degree · rows, …)."""

    def reduce_scatter(self, whole: Tensor) -> Finish:
        """Start summing over ranks, to keep this rank's rows: (degree · rows, …) → (rows, …)."""

    def all_reduce(self, mine: Tensor, *, maximum: bool = False) -> Tensor:
        """Sum over ranks, or take the ``maximum``; ``mine`` stays as it is."""


class PeerTensorGroup:
    """Collectives as batched messages over a parent communicator: no group is made.

    Sums are in rank order and in the accumulation dtype.
    """

    def __init__(self, peers: Peers, ranks: Sequence[int], index: int) -> None:
        self.degree, self.index = len(ranks), index
        self._peers, self._ranks = peers, tuple(ranks)
        self._others = [member for member in range(self.degree) if member != index]

    def all_gather(self, mine: Tensor) -> Finish:
        """See ``TensorGroup``."""
        mine = mine.contiguous()
        whole = mine.new_empty(self.degree * mine.shape[0], *mine.shape[1:])
        parts = self._parts(whole)
        transfer = self._exchange([mine] * self.degree, parts)
        parts[self.index].copy_(mine)

        def finish() -> Tensor:
            transfer.wait()
            return whole

        return finish

    def reduce_scatter(self, whole: Tensor) -> Finish:
        """See ``TensorGroup``."""
        parts = self._parts(whole.contiguous())
        received = [
            part if member == self.index else torch.empty_like(part)
            for member, part in enumerate(parts)
        ]
        transfer = self._exchange(parts, received)

        def finish() -> Tensor:
            transfer.wait()
            return _sum(received)

        return finish

    def all_reduce(self, mine: Tensor, *, maximum: bool = False) -> Tensor:
        """See ``TensorGroup``."""
        mine = mine.contiguous()
        rows = mine.shape[0]
        if maximum or mine.numel() * mine.element_size() <= DIRECT_BYTES or rows < self.degree:
            received = [torch.empty_like(mine) for _ in range(self.degree)]
            received[self.index] = mine
            self._exchange([mine] * self.degree, received).wait()
            return torch.stack(received).amax(0) if maximum else _sum(received)
        padded = -(-rows // self.degree) * self.degree
        if padded != rows:
            mine = torch.cat((mine, mine.new_zeros(padded - rows, *mine.shape[1:])))
        return self.all_gather(self.reduce_scatter(mine)())()[:rows]

    def _parts(self, whole: Tensor) -> list[Tensor]:
        rows = whole.shape[0] // self.degree
        return [whole[member * rows : (member + 1) * rows] for member in range(self.degree)]

    def _exchange(self, outgoing: Sequence[Tensor], received: Sequence[Tensor]) -> Transfer:
        return self._peers.transfer(
            [(outgoing[member], self._ranks[member]) for member in self._others],
            [(received[member], self._ranks[member]) for member in self._others],
        )


class CollectiveTensorGroup:
    """The same over a process group; sums are in the tensors' dtype, as the backend has them."""

    def __init__(self, group: dist.ProcessGroup, index: int) -> None:
        self.degree, self.index = group.size(), index
        self._group = group

    def all_gather(self, mine: Tensor) -> Finish:
        """See ``TensorGroup``."""
        whole = mine.new_empty(self.degree * mine.shape[0], *mine.shape[1:])
        return self._start(_ALL_GATHER, whole, mine.contiguous())

    def reduce_scatter(self, whole: Tensor) -> Finish:
        """See ``TensorGroup``."""
        mine = whole.new_empty(whole.shape[0] // self.degree, *whole.shape[1:])
        return self._start(_REDUCE_SCATTER, mine, whole.contiguous())

    def all_reduce(self, mine: Tensor, *, maximum: bool = False) -> Tensor:
        """See ``TensorGroup``."""
        total = mine.clone(memory_format=torch.contiguous_format)
        operation = dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM
        if total.numel():
            with communicating(_DOING):
                dist.all_reduce(total, operation, group=self._group)
        return total

    def _start(self, collective: Callable[..., dist.Work], out: Tensor, source: Tensor) -> Finish:
        if not source.numel():
            return lambda: out
        with communicating(_DOING):
            work = collective(out, source, group=self._group, async_op=True)

        def finish() -> Tensor:
            with communicating(_DOING):
                work.wait()
            return out

        return finish


class TensorGroups:
    """The tp groups of a job; ``parent`` spans all ranks and carries nothing else.

    ``degrees``: those of the strategies that are expected. With ``by_messages`` no group is made,
    now or later: the only way if ranks cannot meet to make one, and slower on GPUs, where
    messages have neither trees nor switches that add up.
    """

    def __init__(
        self,
        parent: dist.ProcessGroup,
        degrees: Iterable[int] = (),
        *,
        by_messages: bool = False,
        timeout_s: float = 600.0,
    ) -> None:
        self._peers = Peers(parent, _DOING)
        self._rank = dist.get_rank(parent)
        self._maker = None if by_messages else group_maker_for(parent, timeout_s)
        self._groups: dict[Ranks, dist.ProcessGroup | None] = {}
        world_size = dist.get_world_size(parent)
        for degree in sorted(set(degrees) - {1}):
            starts = range(0, world_size - degree + 1, degree)
            self._make([tuple(range(first, first + degree)) for first in starts])

    def extend(self, placement: Placement) -> None:
        """Make the groups that a step needs and that are missing; all ranks call it.

        A step then waits for them, which the first rank warns of.
        """
        needed = [
            pipeline.ranks[at : at + pipeline.scheme.tp]
            for pipeline in placement
            if pipeline.scheme.tp > 1
            for at in range(0, len(pipeline.ranks), pipeline.scheme.tp)
        ]
        missing = self._make(needed)
        if missing and self._rank == 0:
            _LOG.warning(
                "a step waits while %d tp groups are made, of ranks %s first: give the degrees %s "
                "at the start, and plan tp groups on aligned ranks",
                len(missing),
                missing[0],
                sorted({len(block) for block in missing}),
            )

    def of(self, ranks: tuple[int, ...]) -> TensorGroup | None:
        """Return the group of ``ranks``, this one among them; None for this one alone.

        ``KeyError`` for a group that was not made.
        """
        if len(ranks) == 1:
            return None
        index = ranks.index(self._rank)
        if self._maker is None:
            return PeerTensorGroup(self._peers, ranks, index)
        group = self._groups[ranks]
        assert group is not None
        return CollectiveTensorGroup(group, index)

    def _make(self, blocks: Sequence[Ranks]) -> list[Ranks]:
        """Make the groups that are missing and return their ranks."""
        if self._maker is None:
            return []
        missing = [block for block in dict.fromkeys(blocks) if block not in self._groups]
        self._groups |= self._maker.make(missing) if missing else {}
        return missing


def _sum(parts: Sequence[Tensor]) -> Tensor:
    first, second, *others = parts
    total = torch.add(first.to(accumulation_dtype(first.dtype)), second)
    for part in others:
        total += part
    return total.to(first.dtype)
