"""Groups that regroup within the step, against groups that stay, on one layout of the 32B."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import mean

from benchmarks.settings import Data, markdown
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.execution import ExecutionKind
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.proposal.make_proposal import make_proposal
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import parse_layout
from seqplan.planner.workload import Workload
from seqplan.plans.plan import Plan

GPUS = 64
SETTINGS = (
    (32_768, 200_000, "tp4"),
    (32_768, 200_000, "tp8"),
    (32_768, 800_000, "tp4"),
    (131_072, 200_000, "tp8"),
    (131_072, 800_000, "tp8"),
)
"""Context, tokens of a step and layout: those without stages that the 32B runs best on; tp4 holds
no 128K on this many GPUs."""
STEPS = 6


def run(data: Sequence[Data]) -> None:
    """Print times with both kinds of groups, gap and planning time for each data set."""
    head = ["context, tokens a step, layout", "fixed groups", "regrouping", "gain, mean", "largest"]
    head += ["steps that regroup", "above the bound", "step, CPU: fixed", "regrouping"]
    for source in data:
        rows = [_row(source, *setting) for setting in SETTINGS]
        print(f"### {source.name}: groups that regroup, {GPUS} GPUs, llama-32b-a800-80gb\n")
        print(markdown(head, rows) + "\n")


def _row(source: Data, context: int, tokens: int, layout: str) -> list[str]:
    profile = load_shipped("llama-32b-a800-80gb").restrict(layout=parse_layout(layout))
    where = Workload(GPUS, context, tokens)
    sync = choose_sync(profile, GPUS)
    proposal = make_proposal(profile, where, source.lengths, sync=sync)
    fixed, fixed_s = _planned(proposal, source, "static")
    free, free_s = _planned(proposal, source, "regroup")
    gains = [
        before.predicted_ms / after.predicted_ms - 1
        for before, after in zip(fixed, free, strict=True)
    ]
    fixed_ms = mean(plan.predicted_ms for plan in fixed)
    free_ms = mean(plan.predicted_ms for plan in free)
    return [
        f"{context // 1024}K, {tokens:,}, {layout}",
        f"{fixed_ms:,.0f} ms",
        f"{free_ms:,.0f} ms",
        f"{fixed_ms / free_ms - 1:.1%}",
        f"{max(gains):.1%}",
        f"{sum(plan.strategy.gpus > GPUS for plan in free)} of {len(free)}",
        f"{free_ms / mean(plan.lower_bound_ms for plan in free) - 1:.1%}",
        f"{fixed_s * 1000:.0f} ms",
        f"{free_s * 1000:.0f} ms",
    ]


def _planned(
    proposal: Proposal, source: Data, execution: ExecutionKind
) -> tuple[list[Plan], float]:
    """Plan the steps; their plans and the mean CPU time (s)."""
    where = proposal.workload
    batches = list(Sampler(source.lengths, where.tokens, where.max_len, 0).batches(STEPS))
    planner = StepPlanner(proposal, PlanningOptions(execution=execution))
    began = time.process_time()
    plans = [planner.plan(batch) for batch in batches]
    return plans, (time.process_time() - began) / len(plans)
