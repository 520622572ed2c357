"""One planned step, as it travels between processes."""

from __future__ import annotations

import time
from dataclasses import dataclass

from seqplan.planner.batches.batch import Batch
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.plans.format.codec import to_json
from seqplan.plans.lint import lint


@dataclass(frozen=True)
class TimedPlan:
    """One planned step: the plan's JSON line (without line end) and how long planning took."""

    step: int
    line: str
    planning_ms: float

    @property
    def digest(self) -> str:
        """Return the plan's digest, which is the first field of its line."""
        return self.line.split('"', 4)[3]


def plan_one(planner: StepPlanner, batch: Batch) -> TimedPlan:
    """Plan one batch in this process; ``RuntimeError`` if its plan breaks a rule, a bug."""
    start = time.perf_counter()
    plan = planner.plan(batch)
    line = to_json(plan)
    planning_ms = (time.perf_counter() - start) * 1000
    if broken := lint(plan, planner.costs):
        raise RuntimeError(f"step {plan.step}: the plan breaks a rule, please report: {broken[0]}")
    return TimedPlan(batch.step, line, planning_ms)
