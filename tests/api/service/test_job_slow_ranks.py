"""Jobs planned around slow ranks that their request names."""

from __future__ import annotations

import pytest
from measuring_ranks import plan_of
from stocked_service import Stocked

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


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"slowdown": [1.0]}, "slowdown has 1 factors for 4 ranks. Give one for each rank"),
        ({"slowdown": [1, None, 1, 1]}, "slowdown of rank 1: the rank is lost. Start the job"),
        ({"slowdown": [1, 0.5, 1, 1]}, "body.slowdown: must be a factor of 1 or more for each"),
        ({"slowdown": "measured"}, "body.slowdown: must be a factor of 1 or more for each rank"),
    ],
)
def test_factors_that_cannot_be(stocked: Stocked, more: dict[str, object], message: str) -> None:
    job = {"proposal": stocked.proposal, "lengths": stocked.lengths, "steps": STEPS}
    reply = stocked.served.send("POST", "/v1/jobs", {**job, **more})
    assert reply.status == 422
    assert reply.json["detail"].startswith(message)
