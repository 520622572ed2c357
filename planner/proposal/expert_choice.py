"""The degree of expert parallelism of a proposal, chosen by planning a few batches with each."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.expert_sharing import expert_bound_ms
from seqplan.planner.problem import PlanningOptions, PlanningProblem
from seqplan.planner.proposal.expert_rows import ExpertRow
from seqplan.planner.step.step_planner import StepPlanner

PRICED_BATCHES = 2
"""Batches that are planned with each degree."""


def price_degree(problem: PlanningProblem, batches: Sequence[Batch]) -> ExpertRow:
    """Plan the batches with a problem's degree; ``Infeasible`` if no scheme holds a sequence."""
    planner = StepPlanner(problem, PlanningOptions(prove=False))
    plans = [planner.plan(batch) for batch in batches]
    sync_ms = sum(plan.sync_ms or 0.0 for plan in plans) / len(plans)
    compute_ms = sum(plan.predicted_ms for plan in plans) / len(plans)
    return ExpertRow(
        problem.profile.expert_parallel,
        round(compute_ms + sync_ms, 3),
        round(sync_ms, 3),
        max(model.max_sequence for model in problem.models.values()),
    )


def bound_degree(problem: PlanningProblem, batches: Sequence[Batch]) -> float:
    """Bound the mean time of the batches with a problem's degree, sync included (ms).

    Infinite if no scheme holds a sequence.
    """
    models, gpus = problem.models, problem.workload.gpus
    if not models:
        return inf
    degree, sync = problem.profile.expert_parallel, problem.sync
    bounds = [expert_bound_ms(models.values(), degree, batch, gpus) for batch in batches]
    layouts = {(scheme.tp, scheme.pp) for scheme in models}
    exposed = [0.0] if sync is None else [sync.compute_exposed_ms([k]) for k in layouts]
    return sum(bounds) / len(bounds) + min(exposed)


def choose_degree(rows: Sequence[ExpertRow]) -> int | None:
    """Choose the degree of the least time, of equal ones the smallest; None if none holds."""
    timed = [row for row in rows if row.expected_ms is not None]
    best = min(timed, key=lambda row: (row.expected_ms or 0.0, row.expert_parallel), default=None)
    return None if best is None else best.expert_parallel
