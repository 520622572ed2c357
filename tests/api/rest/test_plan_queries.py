"""Plans of single batches: the planner's bytes, in turns."""

import asyncio
import json
from typing import Any

import pytest
from stocked_service import MAX_LEN, WORLD, Stocked

import seqplan
from seqplan import AsyncClient, Client, ServiceError
from seqplan.api.rest.payloads.problems import Problem
from seqplan.api.rest.state import plan_queries
from seqplan.api.rest.state.plan_queries import FairTurns

LENGTHS = [4096, 3000, 900, 700, 300, 120]


def test_a_batch_has_the_planners_plan(stocked: Stocked) -> None:
    with Client(stocked.served.url) as client:
        proposal = seqplan.Proposal.from_json(
            client.get_proposal_document(stocked.proposal), "proposal"
        )
        batch = seqplan.Batch(3, tuple(range(10, 16)), tuple(LENGTHS))
        expected = seqplan.StepPlanner(proposal).plan(batch)
        plan = client.plan_batch(stocked.proposal, LENGTHS, ids=list(batch.ids), step=3)
        assert seqplan.to_json(plan) == seqplan.to_json(expected)
        assert client.plan_batch(stocked.proposal, LENGTHS).lengths == tuple(LENGTHS)

    async def many() -> set[str]:
        async with AsyncClient(stocked.served.url) as clients:
            queries = [clients.plan_batch(stocked.proposal, LENGTHS) for _ in range(20)]
            return {seqplan.digest(plan) for plan in await asyncio.gather(*queries)}

    assert len(asyncio.run(many())) == 1


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"lengths": [MAX_LEN + 1], "ids": [0]}, 422, "body.lengths[0]: 4097 is above the"),
        ({"lengths": [5, 6], "ids": [0]}, 422, "body: "),
        ({"lengths": [], "ids": []}, 422, "body: "),
        ({"lengths": [5]}, 422, "body.ids: Field required"),
    ],
)
def test_bad_batches(stocked: Stocked, fields: Any, status: int, message: str) -> None:
    path = f"/v1/proposals/{stocked.proposal}/plan"
    problem = stocked.served.problem("POST", path, {"step": 0, **fields}, status)
    assert problem["detail"].startswith(message)


def test_a_proposal_that_is_not_there(stocked: Stocked) -> None:
    with (
        Client(stocked.served.url) as client,
        pytest.raises(ServiceError, match=r"404: there is no proposal none$"),
    ):
        client.plan_batch("none", LENGTHS)


def test_processes_of_idle_proposals_end(stocked: Stocked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_queries, "MOST_POOLS", 1)
    with Client(stocked.served.url) as client:
        document = json.loads(client.get_proposal_document(stocked.proposal))
        request = {"profile": "llama-7b-a800-80gb", "gpus": WORLD, "max_len": MAX_LEN}
        other = client.create_proposal(lengths=stocked.lengths, tokens=9000, **request)
        *_, ready = client.watch(client.get_proposal, other.id)
        assert ready.document != document
        for proposal in (stocked.proposal, other.id, stocked.proposal):
            assert client.plan_batch(proposal, LENGTHS).world_size == WORLD


def test_a_deleted_proposal_plans_no_more(stocked: Stocked) -> None:
    with Client(stocked.served.url) as client:
        copy = client.upload_proposal(client.get_proposal_document(stocked.proposal)).id
        assert client.plan_batch(copy, LENGTHS).world_size == WORLD
        client.delete_proposal(copy)
        with pytest.raises(ServiceError, match=f"404: there is no proposal {copy}$"):
            client.plan_batch(copy, LENGTHS)


def test_turns_rotate_over_names() -> None:
    async def run() -> list[str]:
        turns, order = FairTurns(1, most_waiting=7), []
        gate = asyncio.Event()

        async def query(name: str) -> None:
            async with turns.take(name):
                order.append(name)
                await gate.wait()

        waiting = [asyncio.create_task(query("many")) for _ in range(6)]
        await asyncio.sleep(0)
        waiting += [asyncio.create_task(query("few")) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="7 queries wait already"):
            await query("one too many")
        gate.set()
        waiting.pop(1).cancel()  # it gives up its place to the next
        await asyncio.gather(*waiting)
        return order

    order = asyncio.run(run())
    assert order == ["many", "few", "many", "few", "many", "many", "many"]
