"""A job whose ranks measure: the calibration error of its profile, and a refit that corrects it."""

from pathlib import Path

import pytest
from command_line import Outcome, call, complaint, succeeded
from measuring_ranks import measure, plan_of
from service_process import serving_here
from stocked_service import WORLD, Stocked, change_rows, stock

from seqplan import Profile, Strategy
from seqplan.costs.fit.calibration import LEAST_MEASURED
from seqplan.costs.shipped.catalogue import load_shipped

PROFILE = "llama-7b-a800-80gb"


STEPS = 14


def _refit(*arguments: str | Path) -> Outcome:
    return call("profile", "refit", *arguments)


def test_a_slower_cluster_is_warned_of_and_refitted(stocked: Stocked, tmp_path: Path) -> None:
    served, job = stocked.served, stocked.job("slower", STEPS, look_ahead=STEPS)
    quiet = served.ok("GET", f"/v1/jobs/{job}/calibration")
    assert (quiet["warning"], quiet["steps"]["last"], quiet["schemes"]) == (False, None, [])
    measure(served, job, range(STEPS), 1.3)
    calibration = served.ok("GET", f"/v1/jobs/{job}/calibration?points=5")
    assert calibration["profile"] == PROFILE
    assert calibration["steps"] == {"first": 0, "last": STEPS - 1, "measured": STEPS}
    assert calibration["pipelines"]["measured"] == calibration["pipelines"]["measurable"]
    assert calibration["pipelines"]["measurable"] <= calibration["pipelines"]["all"]
    warned = [judged for judged in calibration["schemes"] if judged["warning"]]
    assert warned
    assert calibration["warning"]
    for judged in calibration["schemes"]:
        assert (
            judged["error"]["median"]
            == judged["error"]["recent"]
            == judged["bias"]
            == pytest.approx(0.3)
        )
        assert (judged["stated"], judged["limit"], judged["limit_assumed"]) == (None, 0.05, True)
        assert judged["warning"] == (judged["pipelines"] >= LEAST_MEASURED)
        assert len(judged["points"]) == min(5, judged["pipelines"])
        for predicted_ms, measured_ms in judged["points"]:
            assert measured_ms == pytest.approx(1.3 * predicted_ms)
    assert "30.0 % slower than predicted" in warned[0]["message"]
    short = served.ok("GET", f"/v1/jobs/{job}/calibration?steps=1")
    assert short["steps"] == {"first": STEPS - 1, "last": STEPS - 1, "measured": 1}

    output = tmp_path / "refitted.json"
    server = ("--server", served.url, "--job", job)
    assert succeeded(_refit(*server, "-o", output)).splitlines()[-1] == f"written: {output}"
    rejected = complaint(_refit(*server, "--profile", "llama-13b-a800-80gb"))
    assert f"job {job} of {served.url} was planned from another profile" in rejected
    before, after = load_shipped(PROFILE).by_scheme, Profile.load(output).by_scheme
    for judged in warned:
        ((scheme, _),) = Strategy.parse(f"1×{judged['scheme']}").counts
        for name in "abc":
            expected = 1.3 * getattr(before[scheme].latency, name)
            assert getattr(after[scheme].latency, name) == pytest.approx(expected)
    changed = {str(scheme) for scheme, entry in after.items() if entry.origin == "measured"}
    assert changed == {judged["scheme"] for judged in warned}

    # The other form returns the same for the same plans and times.
    plans, times = tmp_path / "plans.jsonl", tmp_path / "times.jsonl"
    lines = [served.send("GET", f"/v1/jobs/{job}/plans/{step}").body for step in range(STEPS)]
    plans.write_bytes(b"\n".join(lines) + b"\n")
    cursor, rows = "", []
    while cursor is not None:
        page = served.ok("GET", f"/v1/jobs/{job}/measurements?limit=5&after={cursor}")
        rows += page["items"]
        cursor = page["next"]
    times.write_text("".join(f"{row}\n" for row in rows).replace("'", '"'))
    by_files = _refit("--profile", PROFILE, "--plans", plans, "--measurements", times)
    assert succeeded(by_files) == succeeded(_refit(*server, "--profile", PROFILE))


def test_refit_skips_plans_that_expire_after_their_times_are_listed(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    with serving_here(store) as served:
        job = stock(served).job("long", STEPS, look_ahead=STEPS)
        measure(served, job, range(STEPS), 1.3)
    change_rows(store, "DELETE FROM plans WHERE step < 2", "UPDATE jobs SET kept_from = 2")
    with serving_here(store) as served:
        assert served.problem("GET", f"/v1/jobs/{job}/plans/0", status=410)
        times = served.ok("GET", f"/v1/jobs/{job}/measurements?limit=1000")["items"]
        expired = sum(time["step"] < 2 for time in times)
        server = ("--server", served.url, "--job", job)
        text = succeeded(_refit(*server, "-o", tmp_path / "refitted.json"))
        assert (
            f"{expired} rank times left out: of 2 steps whose plans have expired, 0 the first"
            in text.splitlines()
        )
        outcome = _refit(*server, "--json")
        assert outcome.code == 0
        assert "2 steps whose plans have expired" in outcome.err


def test_a_profile_that_holds_is_not_warned_of(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("steady", STEPS, look_ahead=STEPS)
    measure(served, job, range(STEPS), 1.02)
    calibration = served.ok("GET", f"/v1/jobs/{job}/calibration")
    assert calibration["schemes"]
    assert not calibration["warning"]
    assert {entry["message"] for entry in calibration["schemes"]} == {None}


def test_a_refitted_profile_states_its_error(stocked: Stocked, tmp_path: Path) -> None:
    """Its limit comes from its validation, not from the assumption for published ones."""
    served, job = stocked.served, stocked.job("first", STEPS, look_ahead=STEPS)
    measure(served, job, range(STEPS), 1.3)
    output = tmp_path / "refitted.json"
    succeeded(_refit("--server", served.url, "--job", job, "-o", output))
    profile = served.ok("POST", "/v1/profiles", output.read_bytes())["id"]
    request = {"profile": profile, "lengths": stocked.lengths, "gpus": WORLD, "max_len": 4096}
    proposal = served.proposal({**request, "tokens": 8000})
    again = {"id": "again", "proposal": proposal, "lengths": stocked.lengths}
    served.ok("POST", "/v1/jobs", {**again, "steps": STEPS, "look_ahead": STEPS})
    measure(served, "again", range(STEPS), 1.3 / 1.3)
    calibration = served.ok("GET", "/v1/jobs/again/calibration")
    assert not calibration["warning"]
    stated = [entry for entry in calibration["schemes"] if not entry["limit_assumed"]]
    assert stated
    assert all(entry["stated"]["p90"] < 0.01 == entry["limit"] for entry in stated)


def test_refit_of_a_missing_job_is_one_line(stocked: Stocked, tmp_path: Path) -> None:
    served, job = stocked.served, stocked.job("unmeasured", 1)
    plan_of(served, job, 0)
    for arguments, message in [
        (("--server", served.url, "--job", job), "no rank has measured a step yet"),
        (("--server", served.url, "--job", "none"), "404: there is no job none"),
        (("--server", served.url), "--server requires --job"),
        (("--server", "ftp://x", "--job", job), "--server must be http://HOST:PORT: "),
        (("--server", "http://127.0.0.1:1", "--job", job), "no answer"),
        (("--plans", "p"), "--plans requires --profile"),
    ]:
        assert message in complaint(_refit(*arguments))


def test_refit_shows_its_token(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    token = succeeded(call("serve", "--store", store, "--add-token", "reader")).strip()
    with serving_here(store) as served:
        rejected = complaint(_refit("--server", served.url, "--job", "j"))
        assert "401: a valid bearer token is required" in rejected
        known = complaint(_refit("--server", served.url, "--job", "j", "--token", token))
        assert "404: there is no job j" in known
