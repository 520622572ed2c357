"""Jobs planned around slow ranks that their request names, and costs that cannot be."""

import json
from pathlib import Path

import pytest
from command_line import call, succeeded
from measuring_ranks import plan_of
from service_process import Served, serving
from stocked_service import Stocked, stock

STEPS = 3


def test_given_factors_are_planned_with_from_the_first_step_on(stocked: Stocked) -> None:
    job = {"id": "given", "proposal": stocked.proposal, "lengths": stocked.lengths}
    stocked.served.ok("POST", "/v1/jobs", {**job, "steps": STEPS, "slowdown": [1, 1.0, 1.3, 1]})
    for step in range(STEPS):
        plan = plan_of(stocked.served, "given", step)
        assert {p.slowdown for p in plan.pipelines if 2 in p.ranks} <= {1.3}
    text = stocked.served.send("GET", "/v1/jobs/given/plans/0/explain").body.decode()
    assert "of slow ranks, up to 1.3 ×" in text
    (begin,) = stocked.served.ok("GET", "/v1/jobs/given/revisions")["items"]
    assert begin["slowdown"] == [{"rank": 2, "factor": 1.3}]


def test_a_job_goes_on_without_its_lost_rank(tmp_path: Path) -> None:
    job, left = "lost", (0, 2, 3)

    def run(served: Served, first: int, last: int) -> None:
        for step in range(first, last):
            plan = plan_of(served, job, step)
            assert plan.lost_ranks == (1,)
            assert all(1 not in pipeline.ranks for pipeline in plan.pipelines)
            for rank in left:
                view = served.ok("GET", f"/v1/jobs/{job}/plans/{step}/ranks/{rank}")
                ack = {"step": step, "rank": rank, "digest": view["digest"]}
                served.ok("POST", f"/v1/jobs/{job}/acks", ack)

    with serving("--store", tmp_path / "s.db") as served:
        stocked = stock(served)
        body = {"id": job, "proposal": stocked.proposal, "lengths": stocked.lengths}
        body |= {"steps": 6, "look_ahead": 2, "slowdown": [1, None, 1.3, 1]}
        served.ok("POST", "/v1/jobs", body)
        run(served, 0, 3)
        plan_of(served, job, 4)
        ack = {"step": 0, "rank": 1, "digest": None}
        for reply in (
            served.send("GET", f"/v1/jobs/{job}/plans/0/ranks/1"),
            served.send("POST", f"/v1/jobs/{job}/acks", ack),
        ):
            assert reply.status == 409
            assert reply.json["type"].endswith(":rank-lost")
            assert reply.json["detail"].startswith("rank 1 is lost: the job is planned without it")
        progress = served.ok("GET", f"/v1/jobs/{job}/progress")
        assert (progress["lost_ranks"], progress["slowest"], progress["ahead"]) == ([1], 2, 2)
        (begin,) = served.ok("GET", f"/v1/jobs/{job}/revisions")["items"]
        assert begin["slowdown"] == [{"rank": 1, "factor": None}, {"rank": 2, "factor": 1.3}]
    with serving("--store", tmp_path / "s.db") as served:
        run(served, 3, 6)
        assert served.ok("GET", f"/v1/jobs/{job}/progress")["slowest"] == 5
        (logged,) = json.loads(succeeded(call("log", "--store", tmp_path / "s.db", "--json")))
        assert (logged["id"], logged["slowest"]) == (job, 5)
        # Another rank is lost: the job goes on from its first step that is not done.
        body = {"id": "on", "proposal": stocked.proposal, "slowdown": [1, 1, 1, None]}
        served.ok("POST", "/v1/jobs", {**body, "continues": {"job": job, "step": 5}, "steps": 7})
        assert plan_of(served, "on", 5).lost_ranks == (3,)
        assert served.ok("GET", "/v1/jobs/on/progress")["slowest_ranks"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"slowdown": [1.0]}, "slowdown has 1 factors for 4 ranks. Give one for each rank"),
        (
            {"slowdown": [None, None, None, 1]},
            "slowdown: ranks lost: 0, 1, 2. 1 of 4 ranks are left, and no scheme",
        ),
        ({"slowdown": [None] * 4}, "slowdown: all 4 ranks are lost"),
        ({"slowdown": [1, 0.5, 1, 1]}, "body.slowdown: must be a factor of 1 or more for each"),
        ({"robust": 0.6}, "robust must be a share from 0 to 0.5: 0.6"),
        ({"robust": -0.1}, "body.robust: "),
        ({"robust": 0.1, "slowdown": [1, 1, 2, 1]}, "robust plans for equal ranks. Leave robust"),
        ({"slowdown": "measured"}, "body.slowdown: must be a factor of 1 or more for each rank"),
    ],
)
def test_costs_that_cannot_be(stocked: Stocked, more: dict[str, object], message: str) -> None:
    job = {"proposal": stocked.proposal, "lengths": stocked.lengths, "steps": STEPS}
    problem = stocked.served.problem("POST", "/v1/jobs", {**job, **more})
    assert problem["detail"].startswith(message)
