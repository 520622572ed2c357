"""How a job's costs may differ from its profile: slow ranks, refits, or an interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seqplan.api.store.rows import SlowFactors, list_lost
from seqplan.costs.profile import Profile
from seqplan.planner.errors import Infeasible
from seqplan.planner.placement.slowdown import Slowdown
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.step.loads_planner import LoadsPlanner
from seqplan.planner.step.slow_ranks import leave_out_lost
from seqplan.plans.plan import Provenance


def list_slow_ranks(
    factors: Sequence[Any] | None, gpus: int, *, refit: bool, robust: float
) -> SlowFactors:
    """List the slow ranks of a new job, given the factor of each rank.

    A lost rank has None. ``ValueError`` for another number of ranks, factors that cannot be, and
    for two of factors, ``refit`` and ``robust`` (a share) that exclude each other.
    """
    slow: SlowFactors = ()
    if factors is not None:
        if refit:
            raise ValueError(
                "slowdown: refit finds the factors of slow ranks. Leave one of them out"
            )
        slow = Slowdown.from_value(factors, gpus).slow
    if robust and refit:
        raise ValueError("robust: refit finds the costs and slow ranks. Leave one of them out")
    PlanningOptions(robust=robust, slowdown=slow)
    return slow


def check_costs(
    proposal: Proposal, slow: SlowFactors, robust: float, *, refit: bool = False, request: str = ""
) -> None:
    """Raise ``ValueError`` for a proposal that cannot plan a job of such costs."""
    if refit:
        check_refit(proposal.profile, lockstep=proposal.in_lockstep, request=request)
    if slow:
        PlanningOptions(slowdown=((0, 2.0),)).resolve_execution(proposal.problem)
        try:
            leave_out_lost(proposal.problem, list_lost(slow))
        except Infeasible as error:
            raise ValueError(f"slowdown: {error}") from None
    if robust:  # its steps are planned at several costs
        PlanningOptions(robust=robust).resolve_execution(proposal.problem)


def check_loads(proposal: Proposal, slow: SlowFactors, robust: float) -> None:
    """Raise ``ValueError`` for a proposal or costs that batches with loads cannot be planned by."""
    options = PlanningOptions(prove=False, slowdown=slow, robust=robust)
    LoadsPlanner(proposal.problem, options, Provenance("", 0, "", None))


def check_refit(profile: Profile, *, lockstep: bool, request: str = "") -> None:
    """Raise ``ValueError`` for a job whose costs cannot follow measured times.

    ``request``: what the service made its proposal from, as in the proposal's row.
    """
    if request == "{}":
        raise ValueError("refit: the proposal was uploaded. Make one with POST /v1/proposals")
    if lockstep:
        raise ValueError("refit: in lockstep a rank's time is of several groups. Leave refit out")
    if profile.expert_parallel > 1:
        raise ValueError("refit: ranks that share experts share their times. Leave refit out")
