"""A rank's steps: views fetched and prepared ahead, each begun only when all ranks agree on it.

One thread fetches views, minutes ahead, so that training goes on while a planning service is away.
Another prepares the next few of them, as that takes memory.
"""

from __future__ import annotations

import pickle
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch.distributed as dist

from seqplan.plans.service_routes import check_seconds
from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.errors import EndOfPlans, PlanError, PlanTimeout, RankLost
from seqplan.runtime.sources.acknowledgements import OUTAGE_S
from seqplan.runtime.sources.agreement import Record, State, find_fault, one_line
from seqplan.runtime.sources.source import PlanSource

Prepared = TypeVar("Prepared")

AHEAD_BYTES = 64 << 20
"""Bytes of views that are kept ahead, as pickle writes them."""

JOIN_S = 5.0
"""How long closing waits for a source or a ``prepare`` that does not come back."""


@dataclass(frozen=True)
class Step(Generic[Prepared]):
    """What a rank runs next: its view and what ``prepare`` made of it."""

    view: RankView
    prepared: Prepared


@dataclass(frozen=True)
class _Fetched(Generic[Prepared]):
    """What a thread found for a step: the step itself or why there is none."""

    number: int
    step: Step[Prepared] | None
    stop: Exception | None = None


class _Ahead:
    """Room for views fetched ahead: at least ``steps``, more within the limits."""

    def __init__(self, steps: int, limit_ms: float, limit_bytes: int) -> None:
        self._steps, self._limit_ms, self._limit_bytes = steps, limit_ms, limit_bytes
        self._kept: deque[tuple[float, int]] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def wait_for_room(self) -> None:
        """Wait until another view may be fetched, or this is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_room())

    def add(self, view: RankView) -> None:
        """Count a view; its time is that of the rank's pipelines, as predicted."""
        time_ms = sum(pipeline.predicted_ms for pipeline in view.pipelines)
        size = len(pickle.dumps(view, pickle.HIGHEST_PROTOCOL)) if self._limit_ms else 0
        with self._changed:
            self._kept.append((time_ms, size))

    def remove_first(self) -> None:
        """Make room of the first view, which is handed out."""
        with self._changed:
            self._kept.popleft()
            self._changed.notify()

    def close(self) -> None:
        """End a wait."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _has_room(self) -> bool:
        times, sizes = ([entry[i] for entry in self._kept] for i in (0, 1))
        within = sum(times) < self._limit_ms and sum(sizes) < self._limit_bytes
        return len(self._kept) < self._steps or within


class PlanConsumer(Generic[Prepared]):
    """Iterates over the steps of ``rank``, from ``start_step`` on, until plans end on all ranks.

    A thread fetches views from ``source``, as many as last ``ahead_s`` seconds by their predicted
    times and take ``ahead_bytes``, at least ``prefetch``. Another calls ``prepare`` on the next
    ``prefetch`` of them: to check limits, to load tokens. ``ahead_s`` is the source's by default,
    0 for plan files. Before a step is handed out all ranks of
    ``control_group`` compare their steps. If one has failed (its source, its ``prepare``, no
    step within ``timeout_s`` of the call) or they differ (step, end, digest), **every** rank raises
    ``PlanError`` with the first failing rank's number and message; none is left waiting. A rank
    that is gone is ``RankLost``. Before the first step ranks compare tokens of its samples, if
    ``prepare`` is a ``DataPreparer``.

    ``control_group``: gloo, over all ranks in order, used by nothing else while a step is
    requested; its time-out must exceed ``timeout_s`` and the difference between the ranks' steps.
    None if ``world_size`` is 1. The consumer closes ``source``. Close it, or use it in a
    ``with`` block, or its thread stays. ``ValueError`` for arguments that do not fit.
    """

    def __init__(
        self,
        source: PlanSource,
        *,
        rank: int,
        world_size: int,
        prepare: Callable[[RankView], Prepared],
        control_group: dist.ProcessGroup | None,
        start_step: int = 0,
        prefetch: int = 2,
        timeout_s: float = OUTAGE_S,
        ahead_s: float | None = None,
        ahead_bytes: int = AHEAD_BYTES,
    ) -> None:
        if prefetch < 1:
            raise ValueError(f"prefetch must be at least 1, not {prefetch}")
        check_seconds("timeout_s", timeout_s)
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be in 0 … {world_size - 1}, not {rank}")
        if control_group is None and world_size > 1:
            raise ValueError(f"control_group: {world_size} ranks need one to agree")
        if control_group is not None and control_group.size() != world_size:
            raise ValueError(
                f"control_group: has {control_group.size()} ranks, the world {world_size}"
            )
        self._source = source
        self._rank = rank
        self._world_size = world_size
        self._prepare = prepare
        self._group = control_group
        self._next_step = start_step
        self._timeout_s = timeout_s
        self._fetched: queue.SimpleQueue[_Fetched[Prepared]] = queue.SimpleQueue()
        self._room = threading.Semaphore(prefetch)
        if ahead_s is None:
            ahead_s = float(getattr(source, "ahead_s", 0.0))
        self._ahead = _Ahead(prefetch, 1e3 * ahead_s, ahead_bytes)
        self._views: queue.SimpleQueue[RankView | _Fetched[Prepared] | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._doing = "starting"  # what the first thread does, for the message of a time-out
        self._preparing = False
        self._digests: dict[int, str | None] = {}  # of steps handed out, not acknowledged
        self._ack_failure: str | None = None
        self._compared = False
        self._over: Exception | None = None
        self._threads = [
            threading.Thread(
                target=self._fetch, args=(start_step,), name=f"plans of rank {rank}", daemon=True
            ),
            threading.Thread(
                target=self._prepare_steps, name=f"plans of rank {rank}, prepared", daemon=True
            ),
        ]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[Step[Prepared]]:
        return self

    def __next__(self) -> Step[Prepared]:
        """Return the next step. Collective; ``PlanError`` on all ranks or on none."""
        if self._closed.is_set():
            raise PlanError("the consumer is closed")
        if isinstance(self._over, EndOfPlans):
            raise StopIteration
        if self._over is not None:
            raise PlanError(f"after a failure no step follows: {self._over}")
        number = self._next_step
        fetched = self._await(number)
        try:
            view = None if self._compared or fetched.step is None else fetched.step.view
            fault = find_fault(self._record(fetched), self._group, self._prepare, view)
            self._compared = True
        except RankLost as loss:
            self._over = loss
            raise
        if fault is not None:
            self._over = PlanError(fault)
            raise self._over from fetched.stop
        if fetched.step is None:
            self._over = EndOfPlans(f"before step {number}")
            raise StopIteration
        self._room.release()
        self._ahead.remove_first()
        self._next_step = number + 1
        self._digests[number] = fetched.step.view.digest
        return fetched.step

    def acknowledge(self, step: int, measured_ms: float | None = None) -> None:
        """Report that this rank has done ``step``, after its optimizer step.

        ``measured_ms``: what it spent on its micro-batches (``StepResult.compute_s`` in ms), where
        it had any; a planning service holds it against the profile's prediction.
        A failure is not raised here, on one rank alone, but on all at the next step. ``ValueError``
        for a step that was not handed out or is acknowledged already.
        """
        if step not in self._digests:
            raise ValueError(f"step {step} was not handed out, or is acknowledged already")
        try:
            self._source.acknowledge(step, self._rank, self._digests.pop(step), measured_ms)
        except Exception as error:
            self._ack_failure = self._ack_failure or one_line(error)

    def close(self) -> None:
        """End the thread and close the source. Idempotent, and safe after any failure."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._room.release()
        self._ahead.close()
        self._views.put(None)
        self._source.close()
        # A source ends its waiting when it is closed. One that does not may not hold up the end of
        # the process: the threads are daemons.
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(JOIN_S)

    def __enter__(self) -> PlanConsumer[Prepared]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _await(self, number: int) -> _Fetched[Prepared]:
        try:
            return self._fetched.get(timeout=self._timeout_s)
        except queue.Empty:
            doing = "preparing it" if self._preparing else self._doing
            return _Fetched(
                number,
                None,
                PlanTimeout(f"step {number}: not there after {self._timeout_s:g} s, {doing}"),
            )

    def _record(self, fetched: _Fetched[Prepared]) -> Record:
        # Also at the end: nothing later could report the last acknowledgement.
        if self._ack_failure is not None:
            return Record(State.FAILED, fetched.number, message=self._ack_failure)
        if fetched.step is not None:
            return Record(State.READY, fetched.number, fetched.step.view.digest or "")
        if isinstance(fetched.stop, EndOfPlans):
            return Record(State.END, fetched.number)
        assert fetched.stop is not None
        return Record(State.FAILED, fetched.number, message=one_line(fetched.stop))

    def _fetch(self, number: int) -> None:
        """Fetch one view after another, until one cannot be had: the first thread."""
        while True:
            self._ahead.wait_for_room()
            if self._closed.is_set():
                return
            try:
                view = self._view(number)
            except Exception as stop:
                # Whatever it is, the other ranks must learn of it.
                self._views.put(_Fetched(number, None, stop))
                return
            self._ahead.add(view)
            self._views.put(view)
            number += 1

    def _prepare_steps(self) -> None:
        """Prepare one step after another, until one fails: the second thread."""
        while True:
            self._room.acquire()
            view = self._views.get()
            if self._closed.is_set() or view is None:
                return
            if isinstance(view, _Fetched):
                self._fetched.put(view)
                return
            self._preparing = True
            try:
                self._fetched.put(_Fetched(view.step, Step(view, self._prepare(view))))
            except Exception as stop:
                # A fault of ``prepare``, too: the other ranks must learn of it.
                self._fetched.put(_Fetched(view.step, None, stop))
                return
            self._preparing = False

    def _view(self, number: int) -> RankView:
        self._doing = "waiting for its plan"
        while True:
            start = time.monotonic()
            try:
                # Half of the time, so that the cause is known when all of it is over.
                view = self._source.view(number, self._rank, self._timeout_s / 2)
            except PlanTimeout as late:
                # Time counts from the request of the step, which ``__next__`` sees to; so far
                # ahead of it a plan may well be missing.
                self._doing = f"waiting for its plan: {one_line(late)}"
                if self._closed.wait(max(0.0, start + 0.05 - time.monotonic())):
                    raise
                continue
            for name, stated, expected in (
                ("step", view.step, number),
                ("rank", view.rank, self._rank),
                ("world_size", view.world_size, self._world_size),
            ):
                if stated != expected:
                    raise PlanError(
                        f"step {number}: the view's {name} must be {expected}, not {stated}"
                    )
            return view
