"""Point-to-point transfers between the ranks of a job, over one communicator.

Pipelines differ from step to step. A process group for each would cost milliseconds and threads on
gloo, and hundreds of megabytes each on NCCL; batched sends and receives over a single parent need
none. They are symmetric: whatever one rank sends in a batch, the other receives in its batch of the
same place in the order (``plans.collectives``), so that no two ranks wait for each other.

An all-to-all of some ranks is one call on NCCL, with a size for every rank of the parent: torch
makes sends and receives of the sizes that are not 0, so that ranks without a part need not call it.
Other backends make it a collective of all ranks: there it is a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from seqplan.runtime.errors import communicating

Peer = tuple[Tensor, int]
"""A contiguous tensor and the global rank that it goes to or comes from."""


class Parts(NamedTuple):
    """A contiguous tensor (elements,), and the number of elements of each rank."""

    tensor: Tensor
    sizes: Sequence[int]

    def split(self) -> tuple[Tensor, ...]:
        """View the part of each rank."""
        return torch.split(self.tensor, list(self.sizes))


class Transfer:
    """Sends and receives under way; the tensors must not be touched before ``wait``."""

    def __init__(
        self, works: Sequence[dist.Work], operations: Sequence[dist.P2POp], doing: str
    ) -> None:
        self._doing = doing
        self._works = works
        self._operations = operations  # their tensors live until the transfer has ended

    def wait(self) -> None:
        """Wait until the received tensors are complete and the sent ones may be reused.

        ``RankLost`` if a peer is gone.
        """
        single = len(self._works) == len(self._operations)
        for work, operation in zip(self._works, self._operations, strict=False):
            with communicating(self._doing, operation.peer if single else None):
                work.wait()
        self._works = ()
        self._operations = ()


class Peers:
    """The ranks of ``group``, which spans the whole job and carries nothing else.

    A separate communicator keeps these transfers from queueing behind the sync of
    parameters and gradients. None for one rank, which transfers nothing. ``doing``: what
    a waiting rank does, for the message if its peer is gone.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        doing: str = "exchanging a micro-batch's tensors",
    ) -> None:
        self.group = group
        self._doing = doing
        self._one_call = group is not None and _skips_empty_parts(group)

    def transfer(self, sends: Sequence[Peer], receives: Sequence[Peer]) -> Transfer:
        """Start all transfers of a batch; empty tensors are left out on both sides."""
        operations = [
            dist.P2POp(operation, tensor, rank, self.group)
            for operation, peers in ((dist.isend, sends), (dist.irecv, receives))
            for tensor, rank in peers
            if tensor.numel()
        ]
        works: Sequence[dist.Work] = ()
        if operations:
            with communicating(self._doing):
                works = dist.batch_isend_irecv(operations)
        return Transfer(works, operations, self._doing)

    def exchange(self, sent: Parts, received: Parts, ranks: Sequence[int], place: int) -> None:
        """Give each of ``ranks`` its part, and receive one from each.

        ``place``: this rank's index among them. The parts are in the order of ``ranks``, global
        ranks, all of which call it.
        """
        if self._one_call:
            self._exchange_at_once(sent, received, ranks)
            return
        outgoing, incoming = sent.split(), received.split()
        incoming[place].copy_(outgoing[place])
        others = [index for index in range(len(ranks)) if index != place]
        self.transfer(
            [(outgoing[index], ranks[index]) for index in others],
            [(incoming[index], ranks[index]) for index in others],
        ).wait()

    def _exchange_at_once(self, sent: Parts, received: Parts, ranks: Sequence[int]) -> None:
        if not sent.tensor.numel() and not received.tensor.numel():
            return
        world_size = dist.get_world_size(self.group)
        send_sizes, receive_sizes = [0] * world_size, [0] * world_size
        for rank, send_size, receive_size in zip(ranks, sent.sizes, received.sizes, strict=True):
            send_sizes[rank], receive_sizes[rank] = send_size, receive_size
        with communicating(self._doing):
            dist.all_to_all_single(
                received.tensor, sent.tensor, receive_sizes, send_sizes, group=self.group
            )


def _skips_empty_parts(group: dist.ProcessGroup) -> bool:
    """Return whether ranks without a part may stay away from an all-to-all.

    Not on ROCm, which makes it a collective, nor in torch's debug mode, which compares all ranks.
    """
    return (
        dist.get_backend(group) == "nccl"
        and torch.version.hip is None
        and dist.get_debug_level() != dist.DebugLevel.DETAIL  # type: ignore[attr-defined]
    )
