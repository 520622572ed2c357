"""Plans steps ahead in a pool of processes and hands them out in order.

A worker that dies takes the whole pool with it (that is how ``concurrent.futures`` works), so the
pool is rebuilt and what was under way is planned again: planning is a pure function of the
proposal, the seed and the batch, so the same bytes come out, whatever the number of workers.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass

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
        planner = StepPlanner(proposal, seed)
        for batch in batches:
            yield plan_one(planner, batch)
        return
    ahead = 2 * workers if look_ahead is None else look_ahead
    if ahead < 1:
        raise ValueError(f"look-ahead must be 1 or more, not {ahead}")
    pool = _Pool(proposal.to_json(), seed, workers)
    try:
        yield from _in_order(pool, iter(batches), ahead)
    finally:
        pool.stop()


def plan_one(planner: StepPlanner, batch: Batch) -> Planned:
    """Plan one batch in this process."""
    start = time.perf_counter()
    line = to_json(planner.plan(batch))
    return Planned(batch.step, line, (time.perf_counter() - start) * 1000)


@dataclass
class _Underway:
    batch: Batch
    future: Future[Planned] | None = None
    deaths: int = 0


def _in_order(pool: _Pool, batches: Iterator[Batch], ahead: int) -> Iterator[Planned]:
    underway: deque[_Underway] = deque()
    ended = alone = False
    failure: Exception | None = None
    while True:
        while not ended and len(underway) < ahead:
            try:
                underway.append(_Underway(next(batches)))
            except StopIteration:
                ended = True
            except Exception as error:  # for the consumer, once the steps before it are out
                ended, failure = True, error
        if not underway:
            if failure is not None:
                raise failure
            return
        first = underway[0]
        # After a death the first step runs alone, so that the next death is known to be its own.
        for entry in [first] if alone else underway:
            if entry.future is None:
                entry.future = pool.submit(entry.batch)
        assert first.future is not None
        try:
            planned = first.future.result()
        except BrokenProcessPool:
            first.deaths += alone
            if first.deaths >= DEATHS:
                raise WorkerDied(
                    f"step {first.batch.step}: planning it ended its worker process {DEATHS} times"
                ) from None
            pool.rebuild()
            alone = True
            for entry in underway:
                if entry.future is not None and not _succeeded(entry.future):
                    entry.future = None
            continue
        alone = False
        underway.popleft()
        yield planned


def _succeeded(future: Future[Planned]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


class _Pool:
    """A process pool that can be rebuilt; each worker reads the proposal once."""

    def __init__(self, proposal: str, seed: int, workers: int) -> None:
        self._arguments = (proposal, seed)
        self._workers = workers
        self._pool = self._build()

    def _build(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=self._arguments,
        )

    def submit(self, batch: Batch) -> Future[Planned]:
        fields = (batch.step, batch.ids, batch.lengths, batch.loss_tokens)
        with _interrupts_left_to_the_parent():
            try:
                return self._pool.submit(_plan_in_worker, *fields)
            except BrokenProcessPool:
                # Broken between two submissions: report it where results are awaited.
                future: Future[Planned] = Future()
                future.set_exception(BrokenProcessPool())
                return future

    def rebuild(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._build()

    def stop(self) -> None:
        """End the workers now, whatever they are doing."""
        processes = list((getattr(self._pool, "_processes", None) or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


@contextmanager
def _interrupts_left_to_the_parent() -> Iterator[None]:
    """Start processes with Ctrl-C blocked, which they inherit: the parent ends them itself.

    Blocked, not ignored, so that a Ctrl-C meanwhile still reaches the parent, afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_planner: StepPlanner | None = None


def _start_worker(proposal: str, seed: int) -> None:
    global _planner
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _planner = StepPlanner(ProposalDocument.from_json(proposal, "proposal"), seed)


def _end_with_parent() -> None:
    """A parent that is killed cannot end its workers: they watch for it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _plan_in_worker(
    step: int, ids: tuple[int, ...], lengths: tuple[int, ...], loss_tokens: int | None
) -> Planned:
    assert _planner is not None
    return plan_one(_planner, Batch(step, ids, lengths, loss_tokens))
