"""Jobs that go on from a step of another: the same global batches, planned for other GPUs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_process import Served, npy, serving_here

from seqplan import Plan, from_json, rank_view
from seqplan.planner.batches.sampler import Sampler, SamplerState
from seqplan.runtime.sources.http_source import HttpSource

ROOT = Path(__file__).parents[3]
LENGTHS = np.load(ROOT / "examples" / "data" / "code.npy")[:60]
MAX_LEN, TOKENS, STEPS = 512, 1500, 24


@dataclass(frozen=True)
class Small:
    """A service with a small model's profile; proposals by GPUs and longest sequence."""

    served: Served
    lengths: str
    proposals: dict[tuple[int, int], str]

    def job(self, name: str, **more: Any) -> Any:
        request = {"id": name, "proposal": self.proposals[4, MAX_LEN], "look_ahead": STEPS, **more}
        return self.served.ok("POST", "/v1/jobs", request)

    def drawn(self, name: str, steps: int = STEPS) -> Any:
        return self.job(name, lengths=self.lengths, steps=steps, tokens=TOKENS)

    def on_two(self, name: str, job: str, step: int, **more: Any) -> Any:
        proposal = self.proposals[2, 2 * MAX_LEN]
        return self.job(name, proposal=proposal, continues={"job": job, "step": step}, **more)

    def plans(self, job: str, steps: range) -> list[Plan]:
        paths = [f"/v1/jobs/{job}/plans/{step}?wait=60" for step in steps]
        return [from_json(self.served.send("GET", path).body.decode()) for path in paths]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    folder = tmp_path_factory.mktemp("continuing")
    with serving_here(folder / "store.db") as served:
        ids = served.upload_small(LENGTHS)
        proposals = {}
        for gpus, max_len in ((4, MAX_LEN), (2, 2 * MAX_LEN), (2, MAX_LEN // 2)):
            request = {**ids, "gpus": gpus, "max_len": max_len, "tokens": 3000}
            proposals[gpus, max_len] = served.proposal(request)
        yield Small(served, ids["lengths"], proposals)


def batches(plans: list[Plan]) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    return [(plan.step, plan.ids, plan.lengths) for plan in plans]


def test_the_same_batches_on_another_number_of_gpus(small: Small) -> None:
    small.drawn("four")
    whole = small.plans("four", range(STEPS))
    assert max(max(plan.lengths) for plan in whole) == MAX_LEN  # so that truncation shows
    row = small.on_two("two", "four", 17)
    assert (row["first_step"], row["continues"], row["tokens"]) == (17, "four", TOKENS)
    again = small.plans("two", range(17, STEPS))
    assert batches(again) == batches(whole)[17:]
    assert {plan.world_size for plan in again} == {2}
    # A job that continues one that continues another.
    small.on_two("three", "two", 20)
    assert batches(small.plans("three", range(20, STEPS))) == batches(whole)[20:]
    assert small.served.problem("GET", "/v1/jobs/two/plans/24", status=410)["last_step"] == 23


def test_a_continuing_job_needs_the_other_no_more(small: Small) -> None:
    small.drawn("gone")
    whole = small.plans("gone", range(STEPS))
    small.on_two("left", "gone", 5, look_ahead=2)
    assert small.served.send("DELETE", "/v1/jobs/gone").status == 204
    source = HttpSource(small.served.url, "left")
    for step in range(5, STEPS):
        views = [source.view(step, rank, 60) for rank in range(2)]
        plan = small.plans("left", range(step, step + 1))[0]
        assert views == [rank_view(plan, rank, digest=views[0].digest) for rank in range(2)]
        assert batches([plan]) == batches(whole)[step : step + 1]
        for view in views:
            source.acknowledge(step, view.rank, view.digest)
    source.close()


def test_more_steps_than_the_job_that_is_continued(small: Small) -> None:
    small.drawn("short", 4)
    whole = small.drawn("long", 9)
    small.plans("short", range(4))
    assert small.on_two("longer", "short", 4, steps=9)["last_step"] == whole["last_step"] == 8
    assert batches(small.plans("longer", range(4, 9))) == batches(small.plans("long", range(4, 9)))


def test_the_state_before_each_step(small: Small) -> None:
    small.drawn("states")
    plans = small.plans("states", range(STEPS))
    sampler = Sampler(LENGTHS, TOKENS, MAX_LEN, 0)
    epochs = set()
    for step in (*range(0, STEPS, 3), STEPS):
        state = small.served.ok("GET", f"/v1/jobs/states/state?step={step}")
        assert (state["step"], state["carry_over"], state["seed"]) == (step, [], 0)
        assert (state["tokens"], state["max_len"]) == (TOKENS, MAX_LEN)
        epochs.add(state["epoch"])
        known = SamplerState(step, state["epoch"], state["cursor"])
        assert known == sampler.state_before(step)
        for (_, batch), plan in zip(sampler.resume(known), plans[step:], strict=False):
            assert (batch.step, batch.ids, batch.lengths) == (plan.step, plan.ids, plan.lengths)
        assert state["lengths"] == f"sha256:{small.lengths}"
        planner = plans[0].provenance
        assert (state["proposal"], state["profile"]) == (planner.proposal, planner.profile)
    assert epochs == {0, 1}
    # The continuing job has the same states, whatever its proposal is.
    small.on_two("states-2", "states", 11)
    small.plans("states-2", range(11, STEPS))
    first, two = (
        small.served.ok("GET", f"/v1/jobs/{job}/state?step=20") for job in ("states", "states-2")
    )
    same = ("step", "epoch", "cursor", "seed", "tokens", "max_len", "lengths")
    assert [first[name] for name in same] == [two[name] for name in same]
    assert first["proposal"] != two["proposal"]


def test_states_that_there_are_not(small: Small) -> None:
    served = small.served
    small.drawn("stateless", 5)
    small.plans("stateless", range(5))
    problem = served.problem("GET", "/v1/jobs/stateless/state?step=6", status=410)
    assert problem["type"].endswith("end-of-plans")
    small.job("slow", lengths=small.lengths, steps=9, look_ahead=2)
    small.plans("slow", range(2))
    assert served.ok("GET", "/v1/jobs/slow/state?step=2")["step"] == 2
    assert served.problem("GET", "/v1/jobs/slow/state?step=3", status=409)["last_step"] == 1
    small.job("none-drawn")
    problem = served.problem("GET", "/v1/jobs/none-drawn/state?step=0", status=409)
    assert problem["type"].endswith("no-sampler")
    small.on_two("later", "stateless", 3)
    assert served.problem("GET", "/v1/jobs/later/state?step=2", status=404)["first_step"] == 3
    assert served.problem("GET", "/v1/jobs/nobody/state?step=2", status=404)
    assert served.problem("GET", "/v1/jobs/stateless/state", status=422)


def test_a_step_before_the_first_is_a_problem(small: Small) -> None:
    small.drawn("whole", 6)
    small.plans("whole", range(6))
    small.on_two("part", "whole", 4)
    for path in ("plans/3", "plans/3/ranks/0"):
        problem = small.served.problem("GET", f"/v1/jobs/part/{path}?wait=20", status=404)
        assert problem["type"].endswith("before-first-step")
        assert "step 3 is of that job" in problem["detail"]
    assert small.served.ok("GET", "/v1/jobs/part/progress")["slowest"] == -1


def test_pushed_batches_go_over(small: Small) -> None:
    def pushed(*steps: int, end: bool = False) -> dict[str, Any]:
        rows = [{"step": k, "ids": [k, k + 1], "lengths": [100 + k, 40]} for k in steps]
        return {"batches": rows, "end": end}

    served = small.served
    small.job("pushed")
    served.ok("POST", "/v1/jobs/pushed/batches", pushed(0, 1, 2, 5))
    row = small.on_two("pushed-2", "pushed", 2)
    assert (row["first_step"], row["lengths"], row["last_step"]) == (2, None, None)
    (plan,) = small.plans("pushed-2", range(2, 3))
    assert (plan.ids, plan.lengths, plan.world_size) == ((2, 3), (102, 40), 2)
    assert small.plans("pushed-2", range(5, 6))[0].ids == (5, 6)
    problem = served.problem("POST", "/v1/jobs/pushed-2/batches", pushed(5), 409)
    assert problem["last_step"] == 5
    served.ok("POST", "/v1/jobs/pushed-2/batches", pushed(7, end=True))
    assert small.plans("pushed-2", range(7, 8))[0].ids == (7, 8)
    # None was copied: pushed batches begin with the first step.
    small.on_two("pushed-3", "pushed", 6)
    problem = served.problem("POST", "/v1/jobs/pushed-3/batches", pushed(5), 409)
    assert problem["last_step"] == 5
    served.ok("POST", "/v1/jobs/pushed-3/batches", pushed(6))
    assert small.plans("pushed-3", range(6, 7))[0].ids == (6, 7)
    # The end goes over, too.
    small.on_two("pushed-4", "pushed-2", 7)
    assert small.plans("pushed-4", range(7, 8))[0].ids == (7, 8)
    assert served.problem("GET", "/v1/jobs/pushed-4/plans/8?wait=20", status=410)["last_step"] == 7


@pytest.mark.parametrize(
    ("more", "status", "detail"),
    [
        ({"continues": {"job": "nobody", "step": 1}}, 422, "there is no job nobody"),
        ({"continues": {"job": "begun", "step": 6}}, 422, "6 is beyond the last of 6 steps, 5"),
        ({"continues": {"job": "begun", "step": 4}}, 409, "is not planned up to step 4"),
        ({"continues": {"job": "begun", "step": -1}}, 422, "body.continues.step: "),
        ({"continues": {"job": "begun"}}, 422, "body.continues.step: Field required"),
        ({"steps": 2}, 422, "continues.step: 2 is beyond the last of 2 steps, 1"),
        ({"tokens": 900}, 422, "tokens: is that of the job that is continued; leave it out"),
        ({"seed": 0}, 422, "seed: is that of the job that is continued; leave it out"),
        ({"lengths": "x"}, 422, "lengths: is that of the job that is continued; leave it out"),
        ({"proposal": "x"}, 422, "there is no proposal x"),
        (
            {"short": True},
            422,
            "is for sequences of up to 256 tokens, but those of job begun have up to 512; propose",
        ),
    ],
)
def test_jobs_that_cannot_be_continued(
    small: Small, more: dict[str, Any], status: int, detail: str
) -> None:
    if small.served.send("GET", "/v1/jobs/begun").status == 404:
        small.job("begun", lengths=small.lengths, steps=6, tokens=TOKENS, look_ahead=3)
        small.plans("begun", range(3))
    short = small.proposals[2, MAX_LEN // 2 if more.get("short") else 2 * MAX_LEN]
    request = {"proposal": short, "continues": {"job": "begun", "step": 2}, **more}
    request.pop("short", None)
    assert detail in small.served.problem("POST", "/v1/jobs", request, status)["detail"]


def test_pushed_jobs_that_cannot_be_continued(small: Small) -> None:
    small.job("ended")
    row = {"step": 3, "ids": [1], "lengths": [9]}
    small.served.ok("POST", "/v1/jobs/ended/batches", {"batches": [row], "end": True})
    request = {"proposal": small.proposals[2, 1024], "continues": {"job": "ended", "step": 4}}
    problem = small.served.problem("POST", "/v1/jobs", request)
    assert problem["detail"] == "continues.step: job ended ends with step 3"
    request = {**request, "continues": {"job": "ended", "step": 3}, "steps": 9}
    assert small.served.problem("POST", "/v1/jobs", request)["detail"] == (
        "steps: is for jobs with lengths"
    )


def test_a_state_survives_the_service(small: Small, tmp_path: Path) -> None:
    """A service begun again goes on drawing from the kept state, not from the beginning."""
    document = small.served.send(
        "GET", f"/v1/proposals/{small.proposals[4, MAX_LEN]}/document"
    ).body
    plans: list[Plan] = []
    for steps in (range(7), range(7, STEPS)):
        with serving_here(tmp_path / "s.db") as served:
            proposal = served.ok("POST", "/v1/proposals/documents", document)["id"]
            lengths = served.ok("POST", "/v1/lengths", npy(LENGTHS))["id"]
            again = Small(served, lengths, {(4, MAX_LEN): proposal})
            if not plans:
                again.job("job", lengths=lengths, steps=STEPS, tokens=TOKENS, look_ahead=3)
            for step in steps:
                plans += again.plans("job", range(step, step + 1))
                for rank in range(4):
                    ack = {"step": step, "rank": rank, "digest": None}
                    served.ok("POST", "/v1/jobs/job/acks", ack)
    drawn = Sampler(LENGTHS, TOKENS, MAX_LEN, 0).batches(STEPS)
    assert batches(plans) == [(batch.step, batch.ids, batch.lengths) for batch in drawn]
    assert json.loads(document)["gpus"] == 4
