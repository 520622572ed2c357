"""Small proposals and batches to plan, made without a search."""

import os
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
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
