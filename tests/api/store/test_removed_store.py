"""A store that is removed, moved or replaced under its service: 503, and nothing is accepted."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from service_process import Served, npy, serving, serving_here
from stocked_service import DATA, stock

from seqplan.api.store import store as store_module

ACK = {"step": 0, "rank": 0, "digest": None}
JOB = """
profile = "llama-7b-a800-80gb"
lengths = "lengths.npy"
gpus = 4
max_len = 4096
tokens = 8000
steps = 3
look_ahead = 3
port = 0
store = "store.db"
"""


def check_unavailable(served: Served, removed: str) -> None:
    """Nothing is accepted, and each answer names the part of the store that is missing."""
    for method, path, body in (
        ("GET", "/readyz", None),
        ("GET", "/v1/jobs/job", None),
        ("POST", "/v1/jobs/job/acks", ACK),
    ):
        problem = served.problem(method, path, body, status=503)
        assert problem["type"] == "urn:seqplan:problem:store-unavailable"
        assert f"{removed}: was removed or replaced while in use. Move it back" in problem["detail"]


def move_store(database: Path, folder: Path) -> None:
    """Move all files of a store into ``folder``."""
    folder.mkdir(exist_ok=True)
    for path in database.parent.glob(f"{database.name}*"):
        path.rename(folder / path.name)


@pytest.mark.parametrize("command", ["serve", "sidecar"])
def test_moved_store_accepts_nothing_until_it_is_back(tmp_path: Path, command: str) -> None:
    store = tmp_path / "store.db"
    arguments: tuple[str | Path | int, ...] = ("--store", store, "--port", 0)
    if command == "sidecar":
        np.save(tmp_path / "lengths.npy", np.load(DATA)[:3000])
        (tmp_path / "job.toml").write_text(JOB)
        arguments = ("--job", tmp_path / "job.toml")
    with serving(*arguments, command=command) as served:
        if command == "serve":
            stock(served).job("job", 3)
        assert served.send("GET", "/v1/jobs/job/plans/0?wait=60").status == 200
        move_store(store, tmp_path / "away")
        check_unavailable(served, "store.db")
        assert not store.exists()  # no new file, which would be taken for the store
        move_store(tmp_path / "away" / "store.db", tmp_path)
        served.ok("POST", "/v1/jobs/job/acks", ACK)
        assert served.send("GET", "/readyz").status == 200


def test_replaced_or_missing_parts_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "CHECKED_S", 0.0)
    store, files = tmp_path / "store.db", tmp_path / "store.db.files"
    upload = npy(np.arange(1, 50))
    with serving_here(store) as served:
        stock(served).job("job", 3)
        assert served.send("GET", "/v1/jobs/job/plans/2?wait=60").status == 200
        files.rename(tmp_path / "away")
        check_unavailable(served, "store.db.files/lock")
        detail = served.problem("POST", "/v1/lengths", upload, status=503)["detail"]
        assert "was removed or replaced" in detail
        (tmp_path / "away").rename(files)
        shutil.copy(store, tmp_path / "copy")
        (tmp_path / "copy").rename(store)
        check_unavailable(served, "store.db")
        served.problem("POST", "/v1/lengths", upload, status=503)


def test_missing_folder_of_arrays_is_an_outage(tmp_path: Path) -> None:
    with serving_here(tmp_path / "store.db") as served:
        shutil.rmtree(tmp_path / "store.db.files" / "lengths")
        for method, path in (("GET", "/readyz"), ("POST", "/v1/lengths")):
            body = npy([1]) if method == "POST" else None
            detail = served.problem(method, path, body, status=503)["detail"]
            assert "store.db.files/lengths: was removed or replaced while in use" in detail
