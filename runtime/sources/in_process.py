"""Steps of plans that are made on every rank, each on request.

For reinforcement learning, where lengths are known after the rollout: nothing is fetched ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch.distributed as dist

from seqplan.plans.format.codec import digest
from seqplan.plans.plan import Plan
from seqplan.plans.views.rank_view import RankView, rank_view
from seqplan.runtime.data.comparison import find_other_tokens
from seqplan.runtime.errors import PlanError
from seqplan.runtime.sources.agreement import (
    Record,
    State,
    all_gather_records,
    disagreement,
    one_line,
)
from seqplan.runtime.sources.consumer import Step
from seqplan.runtime.sources.source import check_sound, place_plan

Prepared = TypeVar("Prepared")


def iterate_agreed_steps(
    plans: Iterable[Plan],
    *,
    rank: int,
    world_size: int,
    prepare: Callable[[RankView], Prepared],
    control_group: dist.ProcessGroup | None,
    start_step: int = 0,
) -> Iterator[Step[Prepared]]:
    """Yield this rank's steps of ``plans``, an iterator that plans equally on every rank.

    Plans before ``start_step`` are passed over. ``PlanError`` on every rank if one fails or
    plans something else: with the number and the message of the first that does, or if the ranks'
    data differ at the first step. ``RankLost`` if another rank died.
    """
    following = iter(plans)
    expected = start_step
    compared = False
    while True:
        step: Step[Prepared] | None = None
        cause: Exception | None = None
        try:
            plan = next(following, None)
            while plan is not None and _check_plan(plan, expected).step < start_step:
                plan = next(following, None)
            if plan is None:
                record = Record(State.END, expected)
            else:
                step = _prepare(plan, rank, world_size, prepare)
                record = Record(State.READY, plan.step, step.view.digest or "")
        except Exception as error:
            record, cause = Record(State.FAILED, expected, message=one_line(error)), error
        fault = disagreement(all_gather_records(record, control_group))
        if fault is None and step is not None and not compared:
            fault = find_other_tokens(prepare, step.view, control_group)
            compared = True
        if fault is not None:
            raise PlanError(fault) from cause
        if step is None:
            return
        expected = step.view.step + 1
        yield step


def _check_plan(plan: object, step: int) -> Plan:
    if not isinstance(plan, Plan):
        raise PlanError(f"step {step}: must be a Plan, not {type(plan).__name__}")
    return plan


def _prepare(
    plan: Plan, rank: int, world_size: int, prepare: Callable[[RankView], Prepared]
) -> Step[Prepared]:
    check_sound(plan, f"step {plan.step}")
    placed = place_plan(plan, world_size, f"step {plan.step}")
    view = rank_view(placed, rank, digest=digest(plan))
    return Step(view, prepare(view))
