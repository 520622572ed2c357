"""How a unit's parameters come to the ranks that hold it, and its gradients back to their owners.

Where every rank holds all of a unit, collectives over the job: an all-gather and a reduce-scatter,
or, if owners hold whole parameters, a broadcast from each owner and a reduction to it;
else messages between owners and holders, one for each pair (``plans.views.resharding``), or, over
several nodes, relays (``plans.views.relays``). All are started in one order on all ranks, on
communicators that carry nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from seqplan.plans.views.resharding import UnitMoves
from seqplan.plans.views.unit_layout import Pieces, UnitLayout
from seqplan.runtime.device_copy import copy_stream
from seqplan.runtime.errors import communicating
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.states.unit import Unit, concatenate_flat

# Named so from torch 2.13 on, which warns of the names before.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_BETWEEN, _WITHIN = "between nodes", "within the node"
"""CUDA streams of relays."""

Finish = Callable[[], None]
"""Waits for the started transfers and stores their results."""


class ParameterSync(Protocol):
    """Brings one unit's parameters and gradients to the ranks that need them."""

    def all_gather(self, unit: Unit) -> Finish:
        """Start filling ``unit.flat`` from the owners' masters."""

    def reduce_scatter(self, unit: Unit, *, add: bool = False) -> Finish:
        """Start summing all ranks' ``unit.gradient`` into the owners' ``reduced``.

        ``add``: to the present sum.
        """


def collective_sync(group: dist.ProcessGroup, layout: UnitLayout) -> ParameterSync:
    """Return how a unit travels that every rank of ``group`` holds, also those without work."""
    if layout.owners is None:
        return CollectiveSync(group)
    return OwnerSync(group, layout)


class CollectiveSync:
    """Syncs a whole unit on every rank of ``group``, each owning an equal slice."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def all_gather(self, unit: Unit) -> Finish:
        """Start an all-gather of the masters."""
        return _start_gather(unit, unit.flat, self._group)

    def reduce_scatter(self, unit: Unit, *, add: bool = False) -> Finish:
        """Start a reduce-scatter of the gradients."""
        return _start_reduce(unit, unit.gradient, self._group, add=add)


class OwnerSync:
    """Syncs a whole unit on every rank of ``group``, each owning whole parameters."""

    def __init__(self, group: dist.ProcessGroup, layout: UnitLayout) -> None:
        self._group = group
        self._parts = [
            (dist.get_global_rank(group, rank), slice(*layout.iterate_owned(rank)))
            for rank in range(layout.ranks)
            if layout.room(rank)
        ]

    def all_gather(self, unit: Unit) -> Finish:
        """Start a broadcast of each owner's masters."""
        doing = f"gathering the parameters of {unit.name}"
        unit.flat[unit.start : unit.stop] = unit.master
        with communicating(doing):
            works = [
                dist.broadcast(unit.flat[part], owner, group=self._group, async_op=True)
                for owner, part in self._parts
            ]
        return _waiting(works, doing)

    def reduce_scatter(self, unit: Unit, *, add: bool = False) -> Finish:
        """Start summing the gradients at each owner."""
        doing = f"reducing the gradients of {unit.name}"
        gradient = unit.gradient
        with communicating(doing):
            works = [
                dist.reduce(gradient[part], owner, group=self._group, async_op=True)
                for owner, part in self._parts
            ]
        wait = _waiting(works, doing)

        def finish() -> None:
            wait()
            local = gradient[unit.start : unit.stop]
            unit.reduced.copy_(unit.reduced + local if add else local)

        return finish


class MessageSync:
    """A unit of which ranks hold different parts; sums are in rank order, bit for bit the same."""

    def __init__(self, peers: Peers, rank: int, moves: UnitMoves) -> None:
        self._peers, self._rank, self._moves = peers, rank, moves

    def all_gather(self, unit: Unit) -> Finish:
        """Start sending the owned parts and receiving the parts that this rank computes with."""
        owned = unit.master.to(unit.dtype) if self._moves.gather_to else unit.master
        return self.start_gather(owned, unit.start, unit.flat)

    def start_gather(self, owned: Tensor, first: int, held: Tensor) -> Finish:
        """Start filling ``held``; ``owned``: the elements from ``first`` on, in its dtype."""
        moves = self._moves
        sends, receives = [], []
        unpacking: list[tuple[Tensor, Pieces]] = []
        for message in moves.gather_to:
            packed = concatenate_flat(
                [owned[p.start - first : p.stop - first] for p in message.pieces]
            )
            for holder in message.ranks:
                if holder == self._rank:
                    unpacking.append((packed, message.pieces))
                else:
                    sends.append((packed, holder))
        for message in moves.gather_from:
            (owner,) = message.ranks
            if owner == self._rank:
                continue
            if len(message.pieces) == 1:
                start, stop, local = message.pieces[0]
                receives.append((held[local : local + stop - start], owner))
            else:
                buffer = held.new_empty(_elements(message.pieces))
                receives.append((buffer, owner))
                unpacking.append((buffer, message.pieces))
        transfer = self._peers.transfer(sends, receives)

        def finish() -> None:
            transfer.wait()
            with torch.no_grad():
                for packed, pieces in unpacking:
                    at = 0
                    for start, stop, local in pieces:
                        size = stop - start
                        held[local : local + size] = packed[at : at + size]
                        at += size

        return finish

    def reduce_scatter(self, unit: Unit, *, add: bool = False) -> Finish:
        """Start sending the gradients of held parts and receiving those of owned parts."""
        return self.start_reduce(unit.gradient, unit.reduced, unit.start, add=add)

    def start_reduce(
        self, gradient: Tensor, reduced: Tensor, first: int, *, add: bool = False
    ) -> Finish:
        """Start summing gradients into ``reduced``, of the elements from ``first`` on."""
        moves = self._moves
        sends, receives = [], []
        contributions: dict[int, tuple[Tensor, Pieces]] = {}
        for message in moves.reduce_to:
            (owner,) = message.ranks
            parts = [gradient[p.local : p.local + p.stop - p.start] for p in message.pieces]
            packed = concatenate_flat(parts)
            if owner == self._rank:
                contributions[owner] = packed, message.pieces
            else:
                sends.append((packed, owner))
        for message in moves.reduce_from:
            for source in message.ranks:
                if source != self._rank:
                    buffer = reduced.new_empty(_elements(message.pieces))
                    receives.append((buffer, source))
                    contributions[source] = buffer, message.pieces
        transfer = self._peers.transfer(sends, receives)

        def finish() -> None:
            transfer.wait()
            if not add:
                reduced.zero_()
            for source in sorted(contributions):
                packed, pieces = contributions[source]
                at = 0
                for start, stop, _ in pieces:
                    size, low = stop - start, start - first
                    reduced[low : low + size] += packed[at : at + size]
                    at += size
            contributions.clear()

        return finish


class Rail:
    """The ranks of this one's place in their nodes, over which it relays units.

    ``elements``: of the largest unit in all its ranks' slices, in ``dtype``. On CUDA units pass
    through two buffers of that size, so that one travels between nodes while the one before is
    distributed within the node; each waits for the one before the last.
    """

    def __init__(self, group: dist.ProcessGroup, elements: int, dtype: torch.dtype) -> None:
        self.group = group
        self.nodes = dist.get_world_size(group)
        self._size = elements * dtype.itemsize
        self._buffers: list[tuple[Tensor, torch.cuda.Event | None]] = []

    def relay(
        self,
        elements: int,
        dtype: torch.dtype,
        device: torch.device,
        *steps: tuple[str, Callable[[Tensor], None]],
    ) -> Finish:
        """Run steps on a buffer, each on the CUDA stream of its name.

        The host waits for none; the returned function lets the current stream wait for all.
        """
        if not self._buffers:
            self._buffers = [
                (torch.empty(self._size, dtype=torch.uint8, device=device), None) for _ in range(2)
            ]
        buffer, done = self._buffers.pop(0)
        for name, step in steps:
            stream = copy_stream(device, name)
            stream.wait_stream(torch.cuda.current_stream(device))
            if done is not None:
                stream.wait_event(done)
            with torch.cuda.stream(stream):
                step(buffer[: elements * dtype.itemsize].view(dtype))
            done = stream.record_event()
        self._buffers.append((buffer, done))

        def finish() -> None:
            if done is not None:
                torch.cuda.current_stream(device).wait_event(done)

        return finish


class RelayedSync:
    """Syncs a unit over the rail of this rank and by messages within its node.

    On CUDA next to the device's other work (``Rail.relay``). Else a rank waits for parameters at
    once, and for gradients in the end: within its backward, others may wait for it.
    """

    def __init__(self, messages: MessageSync, rail: Rail) -> None:
        self._messages, self._rail = messages, rail

    def all_gather(self, unit: Unit) -> Finish:
        """Gather the rail's masters, and then the held parts of them."""

        def gather(relayed: Tensor) -> None:
            _start_gather(unit, relayed, self._rail.group)()

        def distribute(relayed: Tensor) -> None:
            self._messages.start_gather(relayed, 0, unit.flat)()

        elements = len(unit.master) * self._rail.nodes
        if unit.device.type == "cuda":
            return self._rail.relay(
                elements, unit.dtype, unit.device, (_BETWEEN, gather), (_WITHIN, distribute)
            )
        relayed = unit.flat.new_empty(elements)
        gather(relayed)
        distribute(relayed)
        return lambda: None

    def reduce_scatter(self, unit: Unit, *, add: bool = False) -> Finish:
        """Sum gradients at the node's relays, and then over the rail."""

        def start_sum(sums: Tensor) -> Finish:
            return self._messages.start_reduce(unit.gradient, sums, 0)

        def reduce(sums: Tensor) -> None:
            _start_reduce(unit, sums, self._rail.group, add=add)()

        elements = len(unit.reduced) * self._rail.nodes
        if unit.device.type == "cuda":
            return self._rail.relay(
                elements,
                unit.exact,
                unit.device,
                (_WITHIN, lambda sums: start_sum(sums)()),
                (_BETWEEN, reduce),
            )
        sums = unit.reduced.new_empty(elements)
        finish = start_sum(sums)

        def end() -> None:
            finish()
            reduce(sums)

        return end


def _start_gather(unit: Unit, into: Tensor, group: dist.ProcessGroup) -> Finish:
    """Start an all-gather of the masters of a group's ranks."""
    doing = f"gathering the parameters of {unit.name}"
    master = unit.master.to(unit.dtype)
    with communicating(doing):
        work = _ALL_GATHER(into, master, group=group, async_op=True)
    return _waiting([work], doing)


def _start_reduce(unit: Unit, gradient: Tensor, group: dist.ProcessGroup, *, add: bool) -> Finish:
    """Start a reduce-scatter of gradients to the owned sums of a group's ranks."""
    doing = f"reducing the gradients of {unit.name}"
    into = torch.empty_like(unit.reduced) if add else unit.reduced
    with communicating(doing):
        work = _REDUCE_SCATTER(into, gradient, group=group, async_op=True)
    wait = _waiting([work], doing)

    def finish() -> None:
        nonlocal gradient
        wait()
        del gradient  # which lives until it has been sent
        if add:
            unit.reduced.add_(into)

    return finish


def _elements(pieces: Pieces) -> int:
    return sum(piece.stop - piece.start for piece in pieces)


def _waiting(works: Sequence[dist.Work], doing: str) -> Finish:
    def finish() -> None:
        with communicating(doing):
            for work in works:
                work.wait()

    return finish
