"""Workers that plan steps, their deaths and the steps that are planned again.

Each worker has a thread here that sends it one step at a time and awaits the answer. When a worker
dies, another is started and the step goes back to the head of the queue: planning is a pure
function of the proposal, the seed and the batch, so the same bytes come out, whatever the number of
workers and of deaths. (A process pool of ``concurrent.futures`` loses all its workers with one, and
a death while it starts another can leave it hanging.)
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from seqplan.planner.batches.batch import Batch
from seqplan.planner.workers.planned_step import TimedPlan

DEATHS = 3
"""How often planning one step may kill its worker before the step is given up."""

_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Before a worker that ended while it started is started again. No step is to blame for that."""


class WorkerDied(RuntimeError):
    """A step's planning killed its worker ``DEATHS`` times; the message names the step."""


class Worker(Protocol):
    """What plans one step at a time, wherever it runs."""

    def wait_until_ready(self) -> None:
        """Return when it can plan; ``EOFError`` or ``OSError`` when it died, others when it
        cannot be had."""

    def alive(self) -> bool:
        """Whether it may still live: False once it is known to have died."""

    def plan(self, batch: Batch) -> TimedPlan | Exception:
        """Return the planned step or what planning raised; ``EOFError``, ``OSError``: it died."""

    def end(self) -> None:
        """End it now, if it is alive. A thread that awaits its answer sees it die."""


class Workforce(Protocol):
    """Where workers come from."""

    def start(self) -> Worker:
        """Start a worker, perhaps not ready yet; called under the pool's lock, so not for long.

        ``EOFError`` or ``ConnectionError`` where asking again may help.
        """

    def close(self) -> None:
        """Free shared resources of its workers, after all of them have ended."""


@dataclass
class _Task:
    """A step to plan, and how often its worker died of it."""

    batch: Batch
    future: Future[TimedPlan] = field(default_factory=Future)
    deaths: int = 0


class PoolStopped(RuntimeError):
    """The pool was stopped before the step was planned."""


class WorkerPool:
    """Up to ``workers`` workers of a workforce, started as steps come."""

    def __init__(self, workforce: Workforce, workers: int) -> None:
        self._workforce = workforce
        self._workers = workers
        # Entered itself, not through the condition: an interrupt can come between a condition's
        # taking its lock and the block that lets go of it.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[_Task] = deque()
        self._threads: set[threading.Thread] = set()
        self._running: set[Worker] = set()
        self._stopped = False

    def submit(self, batch: Batch) -> Future[TimedPlan]:
        """Plan a batch when a worker is free; the future raises what planning raises."""
        task = _Task(batch)
        with self._lock:
            if self._stopped:
                raise PoolStopped(
                    f"step {batch.step}: the planning workers have been stopped. Start them again"
                )
            self._waiting.append(task)
            if len(self._threads) < self._workers:
                thread = threading.Thread(target=self._worker_loop, name="planning", daemon=True)
                self._threads.add(thread)
                thread.start()
            self._changed.notify()
        return task.future

    def stop(self) -> None:
        """End the workers now, whatever they are doing."""
        with self._lock:
            self._stopped = True
            running, self._running = self._running, set()
            waiting, self._waiting = self._waiting, deque()
            threads = list(self._threads)
            self._changed.notify_all()
        for worker in running:
            worker.end()
        self._workforce.close()
        for task in waiting:
            task.future.cancel()
        for thread in threads:
            # An interrupt may have ended the wait for its start: then it ends by itself, as it
            # finds the pool stopped before it starts a worker.
            with suppress(RuntimeError):
                thread.join()

    def _worker_loop(self) -> None:
        """Keep one worker, and replace it when it dies: the loop of each thread."""
        try:
            while (worker := self._new_worker()) is not None:
                self._keep_busy(worker)
        except Exception as error:
            self._on_no_worker(error)

    def _new_worker(self) -> Worker | None:
        """Return a worker that is ready, None when the pool ends.

        It is ready before it gets a step, so that steps never wait for it while others are free.
        """
        for pause_s in (0.0, *_PAUSES_S):
            with self._lock:
                self._changed.wait_for(lambda: self._stopped, timeout=pause_s)
                if self._stopped:
                    return None
                try:
                    worker = self._workforce.start()
                except (EOFError, ConnectionError):  # the starting server died during the request
                    continue
                self._running.add(worker)
            try:
                worker.wait_until_ready()
            except (EOFError, OSError):
                self._discard(worker)
            except Exception:
                self._discard(worker)
                raise
            else:
                return worker
        times = 1 + len(_PAUSES_S)
        raise WorkerDied(
            f"a planning worker ended {times} times while it started. See the log of the worker"
        )

    def _on_no_worker(self, error: Exception) -> None:
        """Leave the steps to other workers if one cannot be had; without any, they fail.

        Steps that come later try again.
        """
        with self._lock:
            self._threads.discard(threading.current_thread())
            if self._threads:
                return
            waiting, self._waiting = self._waiting, deque()
        for task in waiting:
            self._settle(task, error)

    def _keep_busy(self, worker: Worker) -> None:
        """Have the worker plan until it dies or the pool ends."""
        while (task := self._next()) is not None:
            try:
                answer = worker.plan(task.batch) if worker.alive() else None
            except (EOFError, OSError):
                task.deaths += 1
                answer = None
            except Exception as error:  # what could not travel; the worker is well
                answer = error
            if answer is None:
                self._discard(worker)
                self._requeue(task)
                return
            self._settle(task, answer)

    def _next(self) -> _Task | None:
        with self._lock:
            self._changed.wait_for(lambda: self._stopped or self._waiting)
            return None if self._stopped else self._waiting.popleft()

    def _requeue(self, task: _Task) -> None:
        """Plan a step whose worker died before all others, unless that was the last time."""
        with self._lock:
            stopped = self._stopped
            if not stopped and task.deaths < DEATHS:
                self._waiting.appendleft(task)
                self._changed.notify()
                return
        step = task.batch.step
        self._settle(
            task,
            PoolStopped(f"step {step}: the planning workers have been stopped")
            if stopped
            else WorkerDied(f"step {step}: planning it ended its worker process {DEATHS} times"),
        )

    @staticmethod
    def _settle(task: _Task, answer: TimedPlan | Exception) -> None:
        if task.future.cancelled():
            return
        if isinstance(answer, Exception):
            task.future.set_exception(answer)
        else:
            task.future.set_result(answer)

    def _discard(self, worker: Worker) -> None:
        with self._lock:
            known = worker in self._running
            self._running.discard(worker)
        if known:
            worker.end()
