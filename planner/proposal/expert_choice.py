"""The degree of expert parallelism of a proposal, chosen by planning a few batches with each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.expert_sharing import expert_bound_ms
from seqplan.planner.problem import PlanningOptions, PlanningProblem
from seqplan.planner.proposal.candidates import Progress
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.proposal.expert_rows import ExpertRow
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.planner.sync.times import Layout, layout_text, layouts_of, parse_layout
from seqplan.plans.percent import percent

LAYOUT_GAIN = 1e-3
"""By what share another layout has to be faster to be chosen for groups smaller than a block."""


def price_degree(
    problem: PlanningProblem, batches: Sequence[Batch], progress: Progress | None = None
) -> ExpertRow:
    """Plan the batches with a problem's degree; ``Infeasible`` if no scheme holds a sequence."""
    planner = StepPlanner(problem, PlanningOptions(prove=False))
    plans = []
    for done, batch in enumerate(batches):
        if progress is not None:
            progress("planning batches", done, len(batches))
        plans.append(planner.plan(batch))
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


def choose_group_layout(
    proposal: Proposal, batches: Sequence[Batch], row: ExpertRow, limit_ms: float
) -> tuple[Proposal, ExpertRow]:
    """Choose the layout of groups smaller than a block, by planning the batches in each.

    Candidates consist of whole blocks, and their layout need not be the best one of smaller groups.
    ``row``: the proposal's times; another layout has to be faster than it and than ``limit_ms``.
    """
    problem, choice, sync = proposal.problem, proposal.layouts, proposal.sync
    if choice is None or choice.chosen is None or problem.execution != "regroup" or sync is None:
        return proposal, row
    best, chosen = row, choice.chosen
    layouts = layouts_of(scheme for scheme in problem.models if scheme.pp == 1)
    for layout in sorted(layouts - {parse_layout(chosen)}):
        limit_ms = min(limit_ms, best.expected_ms or inf)
        if _bound_layout(problem, layout, batches) + sync.compute_exposed_ms([layout]) >= limit_ms:
            continue
        priced = price_degree(replace(problem, regroup_layout=layout), batches)
        if (priced.expected_ms or inf) < limit_ms * (1 - LAYOUT_GAIN):
            best, chosen = priced, layout_text(layout)
    if chosen == choice.chosen:
        return proposal, row
    gain = (row.expected_ms or 0.0) / (best.expected_ms or inf) - 1
    why = (
        f"groups smaller than a block in {chosen}: {percent(gain)} faster than in {choice.chosen}."
    )
    choice = replace(choice, chosen=chosen, why=(why, *choice.why))
    return replace(proposal, layouts=choice), best


def _bound_layout(problem: PlanningProblem, layout: Layout, batches: Sequence[Batch]) -> float:
    """Bound the mean time of the batches in groups of one layout, without sync (ms)."""
    models = [m for s, m in problem.models.items() if (s.tp, s.pp) == layout]
    degree, gpus = problem.profile.expert_parallel, problem.workload.gpus
    bounds = [expert_bound_ms(models, degree, batch, gpus) for batch in batches]
    return sum(bounds) / len(bounds)


def choose_degree(rows: Sequence[ExpertRow]) -> int | None:
    """Choose the degree of the least time, of equal ones the smallest; None if none holds."""
    timed = [row for row in rows if row.expected_ms is not None]
    best = min(timed, key=lambda row: (row.expected_ms or 0.0, row.expert_parallel), default=None)
    return None if best is None else best.expert_parallel
