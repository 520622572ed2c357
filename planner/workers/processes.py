"""Planning workers that are processes of this machine."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.linear_program import SOLVER
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.planner.workers.planned_step import TimedPlan, plan_one

OPENBLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""Variable that limits the threads of NumPy's matrix products; read when NumPy is imported."""


_GARBAGE = (50_000, 20, 20)
"""Thresholds of Python's collector in a worker: with its defaults it takes 3 % of planning for
1,024 GPUs."""


class ProcessWorkforce:
    """Starts processes that each read the proposal once."""

    def __init__(self, proposal: str, options: PlanningOptions) -> None:
        self._arguments = (proposal, options)

    def start(self) -> ProcessWorker:
        """Start a process."""
        return ProcessWorker(*self._arguments)

    def close(self) -> None:
        """Do nothing: processes share nothing."""


class ProcessWorker:
    """A process that plans, and this end of the pipe to it."""

    def __init__(self, proposal: str, options: PlanningOptions) -> None:
        self._pipe, child_end = multiprocessing.Pipe()
        with child_end:
            self.process = start_process(
                _serve,
                child_end,
                proposal,
                options,
                context=planning_context(),
            )

    def wait_until_ready(self) -> None:
        """Wait until it has read the proposal; ``EOFError`` or ``OSError`` when it died of that."""
        self._pipe.recv()

    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.is_alive()

    def plan(self, batch: Batch) -> TimedPlan | Exception:
        """Return the worker's answer; ``EOFError`` or ``OSError`` when it died."""
        self._pipe.send(batch)
        answer: TimedPlan | Exception = self._pipe.recv()
        return answer

    def end(self) -> None:
        """Kill the process, unless it is dead. A thread that awaits its answer sees it die."""
        self.process.terminate()
        self.process.join()


def start_process(
    target: Callable[..., None],
    *arguments: Any,
    context: SpawnContext | ForkServerContext | None = None,
) -> BaseProcess:
    """Start a process that leaves Ctrl-C to this one, and ends with it; by default a fresh one."""
    context = context or multiprocessing.get_context("spawn")
    # A daemon: should this process end without stopping it, it is ended with it.
    process = context.Process(target=target, args=arguments, daemon=True)
    with _interrupts_left_to_the_parent(), _one_thread():
        process.start()
    return process


def planning_context() -> SpawnContext | ForkServerContext:
    """Return how planners are started: forked from a server with all imports done.

    A job's first plan and a proposal come sooner than from a fresh process, and planners share the
    memory of all imports, the solver's too. The server is a small process without threads; it
    ends with this one, and is started again should it die. Elsewhere than on Linux libraries are
    not safe to fork.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    # What the program itself has set is left: its server serves as well, if more slowly.
    if getattr(forkserver._forkserver, "_preload_modules", []) == ["__main__"]:
        forkserver.set_forkserver_preload([__name__, *SOLVER])
    return multiprocessing.get_context("forkserver")


@contextmanager
def _interrupts_left_to_the_parent() -> Iterator[None]:
    """Start processes with Ctrl-C blocked, which they inherit: the parent ends them itself."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which, when it is started along the way, unblocks Ctrl-C
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Start processes that multiply matrices in one thread, unless the environment sets a number.

    Those of planning are small: a tenth of a plan's CPU time went to threads that waited.
    """
    if OPENBLAS_THREADS in os.environ:
        yield
        return
    os.environ[OPENBLAS_THREADS] = "1"
    try:
        yield
    finally:
        os.environ.pop(OPENBLAS_THREADS, None)


def _serve(pipe: Connection, proposal: str, options: PlanningOptions) -> None:
    """Plan the batches of the pipe until it is closed: the life of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a server of the program may not have blocked it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    document = Proposal.from_json(proposal, "proposal")
    planner = StepPlanner(document, options)
    gc.freeze()  # collections between plans leave out the modules and the proposal
    gc.set_threshold(*_GARBAGE)
    try:
        pipe.send(None)  # ready
        while True:
            pipe.send(answer_of(planner, pipe.recv()))
    except (EOFError, ConnectionError):  # reset, if an answer was left unread
        return


def answer_of(planner: StepPlanner, batch: Batch) -> TimedPlan | Exception:
    """Plan a step; return it, or its planning's error, fit to travel between processes."""
    try:
        return plan_one(planner, batch)
    except Exception as error:
        error.add_note(traceback.format_exc())  # tracebacks do not travel
        return error


def _end_with_parent() -> None:
    """End this process with its parent, which cannot end its workers when it is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
