"""Ranks that are slow or lost: their factors, and the problem of those that are left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seqplan.planner.errors import Infeasible
from seqplan.planner.placement.slowdown import Slowdown
from seqplan.planner.problem import PlanningProblem
from seqplan.planner.sync.times import layouts_of


def list_factors(slow: Sequence[tuple[int, float | None]], gpus: int) -> Slowdown | None:
    """List the factors of all ranks, given the slow and lost ones; None if all are equal.

    ``ValueError`` for a rank beyond ``gpus`` or there twice, and for factors that cannot be.
    """
    if not slow:
        return None
    factors: list[float | None] = [1.0] * gpus
    for rank, factor in slow:
        if not 0 <= rank < gpus:
            raise ValueError(f"slowdown of rank {rank}: ranks are 0 to {gpus - 1}. Name one")
        factors[rank] = factor
    if len(dict(slow)) < len(slow):
        raise ValueError("slowdown: a rank is there twice. Name each once")
    return Slowdown.from_value(factors, gpus)


def leave_out_lost(problem: PlanningProblem, lost: Sequence[int]) -> PlanningProblem:
    """Return the problem of the ranks that are left, in the layouts of its strategies.

    Its strategies are those that fit them; with none, each step constructs one. ``Infeasible`` if
    no scheme fits.
    """
    if not lost:
        return problem
    workload = problem.workload.leave_out(len(lost))
    gpus = workload.gpus
    rest = replace(
        problem,
        workload=workload,
        strategies=tuple(s for s in problem.strategies if s.gpus <= gpus),
        proposal_digest=problem.digest,
    )
    layouts = layouts_of(s for strategy in problem.strategies for s, _ in strategy.counts)
    profile = problem.profile
    if not any(not layouts or (s.tp, s.pp) in layouts for s in rest.models):
        raise Infeasible(
            f"ranks lost: {', '.join(map(str, lost))}. {gpus} of {problem.workload.gpus} ranks are "
            f"left, and no scheme of {profile.name} in the proposal's layouts fits so few. Start "
            "the job without them"
        )
    return rest
