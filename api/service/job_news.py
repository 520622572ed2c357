"""Events from other threads for the planning thread of a job, and its waiting for them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence

_PUSH_S = 0.2
"""How long to wait for batches before the store is read again."""


class JobNews:
    """Acknowledgements, pushed batches and the end, as they come; from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._done: list[int] = []
        self._look = False
        self.stopped = False
        self.ahead = 0
        """Steps planned beyond the slowest rank, as of the last look of the planning thread."""

    def stop(self) -> None:
        """Have planning end now."""
        with self._changed:
            self.stopped = True
            self._changed.notify()

    def add_acknowledged(self, done: Iterable[tuple[int, int]]) -> None:
        """Note the steps that ranks have done, as (step, rank)."""
        with self._changed:
            for step, rank in done:
                if rank < len(self._done):
                    self._done[rank] = max(self._done[rank], step)
            self._changed.notify()

    def add_batches(self) -> None:
        """Note that the store has more batches of the job, or knows its last step."""
        with self._changed:
            self._changed.notify()

    def look_again(self) -> None:
        """Note that another service may have taken acknowledgements or batches of the job."""
        with self._changed:
            self._look = True
            self._changed.notify()

    def begin(self, world_size: int, lost: Iterable[int] = ()) -> None:
        """Note how many ranks there are, and forget what they have done.

        Nothing waits for ``lost`` ranks. The job may be another of its name; what its ranks have
        done is read from the store next.
        """
        with self._changed:
            self._done = [-1] * world_size
            for rank in lost:
                self._done[rank] = sys.maxsize

    def add_done(self, steps: Sequence[int]) -> None:
        """Take over the last step that each rank has done, as the store knows it."""
        with self._changed:
            for rank, step in enumerate(steps):
                self._done[rank] = max(self._done[rank], step)

    def take_look(self) -> bool:
        """Return whether to read acknowledgements from the store, and reset it."""
        look, self._look = self._look, False
        return look

    def slowest(self) -> int:
        """Return the last step that every rank has done, without lost ones; −1 for none."""
        return min(self._done)

    def wait(self, seconds: float) -> None:
        """Wait so long, or until there is news."""
        with self._changed:
            if not self.stopped:
                self._changed.wait(seconds)

    def wait_for_batches(self) -> None:
        """Wait until there may be batches."""
        with self._changed:
            # Between the look into the store and this wait a push may have come.
            self._changed.wait(_PUSH_S)

    def wait_for_room(self, slowest: int) -> None:
        """Wait until every rank is beyond ``slowest`` or planning must look or stop."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopped or self._look or self.slowest() > slowest)
