"""``seqplan backup``, ``restore`` and ``log``, with a running service and without."""

import io
import json
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from command_line import call, complaint, nothing_left, succeeded
from service_process import serving_here
from stocked_service import WORLD, change_rows, deliver, stock

from seqplan.runtime.sources import acknowledgements, http_source
from seqplan.runtime.sources.http_source import HttpSource

STEPS = 6


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a job of six steps, all of them acknowledged; its service has ended."""
    path = tmp_path_factory.mktemp("service") / "store.db"
    with serving_here(path) as served:
        stock(served).job("job", STEPS)
        deliver(served, served, 0, STEPS)
    return path


@pytest.fixture
def backup(store: Path, tmp_path: Path) -> Path:
    path = tmp_path / "backup.tar"
    assert f"written: {path}: the database and 1 arrays, " in succeeded(
        call("backup", store, "-o", path)
    )
    return path


def test_a_restored_store_serves_on(tmp_path: Path) -> None:
    """It is copied while its service plans and takes acknowledgements."""
    path, copy, restored = (tmp_path / name for name in ("store.db", "copy.tar", "restored.db"))
    with serving_here(path) as served:
        stock(served).job("job", STEPS)
        first = deliver(served, served, 0, 2)
        with ThreadPoolExecutor(1) as threads:
            delivering = threads.submit(deliver, served, served, 2, STEPS)
            succeeded(call("backup", path, "-o", copy))
            rest = delivering.result()
        plans = [served.send("GET", f"/v1/jobs/job/plans/{step}").body for step in range(STEPS)]
    assert copy.stat().st_mode & 0o777 == 0o600
    text = succeeded(call("restore", copy, "--store", restored))
    assert text == f"written: {restored} and {restored}.files: 1 arrays\n"
    with serving_here(restored) as served:
        assert served.ok("GET", "/v1/jobs/job/progress")["slowest"] >= 1
        assert deliver(served, served, 2, STEPS) == rest
        again = [served.send("GET", f"/v1/jobs/job/plans/{step}").body for step in range(STEPS)]
        # Its array is there: another job can draw from it.
        stock(served).job("other", 1)
    assert again == plans
    assert len(first) == 2
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


@pytest.mark.filterwarnings("ignore:.*waits for the service:UserWarning")
def test_ranks_ahead_of_a_restored_store_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have done steps that the backup lacks: the service plans them again, equally."""
    monkeypatch.setattr(acknowledgements, "REPEATED_AFTER_S", 0.1)
    monkeypatch.setattr(http_source, "LONGEST_WAIT_S", 0.5)
    path, copy, restored = (tmp_path / name for name in ("store.db", "copy.tar", "restored.db"))
    last = 12
    with serving_here(path) as served:
        port = int(served.url.rpartition(":")[2])
        stock(served).job("job", last)
        sources = [HttpSource(served.url, "job", queue_folder=tmp_path) for _ in range(WORLD)]
        digests = run_ranks(sources, 0, 2)
        succeeded(call("backup", path, "-o", copy))
        digests += run_ranks(sources, 2, 8)
        ahead = [source.view(8, rank, 60) for rank, source in enumerate(sources)]
        for rank in (2, 3):  # these wait for step 9 only, the others have done step 8 since
            sources[rank].acknowledge(8, rank, ahead[rank].digest)
        lines = [served.send("GET", f"/v1/jobs/job/plans/{step}").body for step in range(9)]
    succeeded(call("restore", copy, "--store", restored))
    with serving_here(restored, port=port) as served, ThreadPoolExecutor(WORLD) as threads:
        assert served.ok("GET", "/v1/jobs/job")["planned_steps"] < 9
        with pytest.warns(UserWarning, match=r"step 8 .*: it has plans up to step \d only"):
            sources[0].acknowledge(8, 0, ahead[0].digest, 1.0)
        sources[1].acknowledge(8, 1, ahead[1].digest)
        waiting = [threads.submit(s.view, 9, rank, 60) for rank, s in enumerate(sources)]
        assert len({future.result().digest for future in waiting}) == 1
        run_ranks(sources, 9, last)
        for source in sources:
            source.close()
        assert served.ok("GET", "/v1/jobs/job")["acknowledged"] == [last - 1] * WORLD
        assert digests == [json.loads(line)["digest"] for line in lines[:8]]
        again = [served.send("GET", f"/v1/jobs/job/plans/{step}").body for step in range(9)]
    assert again == lines


def run_ranks(sources: list[HttpSource], first: int, last: int) -> list[str | None]:
    """Fetch and acknowledge steps on each rank; return the digests."""
    digests = []
    for step in range(first, last):
        for rank, source in enumerate(sources):
            view = source.view(step, rank, 60)
            source.acknowledge(step, rank, view.digest)
        digests.append(view.digest)
    return digests


def test_a_restore_overwrites_nothing(backup: Path, tmp_path: Path) -> None:
    restored = tmp_path / "new.db"
    restored.write_text("mine")
    assert complaint(call("restore", backup, "--store", restored)).startswith(f"{restored}: exists")
    assert restored.read_text() == "mine"
    restored.unlink()
    folder = tmp_path / "new.db.files"
    folder.mkdir()
    assert complaint(call("restore", backup, "--store", restored)).startswith(f"{folder}: exists")
    assert os.listdir(folder) == []
    elsewhere = tmp_path / "elsewhere"
    succeeded(call("restore", backup, "--store", restored, "--files", elsewhere))
    assert (elsewhere / "store-id").exists()
    assert "is no folder. Make it" in complaint(
        call("restore", backup, "--store", tmp_path / "none" / "s.db")
    )


def test_a_backup_that_is_cut_or_changed_restores_nothing(backup: Path, tmp_path: Path) -> None:
    content = backup.read_bytes()
    restored = tmp_path / "into" / "new.db"
    restored.parent.mkdir()
    half = bytearray(content)
    half[len(half) // 2] ^= 1
    for damaged in (content[:1000], content[: len(content) // 2], b"", b"x" * 2000):
        backup.write_bytes(damaged)
        assert complaint(call("restore", backup, "--store", restored)).startswith(f"{backup}: is ")
        nothing_left(restored)
    at = content.index(b"SQLite format 3") + 5000
    backup.write_bytes(content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :])
    message = complaint(call("restore", backup, "--store", restored))
    assert message == f"{backup}: is damaged: its database has another sha256. Name another backup"
    nothing_left(restored)


@pytest.mark.parametrize("name", ["../outside", "/outside", "files/lengths/../../x", "files/other"])
def test_a_member_that_no_backup_has_is_rejected(backup: Path, tmp_path: Path, name: str) -> None:
    with tarfile.open(backup, "a:") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"x"))
    restored = tmp_path / "into" / "new.db"
    restored.parent.mkdir()
    message = complaint(call("restore", backup, "--store", restored))
    assert message == f"{backup}: is no backup: it has {name!r}. Name another backup"
    nothing_left(restored)


def test_bad_stores_of_a_backup_are_one_line(store: Path, tmp_path: Path) -> None:
    output = tmp_path / "out" / "b.tar"
    output.parent.mkdir()

    def message(*arguments: str | Path) -> str:
        line = complaint(call("backup", *arguments, "-o", output))
        nothing_left(output)
        return line

    assert message(tmp_path / "none.db").endswith(
        "no such store. Name the file that serve --store has"
    )
    postgresql = "postgresql+psycopg://user:secret@host/db"
    assert "must be a SQLite store. Use pg_dump" in message(postgresql)
    assert "secret" not in message(postgresql)
    text = tmp_path / "text.db"
    text.write_text("no database")
    assert message(text).startswith(f"{text}: cannot be read as a store: ")
    assert message(store, "--files", tmp_path / "none").endswith("Name it with --files")
    other = tmp_path / "other"
    other.mkdir()
    (other / "store-id").write_text("0\n")
    assert message(store, "--files", other).startswith(f"{other}: belongs to another store than")
    assert "is an input of this command" in complaint(call("backup", store, "-o", store))
    line = complaint(call("restore", output, "--store", postgresql))
    assert "must be a SQLite store. Use pg_restore" in line
    assert complaint(call("restore", output, "--store", tmp_path / "n.db")).startswith(str(output))


def test_the_log_of_a_service_and_of_its_store_agree(store: Path) -> None:
    with serving_here(store) as served:
        jobs = json.loads(succeeded(call("log", "--server", served.url, "--json")))
        steps = json.loads(succeeded(call("log", "--server", served.url, "--job", "job", "--json")))
        for source in (("--server", served.url), ("--store", store)):
            assert json.loads(succeeded(call("log", *source, "--json"))) == jobs
            whole = succeeded(call("log", *source, "--job", "job", "--json"))
            assert json.loads(whole) == steps
            some = succeeded(call("log", *source, "--job", "job", "--after", 3, "--json"))
            assert json.loads(some) == steps[4:]
    (job,) = jobs
    assert (job["id"], job["world_size"], job["slowest"]) == ("job", WORLD, STEPS - 1)
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert {step["ranks_acknowledged"] for step in steps} == {WORLD}


def test_the_log_is_a_table(store: Path) -> None:
    head, _, row = succeeded(call("log", "--store", store)).splitlines()
    assert head.split() == ["job", "state", "ranks", "done", "planned", "last", "error"]
    assert row.split()[:3] == ["job", "planned", str(WORLD)]
    lines = succeeded(call("log", "--store", store, "--job", "job")).splitlines()
    assert lines[0].split()[:4] == ["step", "tokens", "seqs", "predicted"]
    assert [line.split()[0] for line in lines[2:]] == [str(step) for step in range(STEPS)]
    assert succeeded(call("log", "--store", store, "--job", "job", "--after", 99)) == ""


def test_an_unknown_job_is_one_line(store: Path) -> None:
    message = complaint(call("log", "--store", store, "--job", "none"))
    assert message == f"{store}: no job 'none'. seqplan log lists the jobs"


def test_a_store_of_another_release_is_one_line(backup: Path, tmp_path: Path) -> None:
    restored = tmp_path / "new.db"
    succeeded(call("restore", backup, "--store", restored))
    change_rows(restored, "UPDATE seqplan_schema SET version = 99")
    assert "has schema 99, this seqplan reads " in complaint(call("log", "--store", restored))
    for schema, fix in ((99, "Use a newer seqplan"), (3, "Use another store")):
        change_rows(restored, f"UPDATE seqplan_schema SET version = {schema}")
        other = tmp_path / f"{schema}.tar"
        succeeded(call("backup", restored, "-o", other))
        message = complaint(call("restore", other, "--store", tmp_path / "other.db"))
        assert message == f"{other}: has schema {schema}, this seqplan reads 4 to 7. {fix}"
        assert not (tmp_path / "other.db").exists()
