"""Planning workers that are actors of a Ray cluster, on any of its machines.

A separate process, the agent, is Ray's driver: a thread of it for each worker passes steps from
the worker's pipe to an actor and answers back. So nothing that Ray does to its driver touches the
planning process: it takes over signals, writes about dead workers to stdout, ties a local cluster
to the thread that started it, and ends the process when the cluster's head is gone. An agent that
ended is a death of its workers like any other: the next worker brings a new agent.
"""

from __future__ import annotations

import importlib.util
import multiprocessing

from seqplan.planner.batches.batch import Batch
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.workers.planned_step import TimedPlan
from seqplan.planner.workers.processes import start_process
from seqplan.planner.workers.ray_driver import ActorDied, drive

_RECONNECT_S = 300.0
"""How long a cluster that was there may be gone before steps fail."""

_END_S = 15.0


def check_ray() -> None:
    """Raise ``ValueError`` if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ValueError("ray: needs the ray package. pip install 'seqplan[ray]'")


class RayWorkforce:
    """Actors of one Ray cluster, reached through one agent."""

    def __init__(self, proposal: str, options: PlanningOptions, workers: int) -> None:
        check_ray()
        self._arguments = (proposal, options)
        self._workers = workers
        self._agent: _Agent | None = None

    def start(self) -> RayWorker:
        """Start a worker, with a new agent when there is none or it has ended."""
        if self._agent is None or not self._agent.alive():
            patience_s = 0.0
            if self._agent is not None:
                self._agent.end()
                patience_s = _RECONNECT_S
            self._agent = _Agent(self._workers, patience_s, *self._arguments)
        return RayWorker(self._agent)

    def close(self) -> None:
        """End the agent, and with it its actors and all that it started of Ray."""
        if self._agent is not None:
            self._agent.end()


class _Agent:
    """The process that is Ray's driver, with a pipe for each worker."""

    def __init__(
        self, workers: int, patience_s: float, *arguments: *tuple[str, PlanningOptions]
    ) -> None:
        pairs = [multiprocessing.Pipe() for _ in range(workers)]
        self.free = [own_end for own_end, _ in pairs]
        self.lost = False
        child_ends = [child_end for _, child_end in pairs]
        self.process = start_process(drive, child_ends, patience_s, arguments)
        for pipe in child_ends:
            pipe.close()

    def alive(self) -> bool:
        return not self.lost and self.process.is_alive()

    def end(self) -> None:
        self.process.terminate()
        self.process.join(_END_S)
        self.process.kill()
        self.process.join()


class RayWorker:
    """One actor, by one of the agent's pipes. The agent replaces an actor that died."""

    def __init__(self, agent: _Agent) -> None:
        self._agent = agent
        self._pipe = agent.free.pop()

    def wait_until_ready(self) -> None:
        """Wait until the actor is up. ``RayUnavailable`` when that cannot be."""
        answer = self._ask(None)
        if isinstance(answer, Exception):
            raise answer

    def alive(self) -> bool:
        """Whether the agent runs; the next plan shows whether its actor died."""
        return self._agent.alive()

    def plan(self, batch: Batch) -> TimedPlan | Exception:
        """Return the actor's answer; ``EOFError`` or ``OSError`` when it died."""
        answer = self._ask(batch)
        assert answer is not None
        return answer

    def _ask(self, batch: Batch | None) -> TimedPlan | Exception | None:
        try:
            self._pipe.send(batch)
            answer: TimedPlan | Exception | None = self._pipe.recv()
        except (EOFError, OSError):
            self._agent.lost = True  # perhaps before its process is seen to have ended
            raise
        if isinstance(answer, ActorDied):
            raise EOFError
        return answer

    def end(self) -> None:
        """Leave the pipe to the next worker. Actors end with the agent."""
        self._agent.free.append(self._pipe)
