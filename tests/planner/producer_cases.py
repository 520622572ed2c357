"""Small proposals and batches to plan, made without a search."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from seqplan import Batch, Profile, Proposal, StepPlanner, Strategy, Workload
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.proposal.document import Candidate
from seqplan.planner.workers import processes as process_workers
from seqplan.planner.workers import ray_driver as ray_agent
from seqplan.planner.workers.planned_step import TimedPlan, plan_one
from seqplan.planner.workers.processes import _serve
from seqplan.planner.workers.produce import produce

DEADLY = 666_666
"""The id of a sequence that kills a worker which serves with ``serve_and_die``."""


def proposal(profile: Profile, workload: Workload, strategies: Sequence[str]) -> Proposal:
    """A proposal of these strategies; what they are worth is not known."""
    candidates = []
    models = workload.models(profile)
    for text in strategies:
        strategy = Strategy.parse(text)
        longest = max(models[scheme].max_sequence for scheme, _ in strategy.counts)
        candidates.append(Candidate(strategy, longest, 1.0, 1.0, 1.0))
    return Proposal(
        method="given",
        seed=0,
        workload=workload,
        profile=profile,
        lengths={},
        candidates=tuple(candidates),
        expected_ms=1.0,
        lower_bound_ms=1.0,
        judged=1,
        execution="lockstep" if profile.lockstep else "regroup",
    )


def dense_proposal() -> Proposal:
    """Mixed pipelines of one of the shipped profiles."""
    return proposal(
        load_shipped("llama-7b-a800-80gb").restrict(measured=True),
        Workload(16, 32768, 60_000),
        ["2×tp4 + 4×tp2", "4×tp4", "1×tp8 + 2×tp2.pp2", "1×tp8 + 1×tp4 + 2×tp2"],
    )


def lockstep_proposal() -> Proposal:
    """Micro-steps of groups under ZeRO-3."""
    return proposal(
        load_shipped("gpt-7b-a100-40gb"), Workload(16, 32768, 60_000), ["4×u4", "16×tp1"]
    )


def drawn_batches(steps: int, seed: int = 0, sequences: int = 60) -> list[Batch]:
    """Batches of long-tailed lengths up to 12,000 tokens."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.lognormal(6.0, 1.3, (steps, sequences)).astype(int) + 1, 12_000)
    return [
        Batch(step, tuple(range(step * sequences, (step + 1) * sequences)), tuple(row))
        for step, row in enumerate(lengths.tolist())
    ]


def plan_or_die(planner: StepPlanner, batch: Batch) -> TimedPlan:
    """Plan; one sequence kills the process, as running out of memory does."""
    if DEADLY in batch.ids:
        os.kill(os.getpid(), signal.SIGKILL)
    return plan_one(planner, batch)


def die(*_: Any) -> None:
    """The life of a process that is never ready."""
    os.kill(os.getpid(), signal.SIGKILL)


def serve_and_die(pipe: Connection, proposal: str, options: PlanningOptions) -> None:
    """The life of a process that plans with ``plan_or_die``."""
    process_workers.plan_one = plan_or_die
    _serve(pipe, proposal, options)


def drive_and_die(*arguments: Any) -> None:
    """The life of an agent whose actors plan with ``plan_or_die``."""
    ray_agent.PlanningActor = DeadlyActor  # type: ignore[misc]
    ray_agent.drive(*arguments)


class DeadlyActor(ray_agent.PlanningActor):
    """Dies of one sequence; the cluster's nodes have this module on their path."""

    def plan(self, batch: Batch) -> TimedPlan | Exception:
        process_workers.plan_one = plan_or_die
        return super().plan(batch)


def lines(
    proposal: Proposal,
    batches: list[Batch],
    workers: int | str = 1,
    after: Callable[[int], object] = lambda step: None,
) -> list[str]:
    """The lines of the steps in their order; ``after`` is called with each step that came out."""
    plans = []
    for planned in produce(proposal, batches, options=PlanningOptions(seed=3), workers=workers):
        plans.append(planned.line)
        after(planned.step)
    return plans


def until_failure(produced: Iterator[TimedPlan]) -> tuple[list[TimedPlan], Exception]:
    """What came out, and then the error."""
    plans = []
    try:
        for planned in produced:
            plans.append(planned)
    except Exception as error:
        return plans, error
    raise AssertionError("nothing failed")


def read_processes(name: str) -> Iterator[tuple[int, str]]:
    """This machine's processes, each with the text of a file of its folder in ``/proc``."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), (entry / name).read_text(errors="replace")
            except OSError:
                continue  # gone meanwhile


def alive_in(group: int | None = None, session: int | None = None) -> list[int]:
    """The processes of a group or a session, without those dead and not yet collected."""
    alive = []
    for process, stat in read_processes("stat"):
        state, _, its_group, its_session = stat.rpartition(")")[2].split()[:4]
        if state not in "ZX" and (int(its_group) == group or int(its_session) == session):
            alive.append(process)
    return alive
