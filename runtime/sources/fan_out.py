"""One rank requests whole plans and hands their views out through the job's store.

So a job needs one connection to the planning service, or one reader of the plan file, and a
failure or the end of plans reaches every rank. Rank 0's ``view`` gets the plan from the inner
source, makes every rank's view and sets one key for each other rank; a rank deletes its key when it
has read it, so that nothing grows. Acknowledgements of a step are lines of one key.
"""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from seqplan.plans.service_routes import check_seconds
from seqplan.plans.views.decode_view import decode_view
from seqplan.plans.views.rank_view import RankView, rank_view, views_json
from seqplan.runtime.errors import EndOfPlans, PlanError, PlanTimeout
from seqplan.runtime.sources.acknowledgements import OUTAGE_S
from seqplan.runtime.sources.http_source import FAN_OUT_RANKS, HttpSource
from seqplan.runtime.sources.source import JobSource, PlanSource

_VIEW, _END, _FAILURE = b"V", b"E", b"F"

_LONGEST_PAUSE_S = 0.05
"""Between two looks at the store: a late plan is noticed within this time."""

_LOOKS_PER_S = 20_000
"""Of all ranks together, at most: a store answers about 20,000 checks a second."""

LAST_ACKS_S = 5.0
"""How long closing waits for the other ranks' last acknowledgements."""


def open_job(
    base_url: str,
    job: str,
    token: str | None = None,
    *,
    fan_out_ranks: int = FAN_OUT_RANKS,
    outage_s: float = OUTAGE_S,
    queue_folder: str | os.PathLike[str] | None = None,
) -> PlanSource:
    """Open a job of a planning service for this rank of the default process group.

    In a job of ``fan_out_ranks`` ranks or more, rank 0 alone requests plans and sends
    acknowledgements; without a process group every rank does. ``outage_s``, ``queue_folder``: as
    of ``HttpSource``. ``ValueError`` for a URL or token that cannot be used.
    """
    world_size = dist.get_world_size() if dist.is_initialized() else None
    source = HttpSource(
        base_url,
        job,
        token,
        outage_s=outage_s,
        queue_folder=queue_folder,
        world_size=world_size,
    )
    if world_size is None or world_size < fan_out_ranks:
        return source
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    return FanOutSource(lambda: source, store, rank, world_size)


class FanOutSource:
    """Views of one rank, which rank 0 makes of its inner source's plans.

    ``inner_factory`` is called on rank 0 only, at the first ``view``, so that its failure reaches
    every rank. ``store``: the job's; it is used through a clone. All ranks
    make their sources of a store in the same order and request ascending steps, each once;
    ``view`` is for the rank's view. A time-out of the inner source is rank 0's alone, the
    others time out by themselves.
    """

    ahead_s = 600.0
    """Plans that a consumer fetches ahead, in seconds of predicted time."""

    def __init__(
        self, inner_factory: Callable[[], JobSource], store: Store, rank: int, world_size: int
    ) -> None:
        self._make_inner = inner_factory
        self._rank = rank
        self._world_size = world_size
        self._closed = threading.Event()
        self._inner: JobSource | None = None
        self._inner_lock = threading.Lock()
        self._pending: dict[int, str | None] = {}  # digests of steps to pass on
        self._longest_pause_s = max(_LONGEST_PAUSE_S, world_size / _LOOKS_PER_S)
        # Keys of an earlier source, which may have been left in the middle, must not be read.
        generation = store.add(f"seqplan/sources/{rank}", 1)
        self._store = store  # the clone would outlive the server that may be in it
        # A separate connection: on the job's, polls would wait while the main thread waits. Both
        # threads here share it, as nothing here waits in the store.
        clone = store.clone()  # type: ignore[attr-defined] # torch's stub lacks it
        self._views = PrefixStore(f"seqplan/{generation}/views", clone)
        self._acks = PrefixStore(f"seqplan/{generation}/acks", clone)
        self._next_unread: int | None = None

    def view(self, step: int, rank: int, timeout_s: float) -> RankView:
        if rank != self._rank:
            raise PlanError(f"step {step}: rank {self._rank} cannot return the view of rank {rank}")
        check_seconds("timeout_s", timeout_s)
        try:
            if self._rank == 0:
                return self._fan_out(step, timeout_s)
            return self._receive(step, timeout_s)
        except RuntimeError as error:  # of the store: lost with the process that holds it
            raise PlanError(f"step {step}: the job's store: {_line(error)}") from error

    def acknowledge(
        self, step: int, rank: int, digest: str | None, measured_ms: float | None = None
    ) -> None:
        """Add it to those in the store; rank 0 passes on steps that all have acknowledged.

        A step is passed on with rank 0's next acknowledgement, or when it closes. One that the
        inner source rejects is kept and passed on with the next.
        """
        try:
            line = f"{rank} {'' if measured_ms is None else repr(measured_ms)}\n"
            self._acks.append(str(step), line)  # type: ignore[attr-defined] # as clone above
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
            while self._pending and time.monotonic() < deadline:
                self._pass_on()
                if self._pending:
                    time.sleep(_LONGEST_PAUSE_S)
            self._pass_on(last=True)
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
            plan, digest = self._inner.plan(step, max(0.0, deadline - time.monotonic()))
            if plan.world_size != self._world_size:
                raise PlanError(
                    f"step {step}: is planned for {plan.world_size} ranks, "
                    f"the job has {self._world_size}"
                )
        except PlanTimeout:
            raise
        except EndOfPlans as end:
            self._publish(step, [_END + str(end).encode()] * self._world_size)
            raise
        except (PlanError, ValueError, OSError) as error:
            self._publish(step, [_FAILURE + _line(error).encode()] * self._world_size)
            raise error if isinstance(error, PlanError) else PlanError(_line(error)) from error
        views = views_json(plan, digest=digest)
        self._publish(step, [_VIEW + zlib.compress(view, 1) for view in views])
        return rank_view(plan, 0, digest=digest)

    def _publish(self, step: int, messages: list[bytes]) -> None:
        # One request: separate ones take a second per thousand.
        keys = [self._key(step, rank) for rank in range(1, self._world_size)]
        self._views.multi_set(keys, messages[1:])  # type: ignore[attr-defined]

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
            pause = min(1.5 * pause, self._longest_pause_s)
        message = self._views.get(key)
        self._views.delete_key(key)
        self._next_unread = step + 1
        tag, content = message[:1], message[1:]
        if tag == _END:
            raise EndOfPlans(content.decode())
        if tag == _FAILURE:
            raise PlanError(content.decode())
        return decode_view(json.loads(zlib.decompress(content)), origin=f"step {step} from rank 0")

    def _pass_on(self, *, last: bool = False) -> None:
        """Acknowledge the steps that all ranks have; if ``last``, for the ranks that have."""
        for step in sorted(self._pending):
            key = str(step)
            parts = [line.partition(" ") for line in self._acks.get(key).decode().splitlines()]
            times = {int(rank): float(ms) if ms else None for rank, _, ms in parts}
            if len(times) < self._world_size and not last:
                return
            assert self._inner is not None  # it has given the plan of this step
            self._inner.acknowledge_all(step, self._pending[step], times)
            del self._pending[step]
            self._acks.delete_key(key)

    @staticmethod
    def _key(step: int, rank: int) -> str:
        return f"{step}/{rank}"


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
