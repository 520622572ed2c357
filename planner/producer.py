"""Plans steps ahead in worker processes and hands them out in order.

Each worker process has a thread here that sends it one step at a time and awaits the answer. When
a worker dies the thread starts another and sends the step again: planning is a pure function of
the proposal, the seed and the batch, so the same bytes come out, whatever the number of workers and
of deaths. (A process pool of ``concurrent.futures`` loses all its workers with one, and a death
while it starts another can leave it hanging.)
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from seqplan.planner.assemble import PACKINGS
from seqplan.planner.batch import Batch
from seqplan.planner.proposal_file import ProposalDocument
from seqplan.planner.step import StepPlanner
from seqplan.plans.codec import to_json

DEATHS = 3
"""How often planning one step may kill its worker before the step is given up."""


class WorkerDied(RuntimeError):
    """A step's planning killed its worker ``DEATHS`` times; the message names the step."""


@dataclass(frozen=True)
class Planned:
    """One planned step: the plan's JSON line (without line end) and how long planning took."""

    step: int
    line: str
    planning_ms: float


def produce(
    proposal: ProposalDocument,
    batches: Iterable[Batch],
    *,
    seed: int = 0,
    packing: str = PACKINGS[0],
    workers: int = 1,
    look_ahead: int | None = None,
) -> Iterator[Planned]:
    """Plan ``batches`` and yield their plans in order.

    At most ``look_ahead`` steps (default 2 per worker) are planned or waiting beyond the one handed
    out. ``workers`` = 1 plans in this process. Raises what planning raises (``Infeasible``),
    at the step it belongs to, what iterating over ``batches`` raises, after the steps before it,
    and ``WorkerDied``. Closing the generator ends the workers.
    """
    if workers < 1:
        raise ValueError(f"workers must be 1 or more, not {workers}")
    if workers == 1:
        planner = StepPlanner(proposal, seed, packing)
        for batch in batches:
            yield plan_one(planner, batch)
        return
    ahead = 2 * workers if look_ahead is None else look_ahead
    if ahead < 1:
        raise ValueError(f"look-ahead must be 1 or more, not {ahead}")
    pool = PlannerPool(proposal.to_json(), seed, packing, workers)
    try:
        yield from _in_order(pool, iter(batches), ahead)
    finally:
        pool.stop()


def plan_one(planner: StepPlanner, batch: Batch) -> Planned:
    """Plan one batch in this process."""
    start = time.perf_counter()
    line = to_json(planner.plan(batch))
    return Planned(batch.step, line, (time.perf_counter() - start) * 1000)


def _in_order(pool: PlannerPool, batches: Iterator[Batch], ahead: int) -> Iterator[Planned]:
    underway: deque[Future[Planned]] = deque()
    ended = False
    failure: Exception | None = None
    while True:
        while not ended and len(underway) < ahead:
            try:
                underway.append(pool.submit(next(batches)))
            except StopIteration:
                ended = True
            except Exception as error:  # for the consumer, once the steps before it are out
                ended, failure = True, error
        if not underway:
            if failure is not None:
                raise failure
            return
        # Taken off before the wait: what is handed out does not count as ahead.
        yield underway.popleft().result()


class _Stopped(Exception):
    """The pool ends: no worker may start any more."""


class PlannerPool:
    """Threads that each keep one worker process; every worker reads the proposal once."""

    def __init__(self, proposal: str, seed: int, packing: str, workers: int) -> None:
        self._arguments = (proposal, seed, packing)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="planning")
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._running: set[_Worker] = set()
        self._stopped = False

    def submit(self, batch: Batch) -> Future[Planned]:
        """Plan a batch when a worker is free; the future raises what planning raises."""
        return self._threads.submit(self._plan, batch)

    def _plan(self, batch: Batch) -> Planned:
        for _ in range(DEATHS):
            worker = self._worker()
            try:
                answer = worker.ask(batch)
            except (EOFError, OSError):
                self._discard(worker)
                continue
            if isinstance(answer, Exception):
                raise answer
            return answer
        raise WorkerDied(f"step {batch.step}: planning it ended its worker process {DEATHS} times")

    def _worker(self) -> _Worker:
        """This thread's worker, a new one when there is none or it has died."""
        worker: _Worker | None = getattr(self._mine, "worker", None)
        if worker is not None and not worker.process.is_alive():
            self._discard(worker)
            worker = None
        if worker is None:
            with self._lock:
                if self._stopped:
                    raise _Stopped
                worker = self._mine.worker = _Worker(*self._arguments)
                self._running.add(worker)
        return worker

    def _discard(self, worker: _Worker) -> None:
        self._mine.worker = None
        with self._lock:
            if worker in self._running:
                self._running.remove(worker)
                worker.end()

    def stop(self) -> None:
        """End the workers now, whatever they are doing."""
        with self._lock:
            self._stopped = True
            while self._running:
                self._running.pop().end()
        self._threads.shutdown(cancel_futures=True)


class _Worker:
    """A process that plans, and this end of the pipe to it. ``Exception`` answers are raised."""

    def __init__(self, proposal: str, seed: int, packing: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        # A daemon: should this process end without stopping it, it is ended with it.
        self.process: BaseProcess = context.Process(
            target=_serve, args=(theirs, proposal, seed, packing), daemon=True
        )
        with theirs, _interrupts_left_to_the_parent():
            self.process.start()

    def ask(self, batch: Batch) -> Planned | Exception:
        """The worker's answer; ``EOFError`` or ``OSError`` when it died."""
        self._pipe.send(batch)
        answer: Planned | Exception = self._pipe.recv()
        return answer

    def end(self) -> None:
        """Kill the process, unless it is dead. A thread that awaits its answer sees it die."""
        self.process.terminate()
        self.process.join()


@contextmanager
def _interrupts_left_to_the_parent() -> Iterator[None]:
    """Start processes with Ctrl-C blocked, which they inherit: the parent ends them itself."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which, when it is started along the way, unblocks Ctrl-C
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, proposal: str, seed: int, packing: str) -> None:
    """A worker's life: plan what comes through the pipe until it is closed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    planner = StepPlanner(ProposalDocument.from_json(proposal, "proposal"), seed, packing)
    while True:
        try:
            batch = pipe.recv()
        except (EOFError, ConnectionError):  # reset, where an answer was left unread
            return
        answer: Planned | Exception
        try:
            answer = plan_one(planner, batch)
        except Exception as error:
            error.add_note(traceback.format_exc())  # tracebacks do not travel
            answer = error
        try:
            pipe.send(answer)
        except ConnectionError:
            return


def _end_with_parent() -> None:
    """A parent that is killed cannot end its workers: they watch for it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
