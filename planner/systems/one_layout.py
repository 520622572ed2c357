"""Our plans confined to one layout, with groups that stay within a step and groups that regroup.

The difference between the first and ours is the worth of regrouping, and between the second and
ours that of pipelines of different layouts in one step.
"""

from __future__ import annotations

from dataclasses import replace

from seqplan.planner.execution import ExecutionKind
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.simulation.iteration import Execution
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.planner.sync.times import parse_layout
from seqplan.planner.systems.setting import ComparedSystem, Setting, Skipped

_STAYING, _RE_FORMING = "One layout, groups that stay", "One layout, groups that regroup"


def one_layout(
    setting: Setting, proposal: Proposal, seed: int = 0
) -> list[ComparedSystem | Skipped]:
    """Set up both on the layout that ``proposal`` chose, or its best single one."""
    if setting.in_lockstep:
        return []
    choice = proposal.layouts
    if choice is None:
        why = "the proposal chose by forward and backward alone, which compares no layouts"
    elif choice.chosen is None and not choice.rows:
        why = "no layout alone runs all sampled batches"
    else:
        layout = choice.chosen or f"tp{choice.rows[0].tp}.pp{choice.rows[0].pp}"
        return [
            _one_layout(proposal, layout, seed, "static"),
            _one_layout(proposal, layout, seed, "regroup"),
        ]
    return [Skipped("one-layout", _STAYING, why)]


def _one_layout(
    proposal: Proposal, layout: str, seed: int, execution: ExecutionKind
) -> ComparedSystem | Skipped:
    degrees = parse_layout(layout)
    regroup = execution == "regroup"
    name = _RE_FORMING if regroup else _STAYING
    key = "regrouping" if regroup else "one-layout"
    if regroup and degrees[1] > 1:
        return Skipped(key, name, f"the layout {layout} has stages, whose groups cannot regroup")
    assert proposal.layouts is not None
    within = tuple(
        candidate
        for candidate in proposal.candidates
        if all((scheme.tp, scheme.pp) == degrees for scheme, _ in candidate.strategy.counts)
    )
    confined = replace(
        proposal,
        profile=proposal.profile.restrict(layout=degrees),
        candidates=within,
        layouts=replace(proposal.layouts, chosen=layout),
        execution=execution,
    )
    planner = StepPlanner(confined, PlanningOptions(seed=seed))
    return ComparedSystem(
        key,
        name,
        f"{layout} only: pipelines differ in Ulysses and ring; planned anew at every step",
        True,
        lambda batch: Execution.from_plan(planner.plan(batch)),
    )
