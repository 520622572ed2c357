"""Batches that a trainer pushes, and such that cannot be."""

from typing import Any

import pytest
from stocked_service import Stocked

from seqplan.plans.format.codec import from_json
from seqplan.plans.load import PhaseLoad


def test_pushed_batches(stocked: Stocked) -> None:
    served = stocked.served
    job = served.ok("POST", "/v1/jobs", {"proposal": stocked.proposal})["id"]
    assert served.send("GET", f"/v1/jobs/{job}/plans/5?wait=0.2").status == 204
    batches = f"/v1/jobs/{job}/batches"
    first = {"step": 5, "ids": [3, 4], "lengths": [100, 4000]}
    served.ok("POST", batches, {"batches": [first]})
    plan = from_json(served.send("GET", f"/v1/jobs/{job}/plans/5?wait=30").body.decode())
    assert (plan.ids, plan.lengths) == ((3, 4), (100, 4000))
    assert served.problem("POST", batches, {"batches": [first]}, 409)["last_step"] == 5
    long = {"step": 6, "ids": [1, 2], "lengths": [5, 5000]}
    problem = served.problem("POST", batches, {"batches": [long]})
    assert problem["detail"] == "body.batches[0].lengths[1]: 5000 is above the proposal's 4096"
    assert served.problem("GET", f"/v1/jobs/{job}/plans/4", status=404)
    served.ok("POST", batches, {"batches": [{**first, "step": 8}], "end": True})
    assert served.send("GET", f"/v1/jobs/{job}/plans/8?wait=30").status == 200
    problem = served.problem("GET", f"/v1/jobs/{job}/plans/9", status=410)
    assert problem["type"].endswith("end-of-plans")
    assert served.problem("POST", batches, {"batches": []}, 409)


def test_batches_with_images(stocked: Stocked) -> None:
    served = stocked.served
    job = served.ok("POST", "/v1/jobs", {"proposal": stocked.proposal})["id"]
    load = {"name": "vision", "tokens": [0, 900], "work_ms": [0, 80.5004], "overhead_ms": 1}
    load |= {"capacity": 900}
    batch = {"step": 0, "ids": [3, 4], "lengths": [100, 4000], "loads": [load]}
    served.ok("POST", f"/v1/jobs/{job}/batches", {"batches": [batch], "end": True})
    plan = from_json(served.send("GET", f"/v1/jobs/{job}/plans/0?wait=30").body.decode())
    assert plan.loads == (PhaseLoad("vision", (0, 900), (0.0, 80.5), 1.0, 900),)
    short = {**batch, "step": 1, "loads": [{**load, "tokens": [1]}]}
    other = served.ok("POST", "/v1/jobs", {"proposal": stocked.proposal})["id"]
    problem = served.problem("POST", f"/v1/jobs/{other}/batches", {"batches": [short]})
    assert "load vision: tokens has 1 values for 2 sequences" in problem["detail"]
    small = {**batch, "step": 1, "loads": [{**load, "capacity": 800}]}
    problem = served.problem("POST", f"/v1/jobs/{other}/batches", {"batches": [small]})
    assert "load vision: sequence 1 has 900 tokens, a rank holds 800" in problem["detail"]
    query = f"/v1/proposals/{stocked.proposal}/plan"
    for loads, detail in (
        ([load, load], "loads: vision, vision. Name each phase once"),
        ([{**load, "tokens": [0, 0]}], "load vision: sequence 4 has 80.5 ms without tokens"),
    ):
        both = {**batch, "loads": loads}
        problem = served.problem("POST", f"/v1/jobs/{other}/batches", {"batches": [both]})
        assert detail in problem["detail"]
        assert detail in served.problem("POST", query, both)["detail"]


def test_loads_are_rejected_by_a_job_that_cannot_plan_them(stocked: Stocked) -> None:
    served = stocked.served
    batch = {"step": 0, "ids": [3], "lengths": [400]}
    load = {"name": "vision", "tokens": [90], "work_ms": [8.0]}
    lost = {"slowdown": [*[1.0] * 3, None], "proposal": stocked.proposal}
    request = {"profile": "gpt-7b-a100-40gb", "gpus": 8, "lengths": stocked.lengths}
    lockstep = {"proposal": served.proposal({**request, "max_len": 4096, "tokens": 8000})}
    for new, detail in ((lost, "ranks [3] are lost"), (lockstep, "loads are for pipelines")):
        job = served.ok("POST", "/v1/jobs", new)["id"]
        path, pushed = f"/v1/jobs/{job}/batches", {**batch, "loads": [load]}
        assert detail in served.problem("POST", path, {"batches": [pushed]})["detail"]
        served.ok("POST", path, {"batches": [batch], "end": True})
        assert served.send("GET", f"/v1/jobs/{job}/plans/0?wait=30").status == 200


@pytest.mark.parametrize(
    ("batch", "detail"),
    [
        ({"lengths": [5, 0]}, "body.batches[1].lengths[1]: "),
        ({"lengths": [5, 2.5]}, "body.batches[1].lengths[1]: "),
        ({"lengths": [5, "6"]}, "body.batches[1].lengths[1]: "),
        ({"lengths": [5, 4097]}, "body.batches[1].lengths[1]: 4097 is above the proposal's 4096"),
        ({"ids": [1, -2]}, "body.batches[1].ids[1]: "),
        ({"ids": [1, None]}, "body.batches[1].ids[1]: "),
        ({"ids": [1]}, "body.batches[1]: step 7: 1 ids but 2 lengths"),
        ({"ids": [], "lengths": []}, "body.batches[1]: step 7: the batch has no sequences"),
        ({"loss_tokens": 12}, "body.batches[1].loss_tokens: 12 is above the step's tokens"),
        ({"more": 1}, "body.batches[1].more: "),
        ({"step": 5}, "body.batches[1].step: 5 is not above 6. Order the steps"),
    ],
)
def test_malformed_batches(stocked: Stocked, batch: dict[str, Any], detail: str) -> None:
    job = stocked.served.ok("POST", "/v1/jobs", {"proposal": stocked.proposal})["id"]
    good = {"step": 6, "ids": [1, 2], "lengths": [5, 6]}
    pushed = {"batches": [good, {**good, "step": 7, **batch}]}
    problem = stocked.served.problem("POST", f"/v1/jobs/{job}/batches", pushed)
    assert problem["detail"].startswith(detail)
    # Of a push that is rejected nothing is kept.
    assert stocked.served.ok("POST", f"/v1/jobs/{job}/batches", {"batches": [good]})
    assert stocked.served.send("DELETE", f"/v1/jobs/{job}").status == 204
