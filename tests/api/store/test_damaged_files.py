"""Arrays and rows that changed on the disk: found before they are used, and fixed by an upload."""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from logged_service import serving_logged
from service_process import serving_here, wait_until
from stocked_service import DATA, change_rows, stock

from seqplan.api.store.errors import ArrayDamaged
from seqplan.api.store.store import Store
from seqplan.api.store.tables import lengths


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _change(path: Path) -> None:
    """Change one length, and have the file look as if it was not written to."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write((17).to_bytes(8, "little"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _overwrite(path: Path) -> None:
    path.write_bytes(b"\x00" * 4096)


@pytest.mark.parametrize("damage", [_cut, _change, _empty, _overwrite])
def test_a_damaged_array_is_not_planned_from_until_it_is_uploaded_again(
    tmp_path: Path, damage: object
) -> None:
    assert callable(damage)
    with serving_here(tmp_path / "s.db") as served:
        stocked = stock(served)
        stocked.job("before", 2)
        damage(tmp_path / "s.db.files" / "lengths" / f"{stocked.lengths}.npy")
        body = {"id": "j", "proposal": stocked.proposal, "lengths": stocked.lengths, "steps": 2}
        problem = served.problem("POST", "/v1/jobs", body, status=409)
        assert problem["type"].endswith("file-damaged")
        assert "file is damaged" in problem["detail"]
        assert "Upload the same data again" in problem["detail"]
        uploaded = served.send("POST", "/v1/lengths", DATA.read_bytes())
        assert (uploaded.status, uploaded.json["id"]) == (201, stocked.lengths)
        served.ok("POST", "/v1/jobs", body)
        assert served.send("GET", "/v1/jobs/j/plans/1?wait=30").status == 200


def test_a_file_that_changes_while_it_is_read_is_compared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path / "s.db"))
    key = lengths.write_lengths(store, np.arange(1, 100)).id
    read = lengths._read_array

    def read_and_change(path: Path) -> npt.NDArray[np.int64]:
        array = read(path)
        _change(path)
        return array

    with monkeypatch.context() as patched:
        patched.setattr(lengths, "_read_array", read_and_change)
        lengths.open_lengths(store, key)
    with pytest.raises(ArrayDamaged, match="another sha256"):
        lengths.open_lengths(store, key)
    store.close()


def test_arrays_are_compared_when_the_service_starts(tmp_path: Path) -> None:
    with serving_here(tmp_path / "s.db") as served:
        stocked = stock(served)
    _change(tmp_path / "s.db.files" / "lengths" / f"{stocked.lengths}.npy")
    log = tmp_path / "log"
    with serving_logged(log, "--store", tmp_path / "s.db", "--port", 0):
        damaged = f"lengths {stocked.lengths}: their file is damaged"
        wait_until(lambda: damaged in log.read_text())
    store = Store(str(tmp_path / "s.db"))
    with pytest.raises(ArrayDamaged, match="another sha256"):
        lengths.open_lengths(store, stocked.lengths)
    store.close()


@pytest.mark.parametrize("path", ["", "/ranks/0", "/explain", "/timeline", "/simulate"])
def test_a_damaged_plan_is_an_error_of_the_service(tmp_path: Path, path: str) -> None:
    with serving_here(tmp_path / "s.db") as served:
        job = stock(served).job("j", 2)
        assert served.send("GET", f"/v1/jobs/{job}/plans/1?wait=30").status == 200
    damage = "UPDATE plans SET line = replace(line, '\"tokens\":', '\"tokens\":1')"
    change_rows(tmp_path / "s.db", damage)
    with serving_here(tmp_path / "s.db") as served:
        problem = served.problem("GET", f"/v1/jobs/{job}/plans/0{path}", status=500)
        assert problem["type"].endswith("damaged")
        assert "the store's plan of step 0 is damaged" in problem["detail"]


def test_an_array_outlives_its_file_being_cut_off(tmp_path: Path) -> None:
    """A mapped array would end the process by SIGBUS."""
    with serving_here(tmp_path / "s.db") as served:
        key = stock(served).lengths
    store = Store(str(tmp_path / "s.db"))
    array = lengths.open_lengths(store, key)
    _cut(tmp_path / "s.db.files" / "lengths" / f"{key}.npy")
    assert int(array.sum()) > 0
    store.close()
