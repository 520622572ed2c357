"""Planners of steps: on pipelines that stay, on groups that change within it, or in lockstep."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Protocol

from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.lockstep_planner import LockstepPlanner
from seqplan.planner.placement.fleet import Models
from seqplan.planner.problem import PlanningOptions, PlanningProblem
from seqplan.planner.step.expert_planner import ExpertPlanner, keep_whole_blocks
from seqplan.planner.step.loads_planner import LoadsPlanner
from seqplan.planner.step.pipeline_planner import PipelinePlanner
from seqplan.planner.step.regroup_planner import RegroupPlanner
from seqplan.planner.step.robust_planner import (
    PlannerOfSteps,
    RobustPlanner,
    list_corner_problems,
)
from seqplan.planner.step.shapes_planner import ShapesPlanner
from seqplan.plans.plan import Plan, Provenance
from seqplan.plans.version import VERSION


class HasProblem(Protocol):
    """A proposal: its problem is what steps are planned for."""

    @property
    def problem(self) -> PlanningProblem: ...


class StepPlanner:
    """Plans steps of one problem or proposal; the same batch always gives the same plan.

    If the problem states a sync, strategies are chosen by their time with it; a plan's times never
    hold it, as they recompute from the profile. ``OptionError`` for options that the problem does
    not support, and that a batch with loads rules out.
    """

    def __init__(
        self, source: PlanningProblem | HasProblem, options: PlanningOptions | None = None
    ) -> None:
        self.problem = source if isinstance(source, PlanningProblem) else source.problem
        self._options = options or PlanningOptions()
        self._planner = make_planner(self.problem, self._options)

    @cached_property
    def _loads_planner(self) -> LoadsPlanner:
        provenance = make_provenance(self.problem, self._options)
        return LoadsPlanner(self.problem, self._options, provenance)

    @cached_property
    def costs(self) -> Models:
        """Return the models of the schemes that fit the ranks that are left."""
        lost = sum(factor is None for _, factor in self._options.slowdown)
        return self.problem.workload.leave_out(lost).models(self.problem.profile)

    def plan(self, batch: Batch) -> Plan:
        """Plan a batch; ``Infeasible`` if no scheme holds a sequence."""
        return (self._loads_planner if batch.loads else self._planner).plan(batch)

    def prove(self, plan: Plan) -> Plan:
        """Return a plan of this planner with a closer bound, if one can be proven.

        The pipelines stay as they are; bound, gap and digest change. With ``exact`` steps of few
        sequences are solved for it, as in planning. ``ValueError`` for a plan of another proposal,
        profile, cluster or sync, whose groups may hold more or less.
        """
        problem, provenance = self.problem, plan.provenance
        if provenance.profile != problem.profile.digest:
            raise ValueError(
                f"step {plan.step}: planned with profile {provenance.profile}, not this planner's"
                ". Give the planner of this profile"
            )
        if provenance.proposal != problem.digest:
            raise ValueError(
                f"step {plan.step}: planned from another proposal, or for other GPUs, lengths or "
                "options than this planner's; prove it with an equal planner"
            )
        return (self._loads_planner if plan.loads else self._planner).prove(plan)


def make_provenance(problem: PlanningProblem, options: PlanningOptions) -> Provenance:
    """Record who makes the plans of a problem."""
    return Provenance(VERSION, options.seed, problem.profile.digest, problem.digest, options.robust)


def make_planner(problem: PlanningProblem, options: PlanningOptions) -> PlannerOfSteps:
    """Make the planner of a problem's kind of execution."""
    if options.shapes:
        options.check_static("shapes", problem)
    execution = options.resolve_execution(problem)
    provenance = make_provenance(problem, options)
    if problem.profile.expert_parallel > 1 and not problem.whole_blocks:
        whole = keep_whole_blocks(problem)
        independent = bool(whole.models) and not problem.in_lockstep
        planner = make_planner(whole, options) if independent else None
        return ExpertPlanner(problem, provenance, planner, execution, quick=not options.prove)
    if problem.in_lockstep:
        return LockstepPlanner(problem, options, provenance)
    if options.robust:
        plain = replace(options, robust=0.0)
        corners = list_corner_problems(problem, options.robust)
        return RobustPlanner(
            problem,
            options,
            provenance,
            make_planner(problem, plain),
            [(corner, make_planner(corner, plain)) for corner in corners],
        )
    if options.shapes:
        return ShapesPlanner(problem, options, provenance)
    if execution == "regroup":
        return RegroupPlanner(problem, options, provenance)
    return PipelinePlanner(problem, options, provenance)
