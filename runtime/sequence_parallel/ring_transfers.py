"""How keys and values get to the ranks of a ring that need them, and their gradients home.

Both are rows of flat heads, keys before values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from seqplan.runtime.sequence_parallel.context import DeviceIndices
from seqplan.runtime.sequence_parallel.fetch_layout import Fetch
from seqplan.runtime.sequence_parallel.kernels import Pieces, Rows
from seqplan.runtime.sequence_parallel.kernels.rows import ALL, compact_queries, take_rows
from seqplan.runtime.sequence_parallel.masks import Mask
from seqplan.runtime.sequence_parallel.peers import Peers, Transfer
from seqplan.runtime.sequence_parallel.ring_layout import Passed, RingLayout
from seqplan.runtime.sequence_parallel.ring_sums import KeyGradients, add_rows, rows_of_ranges


@dataclass(frozen=True, slots=True)
class RingPlace:
    """A rank's place on a ring: its layout, by which mask, and the global ranks on the ring."""

    layout: RingLayout
    mask: Mask
    ranks: tuple[int, ...]
    peers: Peers
    indices: DeviceIndices

    @property
    def next(self) -> int:
        """The global rank that this one sends to."""
        return self.ranks[(self.layout.rank + 1) % self.layout.ring]

    @property
    def previous(self) -> int:
        """The global rank that this one receives from."""
        return self.ranks[self.layout.rank - 1]

    def compact(self, pieces: Pieces, like: Tensor) -> tuple[Rows, Pieces]:
        """Return the query rows of ``pieces`` and the pieces counted in them, of ``like``'s."""
        ranges, compact = compact_queries(pieces)
        return rows_of_ranges(ranges, like.shape[0], self.indices, like.device), compact


class Passing:
    """Keys and values on their way round the ring; iterating gives those of each step."""

    def __init__(self, rows: Tensor, place: RingPlace, layout: Passed) -> None:
        self._place = place
        self._layout = layout
        self._own_rows: Rows = ALL
        if layout.rows is not None:
            name = (place.mask, "passed rows")
            self._own_rows = place.indices.rows(name, layout.rows, rows.device)
        self._rows = take_rows(rows, self._own_rows)
        self._arriving = self._start(1)
        self._gradients: tuple[Transfer, Tensor] | None = None

    def _count(self, step: int) -> int:
        """Return how many rows travel of the keys and values present at ``step``."""
        layout = self._place.layout
        return self._layout.counts[(layout.rank - step) % layout.ring]

    def _start(self, step: int) -> tuple[Transfer, Tensor]:
        return self._send_on(self._rows, self._count(step))

    def _send_on(self, rows: Tensor, receiving: int) -> tuple[Transfer, Tensor]:
        received = rows.new_empty(receiving, rows.shape[1])
        place = self._place
        sends, receives = [(rows, place.next)], [(received, place.previous)]
        return place.peers.transfer(sends, receives), received

    def __iter__(self) -> Iterator[tuple[Pieces, Tensor]]:
        for step, pieces in enumerate(self._layout.pieces, start=1):
            transfer, received = self._arriving
            transfer.wait()
            self._rows = received
            if step < self._place.layout.ring - 1:
                self._arriving = self._start(step + 1)
            yield pieces, received

    def send_on(self, step: int, gradients: KeyGradients) -> None:
        """Add to the traveling gradients of ``step`` and pass them on.

        They are of the same rows, one hop behind.
        """
        if self._gradients is None:
            total = gradients.flat(self._rows)
        else:
            transfer, travelling = self._gradients
            transfer.wait()
            total = gradients.add_to(travelling)
        self._gradients = self._send_on(total, self._count(step + 1))

    def add_home(self, total: Tensor) -> None:
        """Add what came home after the last step to this rank's rows."""
        if self._gradients is not None:
            transfer, travelling = self._gradients
            transfer.wait()
            add_rows(total, self._own_rows, travelling)


class Fetching:
    """Keys and values received in one transfer, and the local ones needed.

    Rows that several ranks need are taken out once.
    """

    def __init__(self, rows: Tensor, place: RingPlace, name: str, fetch: Fetch) -> None:
        def key(part: object) -> tuple[object, ...]:
            return place.mask, name, part

        indices, device = place.indices, rows.device
        self._place = place
        self._counts = list(fetch.counts)
        ring, rank = place.layout.ring, place.layout.rank
        self._others = [member for member in range(ring) if member != rank]
        self._sent: dict[int, Rows] = {}
        sends: dict[int, Tensor] = {}
        taken: dict[int, int] = {}  # rows that several members need, by the first of these
        for member in self._others:
            first = taken.setdefault(id(fetch.sent[member]), member)
            if first == member:
                self._sent[member] = indices.rows(key(member), fetch.sent[member], device)
                sends[member] = take_rows(rows, self._sent[member])
            else:
                self._sent[member], sends[member] = self._sent[first], sends[first]
        self._shared = len(taken) == 1
        self._sizes = {member: len(fetch.sent[member]) for member in self._others}
        self._local = indices.tensor(key("local"), fetch.local, device)
        self._order = indices.tensor(key("order"), fetch.order, device)
        self._rows = rows
        self._received = rows.new_empty(sum(self._counts), rows.shape[1])
        self._transfer = self._exchange(sends, self._by_member(self._received))
        self._home = rows.new_empty(0)

    def _by_member(self, rows: Tensor) -> dict[int, Tensor]:
        parts = torch.split(rows, self._counts)
        return {member: parts[member] for member in self._others}

    def _exchange(self, sends: dict[int, Tensor], receives: dict[int, Tensor]) -> Transfer:
        ranks = self._place.ranks
        return self._place.peers.transfer(
            [(part, ranks[member]) for member, part in sends.items()],
            [(part, ranks[member]) for member, part in receives.items()],
        )

    def wait_for_needed(self) -> Tensor:
        """Wait for the rows that this rank's queries need, in layout order."""
        self._transfer.wait()
        rows = self._received
        if len(self._local):
            rows = torch.cat((self._rows.index_select(0, self._local), rows))
        return rows.index_select(0, self._order)

    def send_home(self, gradients: Tensor, total: Tensor) -> None:
        """Add the gradients of the needed rows to ``total`` or return them to their ranks."""
        local = len(self._local)
        shape = local + sum(self._counts), gradients.shape[1]
        whole = len(self._order) == shape[0]  # a row is needed once at most
        spread = gradients.new_empty(shape) if whole else gradients.new_zeros(shape)
        spread.index_copy_(0, self._order, gradients)
        if local:
            add_rows(total, self._local, spread[:local])
        self._home = gradients.new_empty(sum(self._sizes.values()), gradients.shape[1])
        self._transfer = self._exchange(self._by_member(spread[local:]), self._split_home())

    def _split_home(self) -> dict[int, Tensor]:
        parts = torch.split(self._home, list(self._sizes.values()))
        return dict(zip(self._others, parts, strict=True))

    def add_home(self, total: Tensor) -> None:
        """Add what the other ranks computed for this rank's rows.

        In rank order, if they had different rows. Of the same rows they are summed first.
        """
        self._transfer.wait()
        if self._shared:
            first = self._others[0]
            shape = len(self._others), self._sizes[first], self._home.shape[1]
            add_rows(total, self._sent[first], self._home.view(shape).sum(0))
            return
        for member, gradients in self._split_home().items():
            add_rows(total, self._sent[member], gradients)
