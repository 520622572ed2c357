"""Point-to-point transfers between the ranks of a job, over one communicator.

Pipelines differ from step to step. A process group for each would cost milliseconds and threads on
gloo, and hundreds of megabytes each on NCCL; batched sends and receives over a single parent need
none. They are symmetric: whatever one rank sends in a batch, the other receives in its batch of the
same place in the order (``plans.collectives``), so that no two ranks wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from seqplan.runtime.errors import communicating

Peer = tuple[Tensor, int]
"""A contiguous tensor and the global rank that it goes to or comes from."""


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
