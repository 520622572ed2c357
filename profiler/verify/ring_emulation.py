"""The ranks of a ring as threads of one process, with queues for links.

All of a ring's arithmetic runs as it does on real ranks; only what carries rows is another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from seqplan.plans.views.sharding import ring_chunks
from seqplan.profiler.verify.dense_attention import AttentionResults, AttentionTensors
from seqplan.runtime.sequence_parallel.context import DeviceIndices
from seqplan.runtime.sequence_parallel.kernels import Attended, Kernel, Scores
from seqplan.runtime.sequence_parallel.masks import Mask
from seqplan.runtime.sequence_parallel.peers import Peer, Peers, Transfer
from seqplan.runtime.sequence_parallel.ring import Ring, ring_backward, ring_forward
from seqplan.runtime.sequence_parallel.ring_layout import ring_layout
from seqplan.runtime.sequence_parallel.ring_transfers import RingPlace

PATIENCE_S = 20.0
"""How long a rank waits for rows that another owes it."""

Value = TypeVar("Value")


class _Link:
    """Tensors from one rank to another, matched in the order of requests."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._waiting: dict[int, Tensor] = {}
        self._sent = 0
        self._requested = 0

    def send(self, tensor: Tensor) -> None:
        with self._arrived:
            self._waiting[self._sent] = tensor
            self._sent += 1
            self._arrived.notify_all()

    def request(self) -> int:
        """Take the number of the next tensor, to ``receive`` it later; one rank calls it."""
        self._requested += 1
        return self._requested - 1

    def receive(self, number: int) -> Tensor:
        with self._arrived:
            if not self._arrived.wait_for(lambda: number in self._waiting, PATIENCE_S):
                raise RuntimeError("an emulated ring rank waits for rows that nobody sends")
            return self._waiting.pop(number)


Links = dict[tuple[int, int], _Link]
"""The links between emulated ranks, by sender and receiver."""


class LinkedTransfer(Transfer):
    """Receives under way over links."""

    def __init__(self, receives: Sequence[tuple[Tensor, _Link]]) -> None:
        super().__init__((), (), "emulating a ring")
        self._receives = [(tensor, link, link.request()) for tensor, link in receives]

    def wait(self) -> None:
        """See ``Transfer``."""
        for tensor, link, number in self._receives:
            tensor.copy_(link.receive(number))
        self._receives = []


class LinkedPeers(Peers):
    """What rank ``rank`` sends and receives over links."""

    def __init__(self, links: Links, rank: int) -> None:
        super().__init__(None)
        self._links, self._rank = links, rank

    def transfer(self, sends: Sequence[Peer], receives: Sequence[Peer]) -> Transfer:
        """See ``Peers``; sent tensors are copied at once."""
        for tensor, to in sends:
            if tensor.numel():
                self._links[self._rank, to].send(tensor.clone())
        return LinkedTransfer(
            [
                (tensor, self._links[origin, self._rank])
                for tensor, origin in receives
                if tensor.numel()
            ]
        )


def ring_rows(lengths: Sequence[int], ring: int, rank: int, device: torch.device) -> Tensor:
    """Return which tokens of a packed micro-batch a ring rank holds, int64, in its order."""
    rows: list[Tensor] = []
    start = 0
    for length in lengths:
        rows += [
            torch.arange(start + low, start + high) for low, high in ring_chunks(length, ring, rank)
        ]
        start += length
    return torch.cat(rows).to(device)


def emulate_ring(
    tensors: AttentionTensors,
    lengths: Sequence[int],
    ring: int,
    mask: Mask,
    scores: Scores,
    kernel: Kernel,
    gather_below: int,
) -> AttentionResults:
    """Attend forward and backward on all ranks of a ring; the results of all tokens in order.

    A ring of one is a single fused call, or as many as the mask takes. ``gather_below``: see
    ``ring_layout``.
    """
    links = {(a, b): _Link() for a in range(ring) for b in range(ring)}
    device = tensors.q.device
    rows = [ring_rows(lengths, ring, rank, device) for rank in range(ring)]

    def run(rank: int) -> tuple[Tensor, ...]:
        layout = ring_layout(lengths, ring, rank, mask, gather_below=gather_below)
        ranks = tuple(range(ring))
        place = RingPlace(layout, mask, ranks, LinkedPeers(links, rank), DeviceIndices())
        held = Ring(place, kernel, scores)
        q, k, v, dout = (
            tensor[rows[rank]] for tensor in (tensors.q, tensors.k, tensors.v, tensors.dout)
        )
        out, lse = ring_forward(q, k, v, held, tensors.sinks)
        return (out, lse, *ring_backward(dout, Attended(q, k, v, out, lse), held))

    parts = _on_threads(run, ring)
    order = torch.cat(rows)
    return AttentionResults(
        *(_in_order(torch.cat(of_ranks), order) for of_ranks in zip(*parts, strict=True))
    )


def _on_threads(run: Callable[[int], Value], ranks: int) -> list[Value]:
    if ranks == 1:
        return [run(0)]
    # Each of these would start separate workers for torch's operations on a CPU.
    workers = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(ranks) as threads:
            return list(threads.map(run, range(ranks)))
    finally:
        torch.set_num_threads(workers)


def _in_order(tensor: Tensor, order: Tensor) -> Tensor:
    return torch.empty_like(tensor).index_copy_(0, order, tensor)
