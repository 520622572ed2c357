"""What a killed service left behind is gone, or whole again, after the next start."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from service_process import PATIENCE_S, serving, serving_here
from stocked_service import stock

from seqplan.api.store.store import Store
from seqplan.api.store.tables.leftovers import remove_leftovers
from seqplan.api.store.tables.lengths import put_lengths, remove_lengths, write_lengths


def _unused_lengths(store: Store, first: int) -> str:
    row = write_lengths(store, np.arange(first, first + 50))
    with store.writing() as connection:
        put_lengths(connection, row)
    return row.id


def _aged(path: Path) -> Path:
    for entry in [*path.glob("*"), path]:
        os.utime(entry, (1.0, 1.0))
    return path


def test_leftovers_go_and_data_stays(store: Store) -> None:
    lengths = store.files / "lengths"
    whole, cut_off = _unused_lengths(store, 1), _unused_lengths(store, 100)
    (lengths / f"{cut_off}.npy").rename(lengths / f"{cut_off}.removed")  # the row is still there
    gone = hashlib.sha256(b"gone").hexdigest()
    (lengths / f"{gone}.removed").touch()
    twice = _unused_lengths(store, 200)
    (lengths / f"{twice}.removed").touch()  # removed, and brought again
    for name in ("tmpab12_cd9", "upload-ab12_cd9"):
        (store.files / name).mkdir()
        (store.files / name / "body.npy").write_bytes(b"half")
        _aged(store.files / name)
    (lengths / ".0123456789abcdef.tmp").write_bytes(b"half")
    _aged(lengths / ".0123456789abcdef.tmp")
    others = store.files / "tmp_of_mine"
    others.mkdir()
    (others / "notes").touch()
    remove_leftovers(store)
    left = {path.name for path in lengths.iterdir()}
    assert left == {f"{key}.npy" for key in (whole, cut_off, twice)}
    assert {path.name for path in store.files.iterdir()} - {"lock"} == {"lengths", "tmp_of_mine"}
    assert remove_lengths(store, cut_off)


def test_an_array_of_no_data_set_goes(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "s.db"))
    whole = _unused_lengths(store, 1)
    write_lengths(store, np.arange(7, 20))
    remove_leftovers(store)
    assert [path.name for path in (store.files / "lengths").iterdir()] == [f"{whole}.npy"]
    store.close()


def test_what_others_are_writing_stays(postgresql_url: str, tmp_path: Path) -> None:
    store = Store(postgresql_url, tmp_path / "files")
    (store.files / "upload-ab12_cd9").mkdir()
    (store.files / "upload-ab12_cd9" / "body.npy").write_bytes(b"half")
    writing = store.files / "lengths" / ".0123456789abcdef.tmp"
    writing.write_bytes(b"half")
    other = write_lengths(store, np.arange(7, 20))  # its row is to come
    remove_leftovers(store)
    assert (store.files / "upload-ab12_cd9" / "body.npy").exists()
    assert {path.name for path in writing.parent.iterdir()} == {writing.name, f"{other.id}.npy"}
    store.close()


def test_a_killed_upload_is_gone_after_the_next_start(tmp_path: Path) -> None:
    where, files = ("--store", tmp_path / "s.db", "--port", 0), tmp_path / "s.db.files"
    with serving(*where) as served:
        stocked = stock(served)
        host, port = served.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as upload:
            upload.sendall(b"POST /v1/lengths HTTP/1.1\r\nHost: localhost\r\n")
            upload.sendall(b"Content-Length: 1000000\r\n\r\n" + b"x" * 1000)
            ends = time.monotonic() + PATIENCE_S
            while not [*files.glob("upload-*/*")]:
                assert time.monotonic() < ends
                time.sleep(0.01)
            served.process.kill()
            served.process.wait()
    array = files / "lengths" / f"{stocked.lengths}.npy"
    array.rename(array.with_suffix(".removed"))
    with serving_here(tmp_path / "s.db") as served:
        body = {"proposal": stocked.proposal, "lengths": stocked.lengths, "steps": 1}
        served.ok("POST", "/v1/jobs", body)
        assert sorted(path.name for path in files.iterdir()) == ["lengths", "lock"]


@pytest.mark.parametrize("rows", ["[[0,10,200000000]]", "[[0,10,199999999],[10,40,1,40]]"])
def test_a_histogram_takes_no_room_on_the_disk(tmp_path: Path, rows: str) -> None:
    with serving_here(tmp_path / "s.db") as served:
        row = served.ok("POST", "/v1/lengths?format=histogram", rows.encode())
        assert row["sequences"] == 200_000_000
        assert [*(tmp_path / "s.db.files" / "lengths").iterdir()] == []
        assert served.ok("GET", f"/v1/lengths/{row['id']}")["kind"] == "histogram"
        assert served.ask("DELETE", f"/v1/lengths/{row['id']}").status == 204
