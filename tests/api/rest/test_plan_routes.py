"""Plans and rank views as ranks request them from a real service process."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from service_process import PATIENCE_S, Reply, serving, serving_here
from stocked_service import DATA, MAX_LEN, WORLD, Stocked, stock

from seqplan import Workload, digest, from_json, make_proposal, rank_view
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.runtime.errors import PlanError
from seqplan.runtime.sources.http_source import FAN_OUT_RANKS, HttpSource


def test_a_plan_and_its_views(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("views", 2)
    reply = served.send("GET", f"/v1/jobs/{job}/plans/0?wait=30")
    plan = from_json(reply.body.decode())
    tagged = reply.headers["etag"].strip('"')
    assert plan.world_size == WORLD
    source = HttpSource(served.url, job)
    for rank in range(WORLD):
        assert source.view(0, rank, 30) == rank_view(plan, rank, digest=tagged)
    source.close()
    tag = reply.headers["etag"]
    for known in (tag, f"W/{tag}", "*", f'"other", {tag}'):
        headers = {"If-None-Match": known}
        assert served.send("GET", f"/v1/jobs/{job}/plans/0", headers=headers).status == 304
    other = {"If-None-Match": f'"other", {tag[:-2]}"'}
    assert served.send("GET", f"/v1/jobs/{job}/plans/0", headers=other).status == 200
    figures = served.ok("GET", f"/v1/jobs/{job}/plans/0/simulate")
    assert figures["lower_bound_ms"] <= figures["predicted_ms"]
    assert b"step 0" in served.send("GET", f"/v1/jobs/{job}/plans/0/explain").body


def test_views_of_many_ranks_are_written_when_first_requested(tmp_path: Path) -> None:
    workload = Workload(gpus=FAN_OUT_RANKS, max_len=MAX_LEN, tokens=400_000)
    profile = load_shipped("llama-7b-a800-80gb").restrict(measured=True)
    document = make_proposal(profile, workload, np.load(DATA), sync=None).to_json()
    with serving_here(tmp_path / "s.db") as served:
        proposal = served.ok("POST", "/v1/proposals/documents", document.encode())["id"]
        lengths = served.ok("POST", "/v1/lengths", DATA.read_bytes())["id"]
        request = {"id": "many", "proposal": proposal, "lengths": lengths, "steps": 2}
        served.ok("POST", "/v1/jobs", request)
        path = "/v1/jobs/many/plans"
        plan = from_json(served.send("GET", f"{path}/0?wait=30").body.decode())
        last = FAN_OUT_RANKS - 1

        def view(rank: int) -> object:
            return served.ok("GET", f"{path}/0/ranks/{rank}")

        with ThreadPoolExecutor(8) as pool:  # at once: written once for all of them
            views = list(pool.map(view, [0, 7, last] * 8))
        assert views[:3] == [
            json.loads(json.dumps(rank_view(plan, rank, digest=digest(plan)).to_dict()))
            for rank in (0, 7, last)
        ]
        assert views == views[:3] * 8
        assert served.problem("GET", f"{path}/0/ranks/{last + 1}", status=404)
        # Its first request that the framework answers, not the middleware.
        assert served.ok("GET", f"{path}/1/ranks/{last}?wait=30.0000000001")["rank"] == last
        served.send("DELETE", "/v1/jobs/many")
        assert served.problem("GET", f"{path}/0/ranks/0", status=404)


def test_planning_keeps_ahead_of_the_slowest_rank_only(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("ahead", 9, look_ahead=2)
    assert served.send("GET", f"/v1/jobs/{job}/plans/1?wait=30").status == 200
    assert served.send("GET", f"/v1/jobs/{job}/plans/2?wait=0.5").status == 204
    for rank in range(1, WORLD):
        served.ok("POST", f"/v1/jobs/{job}/acks", {"step": 0, "rank": rank, "digest": None})
    assert served.send("GET", f"/v1/jobs/{job}/plans/2?wait=0.5").status == 204
    answers: list[Reply] = []
    path = f"/v1/jobs/{job}/plans/2/ranks/0?wait=30"
    waiting = threading.Thread(target=lambda: answers.append(served.send("GET", path)))
    waiting.start()
    served.ok("POST", f"/v1/jobs/{job}/acks", {"step": 0, "rank": 0, "digest": None})
    waiting.join(PATIENCE_S)
    assert [answer.status for answer in answers] == [200]
    assert served.ok("GET", f"/v1/jobs/{job}")["last_planned_step"] == 2


def test_waiting_ranks_get_the_error_of_a_step(tmp_path: Path) -> None:
    """A job whose lengths are damaged on the disk: its ranks get the error, none waits for ever."""
    with serving_here(tmp_path / "s.db") as served:
        stocked = stock(served)
        job = stocked.job("lost", 6, look_ahead=2)
        before = served.send("GET", f"/v1/jobs/{job}/plans/1?wait=30").body
    damaged = tmp_path / "s.db.files" / "lengths" / f"{stocked.lengths}.npy"
    damaged.write_bytes(b"\x93NUMPY broken")
    with serving_here(tmp_path / "s.db") as served:
        source = HttpSource(served.url, job)
        with pytest.raises(PlanError, match="step 2 of job lost cannot be planned: ArrayDamaged"):
            source.view(2, 0, 60)
        source.close()
        assert served.problem("GET", f"/v1/jobs/{job}/plans/4", status=424)["failed_step"] == 2
        assert served.send("GET", f"/v1/jobs/{job}/plans/1").body == before
        assert served.ok("GET", f"/v1/jobs/{job}")["state"] == "failed"


def test_a_service_ends_while_ranks_wait(tmp_path: Path, stocked: Stocked) -> None:
    document = stocked.served.ok("GET", f"/v1/proposals/{stocked.proposal}")["document"]
    with serving("--store", tmp_path / "s.db", "--port", 0) as served:
        proposal = served.ok("POST", "/v1/proposals/documents", document)["id"]
        job = served.ok("POST", "/v1/jobs", {"proposal": proposal})["id"]
        answers: list[Reply] = []
        path = f"/v1/jobs/{job}/plans/0?wait=50"
        waiting = threading.Thread(target=lambda: answers.append(served.send("GET", path)))
        waiting.start()
        time.sleep(0.5)
        served.process.terminate()
        waiting.join(PATIENCE_S)
        assert [answer.status for answer in answers] == [204]
