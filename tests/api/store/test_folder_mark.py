"""A folder of arrays belongs to one store; nothing in it is lost to another."""

import re
from pathlib import Path

import numpy as np
import pytest
from command_line import call
from service_process import serving_here
from stocked_service import stock

from seqplan.api.store.errors import StoreError
from seqplan.api.store.store import Store
from seqplan.api.store.tables.lengths import open_lengths, put_lengths, write_lengths


def _stock(database: Path, files: Path) -> str:
    store = Store(str(database), files)
    row = write_lengths(store, np.arange(1, 50))
    with store.writing() as connection:
        put_lengths(connection, row)
    store.close()
    return row.id


def _unmark(files: Path) -> None:
    """Make a folder one whose mark could not be written."""
    (files / "store-id").unlink()


def test_a_mistyped_store_is_rejected_and_no_array_is_deleted(tmp_path: Path) -> None:
    files = tmp_path / "files"
    with serving_here(tmp_path / "a.db", files) as served:
        stocked = stock(served)
    done = call("serve", "--store", tmp_path / "aa.db", "--files", files, "--port", 0)
    assert done.code == 2, done
    assert re.fullmatch(r"seqplan: \S+aa\.db: is new, but \S+ belongs to a store\..*\n", done.err)
    assert not [*tmp_path.glob("aa.db*")]
    with serving_here(tmp_path / "a.db", files) as served:
        body = {"id": "j", "proposal": stocked.proposal, "lengths": stocked.lengths, "steps": 2}
        served.ok("POST", "/v1/jobs", body)
        assert served.send("GET", "/v1/jobs/j/plans/1?wait=30").status == 200


def test_the_folder_of_another_store_is_rejected(tmp_path: Path) -> None:
    _stock(tmp_path / "a.db", tmp_path / "files")
    Store(str(tmp_path / "b.db")).close()
    with pytest.raises(StoreError, match=r"belongs to another store than .*b\.db"):
        Store(str(tmp_path / "b.db"), tmp_path / "files")


def test_a_database_that_is_missing_for_a_while_finds_its_arrays(tmp_path: Path) -> None:
    database, files = tmp_path / "a.db", tmp_path / "files"
    key = _stock(database, files)
    database.rename(tmp_path / "restored")
    with pytest.raises(StoreError, match="is new, but"):
        Store(str(database), files)
    (tmp_path / "restored").rename(database)
    store = Store(str(database), files)
    assert len(open_lengths(store, key)) == 49
    store.close()


@pytest.mark.parametrize("marked", [True, False])
def test_an_empty_folder_is_not_taken_for_that_of_the_arrays(tmp_path: Path, marked: bool) -> None:
    _stock(tmp_path / "a.db", tmp_path / "files")
    with pytest.raises(StoreError, match="has none of the arrays of") as error:
        Store(str(tmp_path / "a.db"), tmp_path / "fils")
    if marked:  # as the message has it for arrays that are lost
        written = re.search(r"echo (\w+) > (\S+)", str(error.value))
        assert f"mkdir -p {tmp_path / 'fils'} &&" in str(error.value)
        (tmp_path / "fils").mkdir()
        Path(written[2]).write_text(written[1] + "\n")
        Store(str(tmp_path / "a.db"), tmp_path / "fils").close()


def test_a_folder_without_a_mark_is_adopted_by_its_store_alone(tmp_path: Path) -> None:
    key = _stock(tmp_path / "a.db", tmp_path / "files")
    Store(str(tmp_path / "b.db")).close()
    _unmark(tmp_path / "files")
    for other, reason in (("b.db", f"does not know its array {key}"), ("new.db", "is new, but")):
        with pytest.raises(StoreError, match=reason):
            Store(str(tmp_path / other), tmp_path / "files")
    Store(str(tmp_path / "a.db"), tmp_path / "files").close()
    with pytest.raises(StoreError, match="belongs to another store"):
        Store(str(tmp_path / "b.db"), tmp_path / "files")


def test_a_new_postgresql_store_with_a_marked_folder(postgresql_url: str, tmp_path: Path) -> None:
    _stock(tmp_path / "a.db", tmp_path / "files")
    with pytest.raises(StoreError, match="is new, but"):
        Store(postgresql_url, tmp_path / "files")
    store = Store(postgresql_url, tmp_path / "other")
    Store(postgresql_url, tmp_path / "other").close()
    store.close()
    with pytest.raises(StoreError, match="belongs to another store"):
        Store(postgresql_url, tmp_path / "files")


def test_tokens_are_added_without_the_folder(tmp_path: Path) -> None:
    _stock(tmp_path / "a.db", tmp_path / "files")
    added = call("serve", "--store", tmp_path / "a.db", "--add-token", "t")
    assert added.code == 0, added
    assert not (tmp_path / "a.db.files").exists()
