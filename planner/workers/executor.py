"""Where steps are planned: processes of this machine, or actors of a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass

from seqplan.planner.problem import PlanningOptions
from seqplan.planner.workers.pool import WorkerPool, Workforce
from seqplan.planner.workers.processes import ProcessWorkforce
from seqplan.planner.workers.ray_workers import RayWorkforce, check_ray

MOST_WORKERS = 1024
"""Processes or actors at most: each has some 100 MB."""


@dataclass(frozen=True)
class Workers:
    """How many planners there are, and whether they are actors of a Ray cluster."""

    count: int = 1
    ray: bool = False

    @classmethod
    def parse(cls, workers: Workers | int | str) -> Workers:
        """Read ``4`` or ``"4"``, so many processes, or ``"ray:4"``; ``ValueError`` for others."""
        if isinstance(workers, Workers):
            return workers
        place, _, count = str(workers).rpartition(":")
        if place not in ("", "ray") or not count.isdecimal() or int(count) < 1:
            raise ValueError(f"workers must be W or ray:W, W of 1 or more: {workers!r}")
        if int(count) > MOST_WORKERS:
            raise ValueError(f"workers must be {MOST_WORKERS} or fewer: {workers!r}")
        return cls(int(count), place == "ray")

    def check_installed(self) -> None:
        """Raise ``RayUnavailable`` if Ray is needed and not installed."""
        if self.ray:
            check_ray()


ONE_WORKER = Workers()
"""One process: by default."""


def open_executor(workers: Workers, proposal: str, options: PlanningOptions) -> WorkerPool:
    """Open planners of one proposal (JSON text); ``RayUnavailable`` without Ray.

    Nothing is started before the first step is submitted.
    """
    workers.check_installed()
    workforce: Workforce
    if workers.ray:
        workforce = RayWorkforce(proposal, options, workers.count)
    else:
        workforce = ProcessWorkforce(proposal, options)
    return WorkerPool(workforce, workers.count)
