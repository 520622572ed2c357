"""Streams on which nothing runs, and the order of the work that they got.

Every stream has a clock, and an event the clocks that its stream had seen: as far as others may
take a storage that was written on it, and write one that was read on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch

_numbers = itertools.count()


class FakeEvent:
    """An event that has happened."""

    waited: Callable[[str], None]
    """Counts a wait of the host."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.seen: dict[int, int] = {}

    def record(self, stream: FakeStream | None = None) -> None:
        self.seen = (stream or FakeStream.current()).snapshot()

    def wait(self, stream: FakeStream | None = None) -> None:
        (stream or FakeStream.current()).wait_event(self)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        FakeEvent.waited("event.synchronize")

    def elapsed_time(self, other: Any) -> float:
        return 1.0


class FakeStream:
    """A stream; ``stack``: those that are current, the default one first."""

    cuda_stream = 0
    stack: list[FakeStream]

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = torch.device("cuda", 0)
        self.number, self.clock = next(_numbers), 0
        self.seen: dict[int, int] = {}

    @classmethod
    def current(cls, *_: Any) -> FakeStream:
        return cls.stack[-1]

    @classmethod
    def default(cls, *_: Any) -> FakeStream:
        return cls.stack[0]

    def advance(self) -> tuple[int, int]:
        """Submit work; the stream's number and clock."""
        self.clock += 1
        return self.number, self.clock

    def has_seen(self, work: tuple[int, int]) -> bool:
        """Whether later work here comes after ``work``."""
        number, clock = work
        return number == self.number or self.seen.get(number, 0) >= clock

    def snapshot(self) -> dict[int, int]:
        return {**self.seen, self.number: self.clock}

    def wait_stream(self, stream: FakeStream) -> None:
        self._join(stream.snapshot())

    def wait_event(self, event: FakeEvent) -> None:
        self._join(event.seen)

    def record_event(self, event: FakeEvent | None = None) -> FakeEvent:
        event = event or FakeEvent()
        event.record(self)
        return event

    def synchronize(self) -> None:
        FakeEvent.waited("stream.synchronize")

    def __enter__(self) -> FakeStream:
        FakeStream.stack.append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        FakeStream.stack.pop()

    def _join(self, seen: dict[int, int]) -> None:
        for number, clock in seen.items():
            self.seen[number] = max(self.seen.get(number, 0), clock)


FakeStream.stack = [FakeStream()]


class StorageOrder:
    """Which work has written each storage, and which has read it since."""

    def __init__(self) -> None:
        self._written: dict[int, tuple[int, int]] = {}
        self._read: dict[int, dict[int, int]] = {}

    def find_fault(
        self, read: Iterable[torch.Tensor], written: Iterable[torch.Tensor]
    ) -> str | None:
        """Submit work to the current stream; describe a storage that it takes too early."""
        stream = FakeStream.current()
        number, clock = work = stream.advance()
        fault = None
        for tensor in read:
            storage = tensor.untyped_storage()._cdata
            before = self._written.get(storage)
            if before is not None and not stream.has_seen(before):
                fault = "used before another stream has written it"
            self._read.setdefault(storage, {})[number] = clock
        for tensor in written:
            storage = tensor.untyped_storage()._cdata
            if not all(map(stream.has_seen, self._read.pop(storage, {}).items())):
                fault = "written before another stream has read it"
            self._written[storage] = work
        return fault

    def forget(self, storage: int) -> None:
        """Forget a storage that is gone."""
        self._written.pop(storage, None)
        self._read.pop(storage, None)
