"""Ring attention over documents of any length (USP Algorithm 1, inner loop; zigzag-balanced).

Keys and values travel while the kernel works on those at hand. Backward passes them round again,
and their gradients behind them, one hop later: after the last hop they are home.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seqplan.runtime.dtypes import accumulation_dtype
from seqplan.runtime.sequence_parallel.context import DeviceIndices
from seqplan.runtime.sequence_parallel.kernels import (
    Attended,
    Kernel,
    Partial,
    PartialGradients,
    Pieces,
    Rows,
)
from seqplan.runtime.sequence_parallel.peers import Peers, Transfer
from seqplan.runtime.sequence_parallel.ring_layout import Gathered, Passed, RingLayout


@dataclass(frozen=True, slots=True)
class Ring:
    """A rank's place on a ring: the layout of the micro-batch and the global ranks on the ring."""

    layout: RingLayout
    ranks: tuple[int, ...]
    peers: Peers
    kernel: Kernel
    indices: DeviceIndices

    @property
    def next(self) -> int:
        """The global rank that this one sends to."""
        return self.ranks[(self.layout.rank + 1) % self.layout.ring]

    @property
    def previous(self) -> int:
        """The global rank that this one receives from."""
        return self.ranks[self.layout.rank - 1]


def ring_forward(
    q: Tensor, k: Tensor, v: Tensor, ring: Ring, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute the output (tokens, heads, d) in q's dtype and log-sum-exp (tokens, heads)."""
    layout, kernel = ring.layout, ring.kernel
    dtype = accumulation_dtype(q.dtype)
    alone = layout.gathered is None and layout.passed is None
    out = torch.empty_like(q, dtype=q.dtype if alone else dtype)
    lse = q.new_empty(q.shape[:2], dtype=dtype)
    gathering = None if layout.gathered is None else _Gathering(k, v, ring, layout.gathered)
    passing = None if layout.passed is None else _Passing(k, v, ring, layout.passed)
    for rows, partial, partial_lse in kernel.forward(q, k, v, layout.own, causal=True, scale=scale):
        out[rows] = partial.to(out.dtype)
        lse[rows] = partial_lse
    if gathering is not None:
        keys, values = gathering.keys_and_values()
        pieces = gathering.layout.pieces
        _merge(out, lse, kernel.forward(q, keys, values, pieces, causal=False, scale=scale))
    if passing is not None:
        for pieces, keys, values in passing:
            _merge(out, lse, kernel.forward(q, keys, values, pieces, causal=False, scale=scale))
    return out.to(q.dtype), lse


def ring_backward(
    dout: Tensor, attended: Attended, ring: Ring, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of q, k and v in their dtype.

    ``attended``: this rank's own rows, with ``out`` and ``lse`` as ``ring_forward`` gave them.
    """
    layout, kernel = ring.layout, ring.kernel
    q, k, v = attended.q, attended.k, attended.v
    dtype = accumulation_dtype(q.dtype)
    dq = torch.zeros_like(q, dtype=dtype)
    dkv = k.new_zeros(k.shape[0], 2 * k.shape[1], k.shape[2], dtype=dtype)
    gathering = None if layout.gathered is None else _Gathering(k, v, ring, layout.gathered)
    passing = None if layout.passed is None else _Passing(k, v, ring, layout.passed)

    def gradients(
        keys: Tensor, values: Tensor, pieces: Pieces, *, causal: bool
    ) -> Iterator[PartialGradients]:
        attended_to = replace(attended, k=keys, v=values)
        return kernel.backward(dout, attended_to, pieces, causal=causal, scale=scale)

    _accumulate(dq, dkv, gradients(k, v, layout.own, causal=True))
    home: Transfer | None = None
    if gathering is not None:
        keys, values = gathering.keys_and_values()
        needed = dkv.new_zeros(keys.shape[0], *dkv.shape[1:])
        _accumulate(dq, needed, gradients(keys, values, gathering.layout.pieces, causal=False))
        home = gathering.send_home(needed)
    if passing is not None:
        travelling: Tensor | None = None
        transfer: Transfer | None = None
        for step, (pieces, keys, values) in enumerate(passing, start=1):
            mine = dkv.new_zeros(keys.shape[0], *dkv.shape[1:])
            _accumulate(dq, mine, gradients(keys, values, pieces, causal=False))
            if transfer is not None and travelling is not None:
                transfer.wait()
                mine += travelling
            travelling = dkv.new_empty(passing.rows_of(step + 1), *dkv.shape[1:])
            transfer = ring.peers.transfer([(mine, ring.next)], [(travelling, ring.previous)])
        if transfer is not None and travelling is not None:
            transfer.wait()
            _add(dkv, passing.own_rows, travelling)
    if gathering is not None and home is not None:
        gathering.receive_home(home, dkv)
    heads = k.shape[1]
    return dq.to(q.dtype), dkv[:, :heads].to(k.dtype), dkv[:, heads:].to(v.dtype)


class _Passing:
    """Keys and values on their way round the ring; iterating gives those of each step."""

    def __init__(self, k: Tensor, v: Tensor, ring: Ring, layout: Passed) -> None:
        self._ring = ring
        self._layout = layout
        self.own_rows: Rows = slice(None)
        if layout.rows is not None:
            self.own_rows = ring.indices.tensor("passed rows", layout.rows, k.device)
        self._kv = torch.cat((k[self.own_rows], v[self.own_rows]), dim=1)
        self._next = self._start(1)

    def rows_of(self, step: int) -> int:
        """Return how many rows travel of the rank whose keys and values are here at ``step``."""
        layout = self._ring.layout
        return self._layout.counts[(layout.rank - step) % layout.ring]

    def _start(self, step: int) -> tuple[Transfer, Tensor]:
        received = self._kv.new_empty(self.rows_of(step), *self._kv.shape[1:])
        ring = self._ring
        return ring.peers.transfer([(self._kv, ring.next)], [(received, ring.previous)]), received

    def __iter__(self) -> Iterator[tuple[Pieces, Tensor, Tensor]]:
        heads = self._kv.shape[1] // 2
        for step, pieces in enumerate(self._layout.pieces, start=1):
            transfer, received = self._next
            transfer.wait()
            self._kv = received
            if step < self._ring.layout.ring - 1:
                self._next = self._start(step + 1)
            yield pieces, received[:, :heads], received[:, heads:]


class _Gathering:
    """Keys and values of short documents, from every rank of the ring to every other."""

    def __init__(self, k: Tensor, v: Tensor, ring: Ring, layout: Gathered) -> None:
        self._ring = ring
        self.layout = layout
        self._rows = ring.indices.tensor("gathered rows", layout.rows, k.device)
        self._order = ring.indices.tensor("gathered order", layout.order, k.device)
        self._heads = k.shape[1]
        mine = torch.cat((k[self._rows], v[self._rows]), dim=1)
        self._all = mine.new_empty(sum(layout.counts), *mine.shape[1:])
        parts = torch.split(self._all, list(layout.counts))
        others = self._others()
        self._transfer = ring.peers.transfer(
            [(mine, ring.ranks[member]) for member in others],
            [(parts[member], ring.ranks[member]) for member in others],
        )

    def _others(self) -> list[int]:
        layout = self._ring.layout
        return [member for member in range(layout.ring) if member != layout.rank]

    def keys_and_values(self) -> tuple[Tensor, Tensor]:
        """Wait for those that this rank's queries need, in the order of the layout's pieces."""
        self._transfer.wait()
        needed = self._all.index_select(0, self._order)
        return needed[:, : self._heads], needed[:, self._heads :]

    def send_home(self, gradients: Tensor) -> Transfer:
        """Send the gradients of the needed rows to the ranks that they came from."""
        spread = gradients.new_zeros(sum(self.layout.counts), *gradients.shape[1:])
        spread[self._order] = gradients  # a row is needed once at most
        parts = torch.split(spread, list(self.layout.counts))
        others, ranks = self._others(), self._ring.ranks
        mine = self.layout.counts[self._ring.layout.rank]
        self._received = [gradients.new_empty(mine, *gradients.shape[1:]) for _ in others]
        return self._ring.peers.transfer(
            [(parts[member], ranks[member]) for member in others],
            [
                (received, ranks[member])
                for received, member in zip(self._received, others, strict=True)
            ],
        )

    def receive_home(self, transfer: Transfer, dkv: Tensor) -> None:
        """Add what the other ranks computed for this rank's rows, in rank order."""
        transfer.wait()
        for received in self._received:
            _add(dkv, self._rows, received)


def _merge(out: Tensor, lse: Tensor, partials: Iterable[Partial]) -> None:
    """Merge partial results into a running output and log-sum-exp, in place."""
    for rows, partial, partial_lse in partials:
        before = lse[rows]
        weight = torch.sigmoid(partial_lse - before).unsqueeze(-1)
        merged = torch.lerp(out[rows], partial.to(out.dtype), weight)
        out[rows] = merged
        lse[rows] = torch.logaddexp(before, partial_lse)


def _accumulate(dq: Tensor, dkv: Tensor, partials: Iterable[PartialGradients]) -> None:
    heads = dkv.shape[1] // 2
    for q_rows, k_rows, dq_part, dk_part, dv_part in partials:
        _add(dq, q_rows, dq_part)
        _add(dkv[:, :heads], k_rows, dk_part)
        _add(dkv[:, heads:], k_rows, dv_part)


def _add(total: Tensor, rows: Rows, part: Tensor) -> None:
    if isinstance(rows, slice):
        total[rows] += part.to(total.dtype)
    else:
        total.index_add_(0, rows, part.to(total.dtype))
