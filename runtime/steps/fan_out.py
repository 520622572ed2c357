"""One rank asks for the views of all and hands them out through the job's store.

So a job needs one connection to the planning service, or one reader of the plan file, and a
failure or the end of plans reaches every rank. Rank 0's ``view`` asks the inner source for every
rank's view and sets one key for each other rank; a rank deletes its key when it has read it, so
that nothing grows.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from seqplan.plans.views.decode_view import decode_view
from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.errors import EndOfPlans, PlanError, PlanTimeout
from seqplan.runtime.steps.source import JobSource

_VIEW, _END, _FAILURE = b"V", b"E", b"F"

_LONGEST_PAUSE_S = 0.05
"""Between two looks at the store: a late plan is noticed within this time."""

LAST_ACKS_S = 2.0
"""How long closing waits for the other ranks' last acknowledgements."""


class FanOutSource:
    """The views of one rank, of which rank 0 gets all from the source that ``inner_factory`` makes.

    ``inner_factory`` is called on rank 0 only, at the first ``view``, so that its failure reaches
    every rank. ``store``: the job's; it is used through a clone. All ranks
    make their sources of a store in the same order and ask for ascending steps, each once;
    ``view`` is for the rank's own view. A time-out of the inner source is rank 0's alone, the
    others time out by themselves.
    """

    def __init__(
        self, inner_factory: Callable[[], JobSource], store: Store, rank: int, world_size: int
    ) -> None:
        self._make_inner = inner_factory
        self._rank = rank
        self._world_size = world_size
        self._closed = threading.Event()
        self._inner: JobSource | None = None
        self._inner_lock = threading.Lock()
        self._pending: dict[int, str | None] = {}  # steps that rank 0 has acknowledged: digests
        # Keys of an earlier source, which may have been left in the middle, must not be read.
        generation = store.add(f"seqplan/sources/{rank}", 1)
        self._store = store  # the clone would outlive the server that may be in it
        # A connection of its own: on the job's, looks would wait while the main thread waits. Both
        # threads here share it, as nothing here waits in the store.
        clone = store.clone()  # type: ignore[attr-defined] # torch's stub lacks it
        self._views = PrefixStore(f"seqplan/{generation}/views", clone)
        self._acks = PrefixStore(f"seqplan/{generation}/acks", clone)
        self._next_unread: int | None = None

    def view(self, step: int, rank: int, timeout_s: float) -> RankView:
        if rank != self._rank:
            raise PlanError(f"step {step}: rank {self._rank} was asked for the view of rank {rank}")
        try:
            if self._rank == 0:
                return self._fan_out(step, timeout_s)
            return self._receive(step, timeout_s)
        except RuntimeError as error:  # of the store: lost with the process that holds it
            raise PlanError(f"step {step}: the job's store: {_line(error)}") from error

    def acknowledge(
        self, step: int, rank: int, digest: str | None, measured_ms: float | None = None
    ) -> None:
        """Count it in the store; rank 0 passes on what all ranks have acknowledged.

        A step is passed on with rank 0's next acknowledgement, or when it closes.
        """
        try:
            if measured_ms is not None:  # before it is counted: it is read when all are
                self._acks.set(f"{step}/{rank}", repr(measured_ms))
            self._acks.add(str(step), 1)
            if self._rank == 0:
                self._pending[step] = digest
                self._pass_on()
        except RuntimeError as error:
            raise PlanError(
                f"acknowledging step {step}: the job's store: {_line(error)}"
            ) from error

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        with suppress(RuntimeError, PlanError):  # the others may be gone, with the store
            deadline = time.monotonic() + LAST_ACKS_S
            while self._pending:
                self._pass_on()
                if not self._pending or time.monotonic() >= deadline:
                    break
                time.sleep(_LONGEST_PAUSE_S)
        with suppress(RuntimeError):
            while self._next_unread is not None and self._views.delete_key(
                self._key(self._next_unread, self._rank)
            ):
                self._next_unread += 1
        with self._inner_lock:
            inner = self._inner
        if inner is not None:
            inner.close()

    def _fan_out(self, step: int, timeout_s: float) -> RankView:
        deadline = time.monotonic() + timeout_s
        try:
            with self._inner_lock:
                if self._closed.is_set():
                    raise PlanError(f"step {step}: the source is closed")
                if self._inner is None:
                    self._inner = self._make_inner()
            # All before any is handed out: after a time-out the step is asked for anew.
            views = [
                self._inner.view(step, rank, max(0.0, deadline - time.monotonic()))
                for rank in range(self._world_size)
            ]
        except PlanTimeout:
            raise
        except EndOfPlans as end:
            self._publish(step, [_END + str(end).encode()] * self._world_size)
            raise
        except (PlanError, ValueError, OSError) as error:
            self._publish(step, [_FAILURE + _line(error).encode()] * self._world_size)
            raise error if isinstance(error, PlanError) else PlanError(_line(error)) from error
        self._publish(step, [_VIEW + _packed(view) for view in views])
        return views[0]

    def _publish(self, step: int, messages: list[bytes]) -> None:
        for rank in range(1, self._world_size):
            self._views.set(self._key(step, rank), messages[rank])  # type: ignore[arg-type]

    def _receive(self, step: int, timeout_s: float) -> RankView:
        key = self._key(step, self._rank)
        self._next_unread = step
        deadline = time.monotonic() + timeout_s
        pause = 0.001
        # Looking, not waiting in the store: a wait could not be ended by close().
        while not self._views.check([key]):
            if time.monotonic() >= deadline:
                raise PlanTimeout(f"step {step}: nothing from rank 0 within {timeout_s:g} s")
            if self._closed.wait(min(pause, max(0.0, deadline - time.monotonic()))):
                raise PlanError(f"step {step}: the source is closed")
            pause = min(1.5 * pause, _LONGEST_PAUSE_S)
        message = self._views.get(key)
        self._views.delete_key(key)
        self._next_unread = step + 1
        tag, content = message[:1], message[1:]
        if tag == _END:
            raise EndOfPlans(content.decode())
        if tag == _FAILURE:
            raise PlanError(content.decode())
        return decode_view(json.loads(zlib.decompress(content)), origin=f"step {step} from rank 0")

    def _pass_on(self) -> None:
        for step in sorted(self._pending):
            if self._acks.add(str(step), 0) < self._world_size:
                return
            digest = self._pending.pop(step)
            self._acks.delete_key(str(step))
            assert self._inner is not None  # it has given the view of this step
            times = [self._measured_ms(f"{step}/{rank}") for rank in range(self._world_size)]
            self._inner.acknowledge_all(step, digest, times)

    def _measured_ms(self, key: str) -> float | None:
        if not self._acks.check([key]):
            return None
        measured_ms = float(self._acks.get(key))
        self._acks.delete_key(key)
        return measured_ms

    @staticmethod
    def _key(step: int, rank: int) -> str:
        return f"{step}/{rank}"


def _packed(view: RankView) -> bytes:
    return zlib.compress(json.dumps(view.to_dict(), separators=(",", ":")).encode(), 1)


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
