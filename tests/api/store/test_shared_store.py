"""Several services on one PostgreSQL store: each serves every job, one at a time plans it."""

import json
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from command_line import process
from service_process import Served, serving, serving_here
from stocked_service import DATA, WORLD, deliver, stock

STEPS = 12


def _published(served: Served) -> int:
    text = served.send("GET", "/metrics").body.decode()
    line = re.search(r"^seqplan_publications_total (\d+)\.0", text, re.MULTILINE)
    assert line is not None, text
    return int(line[1])


def test_two_services_share_a_job(postgresql_url: str, tmp_path: Path) -> None:
    with serving_here(tmp_path / "alone.db") as served:
        stock(served).job("job", STEPS)
        expected = deliver(served, served, 0, STEPS)

    shared = ("--store", postgresql_url, "--files", tmp_path / "files", "--port", 0)
    with serving(*shared) as first, serving(*shared) as other, ThreadPoolExecutor(1) as threads:
        stocked = stock(first)
        # Waits at the other before the job's plans are there, and soon gets them.
        stocked.job("job", STEPS)
        waiting = threads.submit(other.send, "GET", "/v1/jobs/job/plans/0?wait=60")
        assert json.loads(waiting.result().body)["step"] == 0
        digests = deliver(other, first, 0, 3) + deliver(first, other, 3, 6)
        plans, idle = (first, other) if _published(first) else (other, first)
        assert _published(idle) == 0
        plans.process.send_signal(signal.SIGKILL)
        plans.process.wait()
        # Whoever is left goes on where the other ended.
        digests += deliver(idle, idle, 6, STEPS)
        assert 0 < _published(idle) <= STEPS - 6
        lines = [idle.send("GET", f"/v1/jobs/job/plans/{k}").body for k in range(STEPS)]
        assert [json.loads(line)["step"] for line in lines] == list(range(STEPS))
        assert idle.ok("GET", "/v1/jobs/job")["state"] == "planned"
    assert digests == expected


def test_proposals_are_made_by_one(postgresql_url: str, tmp_path: Path) -> None:
    shared = ("--store", postgresql_url, "--files", tmp_path / "files", "--port", 0)
    with serving(*shared) as first, serving(*shared) as other:
        lengths = first.ok("POST", "/v1/lengths", DATA.read_bytes())["id"]
        request = {"profile": "llama-7b-a800-80gb", "lengths": lengths, "gpus": WORLD}
        key = first.proposal({**request, "max_len": 4096, "tokens": 8000})
        assert other.ok("GET", f"/v1/proposals/{key}")["state"] == "ready"
        # A job that is begun at one is soon seen by the other, though it plans nothing of it.
        other.ok("POST", "/v1/jobs", {"id": "j", "proposal": key})
        batch = {"step": 0, "ids": [5], "lengths": [100]}
        first.ok("POST", "/v1/jobs/j/batches", {"batches": [batch]})
        assert first.send("GET", "/v1/jobs/j/plans/0?wait=60").json["sequences"]["ids"] == [5]
        assert _published(first) + _published(other) == 1


def test_two_sidecars_of_one_job(postgresql_url: str, tmp_path: Path) -> None:
    np.save(tmp_path / "lengths.npy", np.load(DATA)[:3000])
    job = tmp_path / "job.toml"
    job.write_text(
        'profile = "llama-7b-a800-80gb"\nlengths = "lengths.npy"\ngpus = 4\nmax_len = 4096\n'
        f'tokens = 8000\nsteps = 4\nlook_ahead = 4\nport = 0\nstore = "{postgresql_url}"\n'
        'files = "shared"\n'
    )

    def plans() -> tuple[list[bytes], int]:
        with serving("--job", job, command="sidecar") as served:
            paths = [f"/v1/jobs/job/plans/{step}?wait=60" for step in range(4)]
            lines = [served.send("GET", path).body for path in paths]
            together.wait(60)  # both have all plans before either ends
            return lines, _published(served)

    together = threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        (first, by_one), (other, by_other) = threads.map(lambda _: plans(), range(2))
    assert first == other
    assert sorted((by_one, by_other)) == [0, 4]


def test_a_database_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="no psycopg: install seqplan[postgresql]")
    url = "postgresql+psycopg://seqplan:secret@127.0.0.1:1/none"
    completed = process("serve", "--store", url, "--files", tmp_path / "f", "--port", 0)
    assert (completed.code, completed.err.count("\n")) == (2, 1), completed.err
    assert "secret" not in completed.err
    assert "cannot be opened" in completed.err


def test_a_shared_store_wants_a_folder(tmp_path: Path) -> None:
    job = f'profile = "llama-7b-a800-80gb"\nlengths = "{DATA}"\ngpus = 4\n'
    job += "max_len = 4096\nsteps = 1\n"
    (tmp_path / "job.toml").write_text(f'{job}store = "postgresql+psycopg://u:secret@h/d"\n')
    completed = process("sidecar", "--job", tmp_path / "job.toml")
    assert (completed.code, completed.err.count("\n")) == (2, 1), completed.err
    assert "with --files (files in a job file)" in completed.err
    assert "secret" not in completed.err
