"""The time that a step takes on ranks with a core each, from a run on ranks that share cores.

Each rank records its processor time at every start and wait of a transfer. ``replay`` runs these
records against each other: a rank advances by its own processor time, and a wait ends when the
slowest awaited message has been sent. Waits for peers, bubbles of stages and imbalance count as on
separate devices. Time on the wire does not count beyond the processor time of sending and
receiving. Direct-execution simulators of MPI programs do the same.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from unittest.mock import patch

from seqplan.runtime.sequence_parallel.peers import Peer, Peers, Transfer

Channel = tuple[str, int, int]
"""Messages that arrive in the order in which they leave: a communicator, sender and receiver."""


@dataclass(frozen=True, slots=True)
class Event:
    """A point in a rank's step, at ``seconds`` of its processor time.

    ``kind``: "start" of a transfer, "wait" for one, "meet" all ranks, or "end".
    """

    kind: str
    seconds: float
    transfer: int = -1
    sends: tuple[Channel, ...] = ()
    receives: tuple[Channel, ...] = ()


@dataclass
class StepRecord:
    """The events of one rank in one step; ``wall_s``: its wall time."""

    events: list[Event] = field(default_factory=list)
    wall_s: float = 0.0

    @property
    def processor_s(self) -> float:
        """Return the rank's processor time in the step."""
        return self.events[-1].seconds


@contextmanager
def record_step(rank: int, states: Any) -> Iterator[StepRecord]:
    """Record this rank's transfers; ranks meet when ``states`` begin to reduce gradients."""
    record = StepRecord()
    numbers = count()
    wall, processor = time.perf_counter(), time.process_time()
    transfer, wait, reduce_scatter = Peers.transfer, Transfer.wait, states.reduce_scatter
    started: dict[Transfer, int] = {}

    def add(kind: str, *details: Any) -> None:
        record.events.append(Event(kind, time.process_time() - processor, *details))

    def start(peers: Peers, sends: Sequence[Peer], receives: Sequence[Peer]) -> Transfer:
        name, number = peers._doing, next(numbers)
        sent = tuple((name, rank, to) for tensor, to in sends if tensor.numel())
        received = tuple((name, origin, rank) for tensor, origin in receives if tensor.numel())
        handle = transfer(peers, sends, receives)
        add("start", number, sent, received)
        started[handle] = number
        return handle

    def finish(handle: Transfer) -> None:
        wait(handle)
        if (number := started.pop(handle, None)) is not None:
            add("wait", number)

    def meet() -> None:
        add("meet")
        reduce_scatter()

    with (
        patch.object(Peers, "transfer", start),
        patch.object(Transfer, "wait", finish),
        patch.object(states, "reduce_scatter", meet),
    ):
        yield record
    add("end")
    record.wall_s = time.perf_counter() - wall


def replay(records: Sequence[StepRecord]) -> float:
    """Return the seconds of a step on ranks that have a core each; ``records`` by rank."""
    ranks = [_Rank(record.events) for record in records]
    sent: dict[Channel, list[float]] = defaultdict(list)
    while not all(rank.ended for rank in ranks):
        progress = [rank.advance(sent) for rank in ranks]
        meeting = [rank for rank in ranks if rank.meeting]
        if len(meeting) == len(ranks):
            latest = max(rank.clock for rank in ranks)
            for rank in ranks:
                rank.leave_meeting(latest)
        elif not any(progress):
            raise ValueError("a rank waits for a message that no rank sends")
    return max(rank.clock for rank in ranks)


class _Rank:
    """One rank's clock in a replay, and its place among its events."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events
        self._at = 0
        self._seconds = 0.0
        self._awaited: dict[int, list[tuple[Channel, int]]] = {}
        self._received: dict[Channel, int] = defaultdict(int)
        self.clock = 0.0
        self.meeting = False

    @property
    def ended(self) -> bool:
        """Whether all events are done."""
        return self._at == len(self._events)

    def advance(self, sent: dict[Channel, list[float]]) -> bool:
        """Run events until one has to wait; return whether any ran."""
        before = self._at
        while not self.ended and not self.meeting:
            event = self._events[self._at]
            arrivals = self._awaited.get(event.transfer, []) if event.kind == "wait" else []
            if any(place >= len(sent[channel]) for channel, place in arrivals):
                break
            # The processor time of a wait is that of receiving, which begins with the message.
            self.clock = max([self.clock, *(sent[channel][place] for channel, place in arrivals)])
            self._step(event)
            self.meeting = event.kind == "meet"
            if event.kind == "start":
                for channel in event.sends:
                    sent[channel].append(self.clock)
                self._awaited[event.transfer] = [
                    (channel, self._next(channel)) for channel in event.receives
                ]
        return self._at > before

    def leave_meeting(self, clock: float) -> None:
        """Leave a meeting that ends at ``clock``."""
        self.clock, self.meeting = clock, False

    def _step(self, event: Event) -> None:
        self.clock += event.seconds - self._seconds
        self._seconds = event.seconds
        self._at += 1

    def _next(self, channel: Channel) -> int:
        place = self._received[channel]
        self._received[channel] += 1
        return place
