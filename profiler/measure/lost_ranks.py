"""Out of memory on some ranks only, while the others wait for them in a collective."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import torch.distributed as dist

PATIENCE_S = 60.0
"""How long a micro-batch may go on after a rank has run out of memory in it."""

HEAD_START_S = 10.0
"""What rank 0 has to write down what happened, before other ranks end and have it ended."""

_POLL_S = 0.5


class KeyValueStore(Protocol):
    """What all ranks read and write; torch's are."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


class Alarm:
    """Ends the ranks that wait in vain; every rank makes one and measures the same micro-batches.

    Mostly ranks run out of memory together, or those that do not get to the end of the micro-batch,
    and then nothing happens here. A collective, though, that one rank never comes to cannot be left
    but by ending the process: NCCL would do that after minutes, and the next run would try the same
    micro-batch again.
    """

    def __init__(
        self, store: KeyValueStore, rank: int, give_up: Callable[[int, int], None]
    ) -> None:
        """``give_up(index, rank)``: called on rank 0 with the micro-batch and who has no memory."""
        self._store, self._rank, self._give_up = store, rank, give_up
        self._changed = threading.Condition()
        self._running: int | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    @contextmanager
    def over(self, index: int) -> Iterator[None]:
        """Watch while micro-batch ``index`` is measured."""
        self._set(index)
        try:
            yield
        finally:
            self._set(None)

    def sound(self) -> None:
        """Signal to all ranks that this one is out of memory in the present micro-batch."""
        self._store.set(_key(self._running), str(self._rank))

    def _set(self, index: int | None) -> None:
        with self._changed:
            self._running = index
            self._changed.notify()

    def _watch(self) -> None:
        with suppress(dist.DistError):  # the store is gone, and with it the run
            self._watch_all()

    def _watch_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._running is not None)
                index = self._running
            if not self._store.check([_key(index)]):  # never waits: ranks share the store
                self._over_within(index, _POLL_S)
            elif not self._over_within(index, PATIENCE_S + HEAD_START_S * (self._rank > 0)):
                if self._rank == 0:
                    assert index is not None
                    self._give_up(index, int(self._store.get(_key(index))))
                os._exit(1)

    def _over_within(self, index: int | None, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._running != index, seconds)


def _key(index: int | None) -> str:
    return f"out of memory in {index}"
