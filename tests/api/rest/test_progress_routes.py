"""How far jobs are, their steps page by page, and one step in time."""

from collections import Counter

import pytest
from measuring_ranks import measure, plan_of
from stocked_service import WORLD, Stocked

from seqplan import Workload, make_proposal
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.simulation.timeline import simulate_plan_ms
from seqplan.plans.scheme import Strategy

PROFILE = "llama-7b-a800-80gb"


def test_steps_page_by_page(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("stepwise", 7, look_ahead=7)
    plans = [plan_of(served, job, step) for step in range(7)]
    slowest = measure(served, job, range(3), 1.1)
    served.ok("POST", f"/v1/jobs/{job}/acks", {"step": 3, "rank": 2, "digest": None})
    rows, after = [], -1
    while after is not None:
        page = served.ok("GET", f"/v1/jobs/{job}/steps?after={after}&limit=3")
        rows += page["items"]
        after = page["next"]
    assert [row["step"] for row in rows] == list(range(7))
    for row, plan in zip(rows, plans, strict=True):
        for name in ("predicted_ms", "lower_bound_ms", "gap", "tokens"):
            assert row[name] == getattr(plan, name)
        assert row["sequences"] == len(plan.ids)
        schemes = Counter(pipeline.scheme for pipeline in plan.pipelines)
        assert Strategy.parse(row["strategy"]) == Strategy.from_counts(schemes)
        assert row["planning_ms"] > 0
        assert row["measured_ms"] == slowest.get(plan.step)
        assert row["error"] == (pytest.approx(0.1) if plan.step in slowest else None)
    assert [row["ranks_acknowledged"] for row in rows] == [WORLD] * 3 + [1, 0, 0, 0]
    assert [row["ranks_measured"] > 0 for row in rows] == [True] * 3 + [False] * 4


def test_errors_require_the_times_of_the_ranks_with_work(stocked: Stocked) -> None:
    served = stocked.served
    profile = load_shipped(PROFILE).restrict(measured=True, layout=(2, 1))
    document = make_proposal(profile, Workload(gpus=WORLD, max_len=4096, tokens=8000), [100] * 99)
    proposal = served.ok("POST", "/v1/proposals/documents", document.to_json().encode())["id"]
    served.ok("POST", "/v1/jobs", {"id": "partly", "proposal": proposal})
    batch = {"step": 0, "ids": [0], "lengths": [100]}
    served.ok("POST", "/v1/jobs/partly/batches", {"batches": [batch], "end": True})
    plan = plan_of(served, "partly", 0)
    (busy,) = [each for each in plan.pipelines if each.micro_batches]
    idle = tuple(rank for rank in range(WORLD) if rank not in busy.ranks)
    assert len(idle) >= len(busy.ranks)

    def report(ranks: tuple[int, ...], measured_ms: float) -> list[object]:
        for rank in ranks:
            times = {"step": 0, "rank": rank, "measured_ms": measured_ms}
            served.ok("POST", "/v1/jobs/partly/measurements", times)
        (row,) = served.ok("GET", "/v1/jobs/partly/steps")["items"]
        return [row[name] for name in ("measured_ms", "ranks_measured", "error")]

    assert report(idle, 9e3) == [None, 0, None]
    measured_ms = 1.5 * busy.micro_batches[0].cost_ms
    assert report(busy.ranks, measured_ms) == [measured_ms, len(busy.ranks), pytest.approx(0.5)]


def test_how_far_every_job_is(stocked: Stocked) -> None:
    served = stocked.served
    begun, halfway = stocked.job("far-begun", 9, look_ahead=4), stocked.job("far-halfway", 9, 4)
    plan_of(served, begun, 3)
    plan_of(served, halfway, 3)
    measure(served, halfway, range(2), 1.0)
    served.ok("POST", f"/v1/jobs/{halfway}/acks", {"step": 3, "rank": 1, "digest": None})
    plan_of(served, halfway, 5)
    rows, cursor = {}, ""
    while cursor is not None:
        page = served.ok("GET", f"/v1/progress?limit=1&cursor={cursor}")
        rows |= {row["id"]: row for row in page["items"]}
        cursor = page["next"]
    for job, slowest, fastest, last in ((begun, -1, -1, 3), (halfway, 1, 3, 5)):
        progress = served.ok("GET", f"/v1/jobs/{job}/progress")
        since = (rows[job].pop("since_acknowledged_s"), progress.pop("since_acknowledged_s"))
        assert rows[job] == progress
        assert (since == (None, None)) == (fastest < 0)
        assert not progress["stuck"]
        assert progress["slowest_ranks"] == [r for r in range(WORLD) if r != 1 or fastest < 0]
        assert (progress["slowest"], progress["fastest"]) == (slowest, fastest)
        assert (progress["last_planned_step"], progress["ahead"]) == (last, last - slowest)
        assert (progress["state"], progress["world_size"], progress["look_ahead"]) == (
            "planning",
            WORLD,
            4,
        )


def test_jobs_in_some_states(stocked: Stocked) -> None:
    served, stopped = stocked.served, stocked.job("some-stopped", 9)
    running = stocked.job("some-running", 9)
    served.ok("POST", f"/v1/jobs/{stopped}/stop")
    page = served.ok("GET", "/v1/progress?limit=1000&state=stopped,abandoned")
    assert [row["id"] for row in page["items"]] == [stopped]
    page = served.ok("GET", "/v1/progress?limit=1000&state=planning")
    listed = {row["id"] for row in page["items"]}
    assert running in listed
    assert stopped not in listed
    problem = served.problem("GET", "/v1/progress?state=planning,gone")
    assert "'gone' is none of planning, planned" in problem["detail"]


def test_one_step_in_time(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("timed", 2)
    plan = plan_of(served, job, 1)
    reply = served.send("GET", f"/v1/jobs/{job}/plans/1/timeline")
    durations = reply.json
    fraction = load_shipped(PROFILE).forward_fraction
    assert durations["simulated_ms"] == pytest.approx(simulate_plan_ms(plan, fraction))
    assert durations["simulated_ms"] <= durations["predicted_ms"] + 1e-6
    for pipeline, drawn in zip(plan.pipelines, durations["pipelines"], strict=True):
        assert drawn["ranks"] == list(pipeline.ranks)
        assert len(drawn["stages"]) == pipeline.scheme.pp
        for passes in drawn["stages"]:
            kinds = Counter((kind, micro) for kind, micro, _, _ in passes)
            wanted = range(len(pipeline.micro_batches))
            assert kinds == Counter((kind, micro) for kind in "FB" for micro in wanted)
            ends = [drawn["start_ms"], *(end for _, _, _, end in passes)]
            starts = [*(start for _, _, start, _ in passes), drawn["end_ms"]]
            assert all(end <= start + 0.002 for end, start in zip(ends, starts, strict=True))
    tag = {"If-None-Match": reply.headers["etag"]}
    assert served.send("GET", f"/v1/jobs/{job}/plans/1/timeline", headers=tag).status == 304


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("none/progress", 404, "there is no job none"),
        ("none/steps", 404, "there is no job none"),
        ("none/calibration", 404, "there is no job none"),
        ("none/measurements", 404, "there is no job none"),
        ("none/plans/0/timeline", 404, "there is no job none"),
        ("bad/plans/99/timeline", 404, "there is no plan of step 99 in job bad"),
        ("bad/measurements?after=3", 422, "query.after: '3': must be STEP.RANK"),
        ("bad/steps?after=-2", 422, "query.after: "),
        ("bad/calibration?steps=0", 422, "query.steps: "),
    ],
)
def test_bad_questions_are_problems(stocked: Stocked, path: str, status: int, detail: str) -> None:
    if stocked.served.send("GET", "/v1/jobs/bad").status == 404:
        stocked.job("bad", 1)
    assert detail in stocked.served.problem("GET", f"/v1/jobs/{path}", status=status)["detail"]
