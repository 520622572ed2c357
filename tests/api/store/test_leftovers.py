"""Files that a killed service left, or that the database does not know: kept for days."""

import hashlib
import json
import os
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from service_process import serving, serving_here, wait_until
from stocked_service import stock

from seqplan.api.store.store import Store
from seqplan.api.store.tables.leftovers import put_back_arrays, remove_leftovers
from seqplan.api.store.tables.lengths import put_lengths, remove_lengths, write_lengths


def _unused_lengths(store: Store, first: int) -> str:
    row = write_lengths(store, np.arange(first, first + 50))
    with store.writing() as connection:
        put_lengths(connection, row)
    return row.id


def _found_days_ago(store: Store, days: float) -> None:
    """Move the times at which leftovers were first found into the past."""
    path = store.files / "leftovers.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps({name: at - days * 86400 for name, at in found.items()}))


def _change_hours_ago(folder: Path, hours: float) -> None:
    """Set when each file and folder below one was last changed."""
    at = time.time() - hours * 3600
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (at, at))


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_leftovers_go_after_days_and_data_stays(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    lengths = store.files / "lengths"
    whole, cut_off = _unused_lengths(store, 1), _unused_lengths(store, 100)
    (lengths / f"{cut_off}.npy").rename(lengths / f"{cut_off}.removed")  # the row is still there
    gone = hashlib.sha256(b"gone").hexdigest()
    (lengths / f"{gone}.removed").touch()
    twice = _unused_lengths(store, 200)
    (lengths / f"{twice}.removed").touch()  # removed, and uploaded again
    unknown = write_lengths(store, np.arange(7, 20)).id
    for name in ("tmpab12_cd9", "upload-ab12_cd9"):
        (store.files / name).mkdir()
        (store.files / name / "body.npy").write_bytes(b"half")
    (lengths / ".0123456789abcdef.tmp").write_bytes(b"half")
    others = store.files / "tmp_of_mine"
    others.mkdir()
    (others / "notes").touch()
    put_back_arrays(store)
    before = (_names(lengths), _names(store.files))
    leftovers = {f"{gone}.removed", f"{twice}.removed", f"{unknown}.npy", ".0123456789abcdef.tmp"}
    kept = {f"{key}.npy" for key in (whole, cut_off, twice)}
    assert before[0] == kept | leftovers
    remove_leftovers(store)  # an upload may come in, and a file may be written
    assert caplog.messages == []
    _change_hours_ago(store.files, 1.1)
    for days in (0, 6.9):
        caplog.clear()
        remove_leftovers(store)
        assert (_names(lengths), _names(store.files)) == (before[0], before[1] | {"leftovers.json"})
        # One line for each when it is first found.
        assert len(caplog.messages) == (len(leftovers) + 2 if days == 0 else 0)
        _found_days_ago(store, 6.9 if days == 0 else 0.2)
    remove_leftovers(store)
    assert len([line for line in caplog.messages if "removed, 7 days after" in line]) == 6
    assert _names(lengths) == kept
    assert _names(store.files) - {"lock"} == {
        "lengths",
        "tmp_of_mine",
        "store-id",
        "leftovers.json",
    }
    assert remove_lengths(store, cut_off)


def test_an_array_that_a_restored_database_knows_stays(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "s.db"))
    row = write_lengths(store, np.arange(7, 20))
    _change_hours_ago(store.files, 2)
    remove_leftovers(store)
    _found_days_ago(store, 8)
    with store.writing() as connection:
        put_lengths(connection, row)
    remove_leftovers(store)
    assert _names(store.files / "lengths") == {f"{row.id}.npy"}
    assert json.loads((store.files / "leftovers.json").read_text()) == {}
    store.close()


def test_files_that_others_write_stay(postgresql_url: str, tmp_path: Path) -> None:
    store = Store(postgresql_url, tmp_path / "files")
    (store.files / "upload-ab12_cd9").mkdir()
    (store.files / "upload-ab12_cd9" / "body.npy").write_bytes(b"half")
    writing = store.files / "lengths" / ".0123456789abcdef.tmp"
    writing.write_bytes(b"half")
    other = write_lengths(store, np.arange(7, 20))  # its row is to come
    put_back_arrays(store)
    remove_leftovers(store)
    assert (store.files / "upload-ab12_cd9" / "body.npy").exists()
    assert {path.name for path in writing.parent.iterdir()} == {writing.name, f"{other.id}.npy"}
    store.close()


def test_a_killed_upload_stays_for_the_days_that_are_given(tmp_path: Path) -> None:
    where, files = ("--store", tmp_path / "s.db", "--port", 0), tmp_path / "s.db.files"
    with serving(*where) as served:
        stocked = stock(served)
        host, port = served.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as upload:
            upload.sendall(b"POST /v1/lengths HTTP/1.1\r\nHost: localhost\r\n")
            upload.sendall(b"Content-Length: 1000000\r\n\r\n" + b"x" * 1000)
            wait_until(lambda: [*files.glob("upload-*/*")])
            served.process.kill()
            served.process.wait()
    array = files / "lengths" / f"{stocked.lengths}.npy"
    array.rename(array.with_suffix(".removed"))
    with serving_here(tmp_path / "s.db") as served:
        body = {"proposal": stocked.proposal, "lengths": stocked.lengths, "steps": 1}
        served.ok("POST", "/v1/jobs", body)
        assert [*files.glob("upload-*/*")]


@pytest.mark.parametrize("rows", ["[[0,10,200000000]]", "[[0,10,199999999],[10,40,1,40]]"])
def test_a_histogram_takes_no_room_on_the_disk(tmp_path: Path, rows: str) -> None:
    with serving_here(tmp_path / "s.db") as served:
        row = served.ok("POST", "/v1/lengths?format=histogram", rows.encode())
        assert row["sequences"] == 200_000_000
        assert [*(tmp_path / "s.db.files" / "lengths").iterdir()] == []
        assert served.ok("GET", f"/v1/lengths/{row['id']}")["kind"] == "histogram"
        assert served.send("DELETE", f"/v1/lengths/{row['id']}").status == 204
