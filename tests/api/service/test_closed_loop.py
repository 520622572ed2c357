"""Jobs whose later steps follow the measured times of earlier ones."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from command_line import call, succeeded
from measuring_ranks import plan_of
from service_process import PATIENCE_S, Served, serving_here
from stocked_service import DATA, MAX_LEN, WORLD, stock

from seqplan.api.service.closed_loop import _JobLoop
from seqplan.api.service.measured_steps import MeasuredStep, measure_loss
from seqplan.api.store.tables.revisions import Revision
from seqplan.costs.fit.measurements import Measurable
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.placement.fleet import Floats
from seqplan.plans.scheme import Scheme


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seqplan.api.service.closed_loop._EVERY_S", 0.1)
        with serving_here(tmp_path_factory.mktemp("loop") / "s.db") as running:
            yield running


@pytest.fixture(scope="module")
def job_fields(served: Served) -> dict[str, Any]:
    lengths = served.send("POST", "/v1/lengths", DATA.read_bytes()).json["id"]
    profile = {"profile": "llama-7b-a800-80gb", "schemes": ["measured"], "sync": "none"}
    proposal = {**profile, "lengths": lengths, "gpus": WORLD, "max_len": MAX_LEN, "tokens": 8000}
    return {"proposal": served.proposal(proposal), "lengths": lengths, "steps": 100_000}


def _run(served: Served, job: str, first: int, steps: int, speeds: Sequence[float] | Floats) -> int:
    """Do steps on ranks that take ``speeds`` times as long as the profile has it."""
    for step in range(first, first + steps):
        plan = plan_of(served, job, step)
        took = [0.0] * WORLD
        for pipeline in plan.pipelines:
            usual = sum(batch.cost_ms for batch in pipeline.micro_batches) / pipeline.slowdown
            for rank in pipeline.ranks:
                took[rank] += usual * speeds[rank]
        ack = {"step": step, "ranks": list(range(WORLD)), "digest": None}
        times = [took[rank] or None for rank in range(WORLD)]
        served.ok("POST", f"/v1/jobs/{job}/acks/many", {**ack, "measured_ms": times})
    return first + steps


def _revisions(served: Served, job: str, count: int) -> list[dict[str, Any]]:
    """The revisions of a job, as soon as there are so many."""
    ends = time.monotonic() + PATIENCE_S
    while True:
        items: list[dict[str, Any]] = served.ok("GET", f"/v1/jobs/{job}/revisions")["items"]
        if len(items) >= count:
            return items
        assert time.monotonic() < ends, items
        time.sleep(0.05)


def test_slow_rank_is_planned_around_and_losses_are_undone(
    served: Served, job_fields: dict[str, Any]
) -> None:
    served.ok("POST", "/v1/jobs", {**job_fields, "id": "slow", "tokens": 40_000, "refit": True})
    speeds = np.array([1.0, 1.0, 1.5, 1.0])
    done = _run(served, "slow", 0, 64, speeds)
    begin, slow = _revisions(served, "slow", 2)
    assert begin["kind"] == "begin"
    assert slow["kind"] == "refit"
    assert slow["slowdown"] == [{"rank": 2, "factor": 1.5}]
    assert slow["proposal"] == begin["proposal"]
    assert slow["step"] >= 64
    done = _run(served, "slow", done, slow["step"] - done, speeds)
    assert max(pipeline.slowdown for pipeline in plan_of(served, "slow", done).pipelines) == 1.5
    # All ranks become slower from then on: the revision stays, and the next one follows them.
    done = _run(served, "slow", done, 32, 2 * speeds)
    refit = _revisions(served, "slow", 3)[2]
    assert refit["kind"] == "refit"
    assert refit["slowdown"] == slow["slowdown"]
    done = _run(served, "slow", done, refit["step"] - done, 2 * speeds)
    # One rank becomes slower after it, so little that the plan may be the reason.
    done = _run(served, "slow", done, 16, 2 * speeds * [1.18, 1, 1, 1])
    rollback = _revisions(served, "slow", 4)[3]
    assert rollback["kind"] == "rollback"
    assert rollback["proposal"] == slow["proposal"]


def test_times_beyond_the_profiles_error_bring_the_next_proposal(
    served: Served, job_fields: dict[str, Any], tmp_path: Path
) -> None:
    served.ok("POST", "/v1/jobs", {**job_fields, "id": "all", "refit": True})
    done = _run(served, "all", 0, 32, [1.3] * WORLD)
    begin, refit = _revisions(served, "all", 2)
    assert refit["kind"] == "refit"
    assert refit["proposal"] != begin["proposal"]
    assert "1.300" in refit["reason"]
    before = plan_of(served, "all", refit["step"] - 1)
    _run(served, "all", done, refit["step"] - done, [1.3] * WORLD)
    after = plan_of(served, "all", refit["step"])
    assert before.provenance.profile != after.provenance.profile
    source = served.ok("GET", f"/v1/profiles/{after.provenance.profile.removeprefix('sha256:')}")
    assert "refitted to the steps of job all" in source["source"]
    served.problem("DELETE", f"/v1/proposals/{begin['proposal']}", status=409)
    # Records of all steps, each by its profile.
    written = tmp_path / "steps.jsonl"
    succeeded(call("log", "--server", served.url, "--job", "all", "--to", f"jsonl:{written}"))
    records = [json.loads(line) for line in written.read_text().splitlines()]
    assert [record["step"] for record in records][: after.step + 1] == [*range(after.step + 1)]


def test_proposal_of_a_job_is_changed_by_request(
    served: Served, job_fields: dict[str, Any]
) -> None:
    served.ok("POST", "/v1/jobs", {**job_fields, "id": "changed", "look_ahead": 2})
    other = stock(served).proposal
    plan_of(served, "changed", 1)
    revision = served.ok("PUT", "/v1/jobs/changed/proposal", {"proposal": other})
    assert (revision["kind"], revision["step"]) == ("request", 2)
    assert served.ok("PUT", "/v1/jobs/changed/proposal", {"proposal": other}) == revision
    _run(served, "changed", 0, 2, [1.0] * WORLD)
    assert plan_of(served, "changed", 2).provenance.proposal == f"sha256:{other}"
    longer = served.proposal(
        {
            "profile": "llama-7b-a800-80gb",
            "lengths": job_fields["lengths"],
            "gpus": WORLD,
            "max_len": 2 * MAX_LEN,
        }
    )
    problem = served.problem("PUT", "/v1/jobs/changed/proposal", {"proposal": longer})
    assert problem["detail"].endswith(f"has max_len {2 * MAX_LEN}, job changed has {MAX_LEN}")
    served.ok("POST", "/v1/jobs/changed/stop")
    back = {"proposal": job_fields["proposal"]}
    served.problem("PUT", "/v1/jobs/changed/proposal", back, status=409)


def test_a_service_that_starts_knows_factors_and_pauses_of_revisions() -> None:
    """Else it would revise jobs at once, and leave out factors that are just below a change."""
    row = cast("Any", SimpleNamespace(id="job", world_size=WORLD, first_step=0))
    known = [
        Revision("p", (), "begin", "", step=0, at=0),
        *(Revision("p", (), kind, "", step=step, at=0) for kind, step in (("refit", 64),) * 2),
        Revision("p", ((2, 1.04),), "rollback", "", step=100, at=0),
        Revision("p", ((2, 1.04),), "rollback", "", step=300, at=0),
    ]
    loop = _JobLoop(cast("Any", None), row, known, print, lambda *_: None)
    assert loop._slow_ranks.slowdown == (1.0, 1.0, 1.04, 1.0)
    assert (loop._due, loop._pause) == (300 + 256, 512)
    assert _JobLoop(cast("Any", None), row, known[:1], print, lambda *_: None)._due == 32


def test_uploaded_proposals_cannot_be_refitted(served: Served) -> None:
    stocked = stock(served)
    body = {"proposal": stocked.proposal, "lengths": stocked.lengths, "steps": 3, "refit": True}
    problem = served.problem("POST", "/v1/jobs", body)
    assert problem["detail"].startswith("refit: the proposal was uploaded")


def test_losses_within_noise_are_no_losses() -> None:
    profile = load_shipped("llama-7b-a800-80gb")
    draws = np.random.default_rng(0)

    def steps(factor: float, noise: float) -> list[MeasuredStep]:
        measured = []
        for number in range(16):
            tokens = float(draws.integers(1000, 9000))
            took = factor * (profile.schemes[0].latency.b * tokens) * draws.normal(1.0, noise)
            ranks = np.array([took, 0.0])
            measured.append(MeasuredStep(number, "", ranks, ranks, 0.0, tokens, ()))
        return measured

    measured = measure_loss(steps(1.0, 0.01), steps(1.06, 0.01), profile)
    assert measured is not None
    loss, limit = measured
    assert loss == pytest.approx(0.06, abs=0.02)
    assert loss > limit
    measured = measure_loss(steps(1.0, 0.1), steps(1.03, 0.1), profile)
    assert measured[0] < measured[1]


@pytest.mark.parametrize(
    ("scheme", "slower"), [(Scheme(1, 1, 1, 1), 0.0), (Scheme(2, 1, 1, 1), 1.0)]
)
def test_speed_that_ranks_share_is_no_loss_on_a_scheme_measured_before(
    scheme: Scheme, slower: float
) -> None:
    profile = load_shipped("llama-7b-a800-80gb")

    def steps(of: str, scheme: Scheme, factor: float) -> list[MeasuredStep]:
        measured = []
        for number in range(16):
            lengths = (1000 + 500 * number,)
            took = factor * profile.by_scheme[scheme].latency.micro_batch_ms(lengths)
            # The steps after are predicted by a profile of twice the times.
            ranks, predicted = np.full(2, took), np.full(2, took if of == "a" else took / factor)
            pipeline = Measurable(scheme, range(2), lengths, 1, took)
            measured.append(
                MeasuredStep(number, of, ranks, predicted, 0.0, took / factor, (pipeline,))
            )
        return measured

    before = steps("a", Scheme(1, 1, 1, 1), 1.0)
    measured = measure_loss(before, steps("b", scheme, 2.0), profile)
    assert measured[0] == pytest.approx(slower)
