"""Where steps are planned: processes of this machine, or actors of a Ray cluster."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from seqplan.planner.batches.batch import Batch
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.workers.planned_step import TimedPlan
from seqplan.planner.workers.pool import WorkerPool, Workforce
from seqplan.planner.workers.processes import ProcessWorkforce
from seqplan.planner.workers.ray_workers import RayWorkforce, check_ray

EXECUTORS = ("processes", "ray")


class Executor(Protocol):
    """Plans steps apart from this process, with the same bytes wherever and however often."""

    def submit(self, batch: Batch) -> Future[TimedPlan]:
        """Plan a batch when a worker is free; the future raises what planning raises."""

    def stop(self) -> None:
        """End the workers now, whatever they are doing."""


def check_executor(name: str) -> None:
    """Raise ``ValueError`` for an executor that is unknown or not installed."""
    if name not in EXECUTORS:
        raise ValueError(f"unknown executor {name!r}; choose one of {', '.join(EXECUTORS)}")
    if name == "ray":
        check_ray()


def open_executor(name: str, proposal: str, options: PlanningOptions, workers: int) -> Executor:
    """Open ``workers`` planners of one proposal (JSON text); ``ValueError`` as ``check_executor``.

    Nothing is started before the first step is submitted.
    """
    check_executor(name)
    workforce: Workforce
    if name == "ray":
        workforce = RayWorkforce(proposal, options, workers)
    else:
        workforce = ProcessWorkforce(proposal, options)
    return WorkerPool(workforce, workers)
