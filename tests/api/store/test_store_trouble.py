"""A disk that is full or a database that is locked: 503, nothing lost, and it goes on after."""

import errno
import resource
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logged_service import serving_logged
from service_process import Served, npy, serving_here
from stocked_service import WORLD, stock

from seqplan.api.store import store as store_module
from seqplan.api.store.errors import StoreUnavailable
from seqplan.api.store.store import Store

STEPS = 6


def _acknowledge(served: Served, step: int, rank: int) -> int:
    body = {"step": step, "rank": rank, "digest": None}
    reply = served.send("POST", "/v1/jobs/job/acks", body)
    if reply.status != 200:
        assert reply.headers["content-type"] == "application/problem+json", reply
        assert reply.json["type"] == "urn:seqplan:problem:store-unavailable", reply
        assert "retry-after" in reply.headers
    return reply.status


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit is Linux's")
def test_a_full_disk(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    log = tmp_path / "log"
    with serving_logged(log, "--store", store, "--port", 0) as served:
        stock(served).job("job", STEPS, look_ahead=2)
        assert served.send("GET", "/v1/jobs/job/plans/1?wait=60").status == 200
        acknowledgements = [(0, rank) for rank in range(WORLD - 1)]
        assert [_acknowledge(served, *acknowledgement) for acknowledgement in acknowledgements] == [
            200
        ] * len(acknowledgements)
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        # No file may grow: the error of a full disk, for this process alone.
        limit = (4096, resource.RLIM_INFINITY)
        resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, limit)
        assert _acknowledge(served, 0, WORLD - 1) == 503
        reply = served.send("POST", "/v1/lengths", npy(np.arange(1, 5000)))
        assert (reply.status, reply.headers["content-type"]) == (503, "application/problem+json")
        for _ in range(2):
            assert served.problem("GET", "/readyz", status=503)["type"].endswith("unavailable")
        assert _acknowledge(served, 0, 0) == 200  # again, which changes nothing
        assert b"seqplan_store_writable 0.0\n" in served.send("GET", "/metrics").body
        assert "can be written to again" not in log.read_text()
        assert log.read_text().count("store.db: cannot be written to: ") == 1
        # What needs no writing goes on.
        assert served.send("GET", "/v1/jobs/job/plans/1").status == 200
        assert served.ok("GET", "/v1/jobs/job")["acknowledged"] == [0] * (WORLD - 1) + [-1]
        resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, unlimited)
        assert _acknowledge(served, 0, WORLD - 1) == 200
        for step in range(1, STEPS):
            assert served.send("GET", f"/v1/jobs/job/plans/{step}?wait=60").status == 200
            assert [_acknowledge(served, step, rank) for rank in range(WORLD)] == [200] * WORLD
        assert served.send("POST", "/v1/lengths", npy(np.arange(1, 5000))).status == 201
        assert served.send("GET", "/readyz").status == 200
        assert b"seqplan_store_writable 1.0\n" in served.send("GET", "/metrics").body
        assert log.read_text().count("store.db: can be written to again") == 1
    with serving_here(store) as served:
        assert served.ok("GET", "/v1/jobs/job")["acknowledged"] == [STEPS - 1] * WORLD


def test_full_disk_of_arrays_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's log has room for more after a checkpoint, also on a disk that has none."""

    def find_no_room(**_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = Store(str(tmp_path / "s.db"))
    try:
        with monkeypatch.context() as patched:
            patched.setattr(tempfile, "TemporaryFile", find_no_room)
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="files: No space left on device"):
                    store.check_writable()
            assert store.health.problem is not None
        store.check_writable()
        assert store.health.problem is None
        assert not list((store.files / "lengths").iterdir())
    finally:
        store.close()


def test_a_locked_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_BUSY_MS", 500)
    store = tmp_path / "store.db"
    with serving_here(store) as served:
        stock(served).job("job", STEPS, look_ahead=2)
        assert served.send("GET", "/v1/jobs/job/plans/0?wait=60").status == 200
        other = sqlite3.connect(store, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert _acknowledge(served, 0, 0) == 503
        assert served.send("GET", "/v1/jobs/job/plans/0").status == 200
        other.execute("ROLLBACK")
        other.close()
        for step in range(STEPS):
            assert served.send("GET", f"/v1/jobs/job/plans/{step}?wait=60").status == 200
            assert [_acknowledge(served, step, rank) for rank in range(WORLD)] == [200] * WORLD
