"""Plans at hand, and forgetting those of jobs that are gone."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from service_process import PATIENCE_S

from seqplan.api.rest.payloads.problems import Problem
from seqplan.api.rest.state.plan_waiters import PlanWaiters
from seqplan.api.service.plan_summary import PlanSummaries, ReadyPlan
from seqplan.api.service.service import Service
from seqplan.api.store.rows import JobRow
from seqplan.api.store.store import Store
from seqplan.api.store.tables.jobs import add_job, remove_job
from seqplan.api.store.tables.plans import StoredPlan, add_plan
from seqplan.plans.format.codec import digest, from_json, to_json

GOLDEN = sorted((Path(__file__).parents[2] / "plans" / "golden").glob("*.jsonl"))


def _planned(store: Store) -> int:
    """Put in a job with one plan; its step."""
    line = GOLDEN[0].read_text(encoding="utf-8").splitlines()[0]
    plan = from_json(line)
    row = JobRow(id="j", proposal="p", seed=0, look_ahead=2, world_size=plan.world_size)
    with store.writing() as connection:
        add_job(connection, row)
        add_plan(connection, "j", StoredPlan(plan.step, digest(plan), line), 1.0)
    return plan.step


def test_a_job_that_is_found_gone_is_forgotten_before_its_notice_comes(store: Store) -> None:
    step = _planned(store)

    async def request() -> None:
        waiters = PlanWaiters(Service(store), PlanSummaries())
        assert await waiters.plan("j", step, 0) is waiters.at_hand("j", step) is not None
        with store.writing() as connection:  # as another service does
            assert remove_job(connection, "j")
        with pytest.raises(Problem, match="there is no job j"):
            await waiters.plan("j", step + 1, 0)
        assert waiters.at_hand("j", step) is None

    asyncio.run(request())


def test_views_of_the_next_step_are_written_when_every_rank_has_its_view(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqplan.api.service.plan_summary.FAN_OUT_RANKS", 1)
    plan = from_json(GOLDEN[0].read_text(encoding="utf-8").splitlines()[0])
    ready = []
    for step in (plan.step, plan.step + 1):
        of_step = replace(plan, step=step)
        ready.append(ReadyPlan(StoredPlan(step, digest(of_step), to_json(of_step)), of_step))

    async def request() -> None:
        waiters = PlanWaiters(Service(store), PlanSummaries())
        for each in ready:
            waiters.on_published("j", each)
        await asyncio.sleep(0)
        for rank in range(plan.world_size):
            following = waiters.at_hand("j", plan.step + 1)
            assert following.views is None, rank
            waiters.note_view("j", await waiters.add_views("j", ready[0]))
        async with asyncio.timeout(PATIENCE_S):
            while (following := waiters.at_hand("j", plan.step + 1)) and following.views is None:
                await asyncio.sleep(0.01)

    asyncio.run(request())
