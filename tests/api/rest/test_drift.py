"""A job whose ranks measure: its steps, the drift of its profile, and a refit that mends it."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest
from measuring_ranks import measure, plan_of
from service_process import COMMAND, serving
from stocked_service import WORLD, Stocked

from seqplan.planner.simulation.timeline import simulate_plan_ms
from seqplan.plans.scheme import Strategy
from seqplan.profiler.fit.drift import LEAST_MEASURED
from seqplan.profiler.profile import Profile
from seqplan.profiler.shipped.catalogue import shipped

PROFILE = "llama-7b-a800-80gb"
STEPS = 14


def _refit(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    line = [*COMMAND, "refit", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_steps_page_by_page(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("stepwise", 7, look_ahead=7)
    plans = [plan_of(served, job, step) for step in range(7)]
    slowest = measure(served, job, range(3), 1.1)
    served.ok("POST", f"/v1/jobs/{job}/acks", {"step": 3, "rank": 2, "digest": None})
    found, after = [], -1
    while after is not None:
        page = served.ok("GET", f"/v1/jobs/{job}/steps?after={after}&limit=3")
        found += page["items"]
        after = page["next"]
    assert [item["step"] for item in found] == list(range(7))
    for item, plan in zip(found, plans, strict=True):
        for name in ("predicted_ms", "lower_bound_ms", "gap", "tokens"):
            assert item[name] == getattr(plan, name)
        assert item["sequences"] == len(plan.ids)
        schemes = Counter(pipeline.scheme for pipeline in plan.pipelines)
        assert Strategy.parse(item["strategy"]) == Strategy.of(schemes)
        assert item["planning_ms"] > 0
        assert item["measured_ms"] == slowest.get(plan.step)
    assert [item["ranks_acknowledged"] for item in found] == [WORLD] * 3 + [1, 0, 0, 0]
    assert [item["ranks_measured"] > 0 for item in found] == [True] * 3 + [False] * 4


def test_how_far_every_job_is(stocked: Stocked) -> None:
    served = stocked.served
    begun, halfway = stocked.job("far-begun", 9, look_ahead=4), stocked.job("far-halfway", 9, 4)
    plan_of(served, begun, 3)
    plan_of(served, halfway, 3)
    measure(served, halfway, range(2), 1.0)
    served.ok("POST", f"/v1/jobs/{halfway}/acks", {"step": 3, "rank": 1, "digest": None})
    plan_of(served, halfway, 5)
    found, cursor = {}, ""
    while cursor is not None:
        page = served.ok("GET", f"/v1/progress?limit=1&cursor={cursor}")
        found |= {item["id"]: item for item in page["items"]}
        cursor = page["next"]
    for job, slowest, fastest, last in ((begun, -1, -1, 3), (halfway, 1, 3, 5)):
        told = served.ok("GET", f"/v1/jobs/{job}/progress")
        assert found[job] == told
        assert (told["slowest"], told["fastest"]) == (slowest, fastest)
        assert (told["last_planned_step"], told["ahead"]) == (last, last - slowest)
        assert (told["state"], told["world_size"], told["look_ahead"]) == ("planning", WORLD, 4)


def test_a_slower_cluster_is_warned_of_and_refitted(stocked: Stocked, tmp_path: Path) -> None:
    served, job = stocked.served, stocked.job("slower", STEPS, look_ahead=STEPS)
    quiet = served.ok("GET", f"/v1/jobs/{job}/drift")
    assert (quiet["warning"], quiet["steps"]["last"], quiet["schemes"]) == (False, None, [])
    measure(served, job, range(STEPS), 1.3)
    told = served.ok("GET", f"/v1/jobs/{job}/drift?points=5")
    assert told["profile"] == PROFILE
    assert told["steps"] == {"first": 0, "last": STEPS - 1, "measured": STEPS}
    assert told["pipelines"]["measured"] == told["pipelines"]["measurable"]
    assert told["pipelines"]["measurable"] <= told["pipelines"]["all"]
    warned = [each for each in told["schemes"] if each["warning"]]
    assert warned
    assert told["warning"]
    for each in told["schemes"]:
        assert (
            each["error"]["median"] == each["error"]["recent"] == each["bias"] == pytest.approx(0.3)
        )
        assert (each["stated"], each["limit"], each["limit_assumed"]) == (None, 0.05, True)
        assert each["warning"] == (each["pipelines"] >= LEAST_MEASURED)
        assert len(each["points"]) == min(5, each["pipelines"])
        for predicted_ms, measured_ms in each["points"]:
            assert measured_ms == pytest.approx(1.3 * predicted_ms)
    assert "30.0% slower than predicted" in warned[0]["message"]
    short = served.ok("GET", f"/v1/jobs/{job}/drift?steps=1")
    assert short["steps"] == {"first": STEPS - 1, "last": STEPS - 1, "measured": 1}

    output = tmp_path / "refitted.json"
    done = _refit("--server", served.url, "--job", job, "-o", output)
    assert done.returncode == 0, done.stderr
    before, after = shipped(PROFILE).by_scheme, Profile.load(output).by_scheme
    for each in warned:
        ((scheme, _),) = Strategy.parse(f"1×{each['scheme']}").counts
        for name in "abc":
            expected = 1.3 * getattr(before[scheme].latency, name)
            assert getattr(after[scheme].latency, name) == pytest.approx(expected)
    changed = {str(scheme) for scheme, entry in after.items() if entry.origin == "measured"}
    assert changed == {each["scheme"] for each in warned}

    # The other form says the same of the same plans and times.
    plans, times = tmp_path / "plans.jsonl", tmp_path / "times.jsonl"
    lines = [served.ask("GET", f"/v1/jobs/{job}/plans/{step}").body for step in range(STEPS)]
    plans.write_bytes(b"\n".join(lines) + b"\n")
    cursor, rows = "", []
    while cursor is not None:
        page = served.ok("GET", f"/v1/jobs/{job}/measurements?limit=5&after={cursor}")
        rows += page["items"]
        cursor = page["next"]
    times.write_text("".join(f"{row}\n" for row in rows).replace("'", '"'))
    by_files = _refit("--profile", PROFILE, "--plans", plans, "--measurements", times)
    assert by_files.returncode == 0, by_files.stderr
    assert by_files.stdout == done.stdout


def test_a_profile_that_holds_is_not_warned_of(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("steady", STEPS, look_ahead=STEPS)
    measure(served, job, range(STEPS), 1.02)
    told = served.ok("GET", f"/v1/jobs/{job}/drift")
    assert told["schemes"]
    assert not told["warning"]
    assert {each["message"] for each in told["schemes"]} == {None}


def test_a_refitted_profile_states_its_error(stocked: Stocked, tmp_path: Path) -> None:
    """Its limit comes from what it was judged by, not from what is assumed of published ones."""
    served, job = stocked.served, stocked.job("first", STEPS, look_ahead=STEPS)
    measure(served, job, range(STEPS), 1.3)
    output = tmp_path / "refitted.json"
    assert _refit("--server", served.url, "--job", job, "-o", output).returncode == 0
    profile = served.ok("POST", "/v1/profiles", output.read_bytes())["id"]
    asked = {"profile": profile, "lengths": stocked.lengths, "gpus": WORLD, "max_len": 4096}
    proposal = served.proposal({**asked, "tokens": 8000})
    again = {"id": "again", "proposal": proposal, "lengths": stocked.lengths}
    served.ok("POST", "/v1/jobs", {**again, "steps": STEPS, "look_ahead": STEPS})
    measure(served, "again", range(STEPS), 1.3 / 1.3)
    told = served.ok("GET", "/v1/jobs/again/drift")
    assert not told["warning"]
    stated = [each for each in told["schemes"] if not each["limit_assumed"]]
    assert stated
    assert all(each["stated"]["p90"] < 0.01 == each["limit"] for each in stated)


def test_one_step_in_time(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("timed", 2)
    plan = plan_of(served, job, 1)
    reply = served.ask("GET", f"/v1/jobs/{job}/plans/1/timeline")
    told = reply.json
    fraction = shipped(PROFILE).forward_fraction
    assert told["simulated_ms"] == pytest.approx(simulate_plan_ms(plan, fraction))
    assert told["simulated_ms"] <= told["predicted_ms"] + 1e-6
    for pipeline, drawn in zip(plan.pipelines, told["pipelines"], strict=True):
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
    assert served.ask("GET", f"/v1/jobs/{job}/plans/1/timeline", headers=tag).status == 304


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("none/progress", 404, "there is no job none"),
        ("none/steps", 404, "there is no job none"),
        ("none/drift", 404, "there is no job none"),
        ("none/measurements", 404, "there is no job none"),
        ("none/plans/0/timeline", 404, "there is no job none"),
        ("bad/plans/99/timeline", 404, "there is no plan of step 99 in job bad"),
        ("bad/measurements?after=3", 422, "query.after: '3': wants STEP.RANK"),
        ("bad/steps?after=-2", 422, "query.after: "),
        ("bad/drift?steps=0", 422, "query.steps: "),
    ],
)
def test_bad_questions_are_problems(stocked: Stocked, path: str, status: int, detail: str) -> None:
    if stocked.served.ask("GET", "/v1/jobs/bad").status == 404:
        stocked.job("bad", 1)
    assert detail in stocked.served.problem("GET", f"/v1/jobs/{path}", status=status)["detail"]


def test_refit_of_what_is_not_there_is_one_line(stocked: Stocked, tmp_path: Path) -> None:
    served, job = stocked.served, stocked.job("unmeasured", 1)
    plan_of(served, job, 0)
    for arguments, said in [
        (("--server", served.url, "--job", job), "no rank has measured a step yet"),
        (("--server", served.url, "--job", "none"), "404: there is no job none"),
        (("--server", served.url), "say which job of it with --job"),
        (("--server", "ftp://x", "--job", job), "--server: wants http://HOST:PORT"),
        (("--server", "http://127.0.0.1:1", "--job", job), "no answer"),
        (("--plans", "p"), "--plans: wants --profile, too"),
    ]:
        done = _refit(*arguments)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert said in done.stderr


def test_refit_shows_its_token(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    line = [*COMMAND, "serve", "--store", str(store), "--add-token", "reader"]
    made = subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()
    with serving("--store", store, "--port", 0) as served:
        done = _refit("--server", served.url, "--job", "j")
        assert "401: this service wants a bearer token" in done.stderr
        done = _refit("--server", served.url, "--job", "j", "--token", made)
        assert "404: there is no job j" in done.stderr
