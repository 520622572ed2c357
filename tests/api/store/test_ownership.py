"""A SQLite store is one service's at a time, by whatever path; an emptied one is rejected."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from stocked_service import change_rows

from seqplan.api.store.errors import StoreError
from seqplan.api.store.store import Store
from seqplan.api.store.tables.lengths import put_lengths, write_lengths
from seqplan.api.store.tables.tokens import add_token, list_tokens


@pytest.mark.parametrize("spelling", ["symbolic", "hard", "dots", "url", "other files"])
def test_one_service_however_the_path_is_spelled(tmp_path: Path, spelling: str) -> None:
    database, files = tmp_path / "a.db", None
    store = Store(str(database))
    other = str(tmp_path / "link.db")
    if spelling == "symbolic":
        os.symlink(database, other)
    elif spelling == "hard":
        os.link(database, other)
    elif spelling == "dots":
        other = str(tmp_path / "a.db.files" / ".." / "a.db")
    elif spelling == "url":
        other = f"sqlite:///{database}"
    else:
        other, files = str(database), tmp_path / "files"
    with pytest.raises(StoreError, match="is using this store; stop it, or name another"):
        Store(other, files)
    store.close()
    again = Store(other, files)
    if spelling in ("symbolic", "url"):
        assert again.files == store.files
    again.close()


def test_one_store_of_a_folder_of_arrays(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "a.db"), tmp_path / "files")
    with pytest.raises(StoreError, match="another store's service is using"):
        Store(str(tmp_path / "b.db"), tmp_path / "files")
    assert not (tmp_path / "b.db").exists()
    store.close()


def test_tokens_are_changed_while_a_service_runs(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "a.db"))
    other = Store(str(tmp_path / "a.db"), in_use=True)
    with other.writing() as connection:
        add_token(connection, "t", "read")
    other.close()
    with store.reading() as connection:
        assert len(list_tokens(connection)) == 1
    # The second took no lock, and released none.
    with pytest.raises(StoreError, match="another service"):
        Store(str(tmp_path / "a.db"))
    store.close()


@pytest.mark.parametrize("with_lengths", [True, False])
def test_a_database_cut_to_nothing_is_no_new_store(tmp_path: Path, with_lengths: bool) -> None:
    database = tmp_path / "a.db"
    store = Store(str(database))
    if with_lengths:
        row = write_lengths(store, np.arange(1, 50))
        with store.writing() as connection:
            put_lengths(connection, row)
    store.close()
    os.truncate(database, 0)
    with pytest.raises(StoreError, match=r"a\.db: is new, but .* belongs to a store\. Name"):
        Store(str(database))
    assert database.stat().st_size == 0
    database.unlink()
    with pytest.raises(StoreError, match=r"a\.db: is new"):
        Store(str(database))
    assert not database.exists()
    shutil.rmtree(tmp_path / "a.db.files")  # begins anew
    Store(str(database)).close()


def test_an_empty_file_is_a_new_store(tmp_path: Path) -> None:
    (tmp_path / "a.db").touch()
    Store(str(tmp_path / "a.db")).close()


def test_files_are_private(tmp_path: Path) -> None:
    (tmp_path / "a.db").touch(0o644)
    store = Store(str(tmp_path / "a.db"))
    with store.writing() as connection:
        add_token(connection, "t", "read")
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("a.db*")}
    assert modes == {"a.db": 0o600, "a.db-wal": 0o600, "a.db-shm": 0o600, "a.db.files": 0o700}
    store.close()


def test_damage_is_reported_with_the_path(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    Store(str(path)).close()
    no_text = "UPDATE sqlite_schema SET name = CAST(x'b3b3' AS TEXT), sql = 'x'"
    change_rows(path, "PRAGMA writable_schema = ON", no_text)
    with pytest.raises(StoreError) as damage:
        Store(str(path))
    assert str(path) in str(damage.value)
    assert "\n" not in str(damage.value)
