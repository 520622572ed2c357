"""Faults and operations while three jobs train: is anything lost, doubled or deleted?

Kill -9 at random moments; then an upgrade, an outage, a backup and a restore.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import create_engine, func, select

from benchmarks.services import KilledPostgresql, list_processes
from benchmarks.settings import Data
from benchmarks.tables import Cells, Output, Table
from benchmarks.trained_jobs import (
    JOBS,
    PATIENCE_S,
    WORLD,
    Rank,
    Repeated,
    Supervised,
    check_jobs,
    count_steps,
    finish,
    raise_failures,
    train_jobs,
    upload,
)
from seqplan.api.store import schema

SERVICE, PLANNER, FORKING = "service", "planning process", "server that forks them"
STORE = "PostgreSQL, all processes"
KILLS = {"SQLite": 150, "PostgreSQL": 60}
"""Kills by kind of store."""


def kill_processes(data: Sequence[Data], kills: Mapping[str, int] = KILLS) -> Output:
    """Kill processes at random moments; raises if anything was lost."""
    table = Table(
        "store | killed | steps of 3 jobs | uploads | jobs deleted | seconds",
        "{} | {} | {} | {} | {} | {:.0f}",
    )
    for kind, number in kills.items():
        with tempfile.TemporaryDirectory() as folder:
            table.add(kind, *_kill(kind, number, Path(folder), data[-1]))
    yield (
        "Each step was delivered once to each of 4 ranks, with the digest of an undisturbed run;\n"
        "each acknowledgement, upload and deletion that was answered is there at the end."
    )
    yield table


def _kill(kind: str, kills: int, folder: Path, data: Data) -> Cells:
    steps = kills + 2
    with ExitStack() as stack:
        undisturbed = stack.enter_context(Supervised(str(folder / "calm.db"), folder / "calm"))
        expected = train_jobs(undisturbed, data, steps, lambda step: None)
        finish(expected)
        database = None
        url = str(folder / "killed.db")
        if kind == "PostgreSQL":
            database = stack.enter_context(KilledPostgresql(folder / "postgresql"))
            url = database.url
        served = stack.enter_context(Supervised(url, folder / "files"))
        done, killed = [0], Counter[str]()

        def may_begin(step: int) -> None:
            while step > done[0] + 1:  # so that steps are left for the last kill
                time.sleep(0.005)

        ranks = train_jobs(served, data, steps, may_begin)
        uploads = Repeated(partial(upload, served))
        deletions = Repeated(partial(_delete_job, served))
        began = time.perf_counter()
        random = np.random.default_rng(0)
        for _ in range(kills):
            before, waits_until = count_steps(ranks), time.monotonic() + 5
            while count_steps(ranks) == before and time.monotonic() < waits_until:
                raise_failures(ranks)
                time.sleep(0.005)
            time.sleep(float(random.uniform(0, 0.4)))
            killed[_kill_one(served, database, float(random.random()), random)] += 1
            done[0] += 1
        finish(ranks)
        uploads.end()
        deletions.end()
        took = time.perf_counter() - began
        for rank, calm in zip(ranks, expected, strict=True):
            assert rank.steps == list(range(steps)), rank.steps
            assert rank.digests == calm.digests
        check_jobs(served, uploads.results, steps)
        with served.connect() as client:
            listed = {job.id for job in client.items(client.list_jobs)}
        assert not listed & set(deletions.results)
        engine_url = url if "://" in url else f"sqlite:///{url}"
        _check_rows(engine_url)
    kinds = [SERVICE, PLANNER, FORKING, *([STORE] if killed[STORE] else [])]
    assert all(killed[who] for who in kinds), killed
    names = ", ".join(f"{killed[who]} × {who}" for who in kinds)
    return names, steps * JOBS, len(uploads.results), len(deletions.results), took


def _kill_one(
    served: Supervised, database: KilledPostgresql | None, draw: float, random: np.random.Generator
) -> str:
    if database is not None and draw < 0.5:
        database.kill_and_begin()
        return STORE
    processes = _planning_processes(served.process.pid)
    if processes and draw < 0.75:
        process = int(random.choice(sorted(processes)))
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        return processes[process]
    served.kill()
    served.begin()
    return SERVICE


def _check_rows(url: str) -> None:
    """Raise unless the rows of deleted jobs are deleted, and those of no others."""
    engine = create_engine(url)
    ends = time.monotonic() + PATIENCE_S
    while True:
        with engine.begin() as connection:
            left = connection.execute(select(func.count()).select_from(schema.removals)).scalar()
            keys = set(connection.execute(select(schema.jobs.c.key)).scalars())
            tables = (schema.plans, schema.ranks, schema.batches, schema.measurements)
            used = {
                key
                for table in tables
                for key in connection.execute(select(table.c.job).distinct()).scalars()
            }
        if not left:
            break
        assert time.monotonic() < ends, left
        time.sleep(0.2)
    engine.dispose()
    assert used <= keys, used - keys


def _delete_job(served: Supervised, number: int) -> str:
    """Begin a job with pushed batches, and delete it at once; return its id."""
    job = f"deleted{number}"
    batches: list[Any] = [
        {"step": step, "ids": [1, 2], "lengths": [100, 200]} for step in range(1500)
    ]
    with served.connect() as client:
        client.create_job(id=job, proposal=served.proposal)
        client.push_batches(job, batches=batches)
        client.delete_job(job)
    return job


def _planning_processes(service: int) -> dict[int, str]:
    """Return the planning processes of a service and the server that forks them, by number."""
    parents = {}
    for process, fields in list_processes():
        with suppress(OSError):
            if b"multiprocessing.forkserver" in Path(f"/proc/{process}/cmdline").read_bytes():
                parents[process] = int(fields[1])
    servers = {process for process, parent in parents.items() if parent == service}
    planning = {process for process, parent in parents.items() if parent in servers}
    return dict.fromkeys(servers, FORKING) | dict.fromkeys(planning, PLANNER)


OUTAGE_S = 20.0
EARLIER = "e40090eb^"
"""The last revision with the store's previous schema; the repository's history has it."""

REPOSITORY = Path(__file__).parents[1]


def operate_service(data: Sequence[Data], steps: int = 60) -> Output:
    """Upgrade, interrupt, back up and restore the service; raises if anything was lost."""
    table = Table(
        "event | steps of 3 jobs before | service away (s) | stayed", "{} | {} | {:.0f} | {}"
    )
    warnings.filterwarnings("ignore", message=".*waits for the service", category=UserWarning)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        earlier = _extract_earlier(folder / "earlier")
        plans = [_plan_undisturbed(data[-1], steps, folder / "calm", None)]
        if earlier is not None:
            plans.append(_plan_undisturbed(data[-1], steps, folder / "calm-earlier", earlier))
        with ExitStack() as stack:
            store = (str(folder / "jobs.db"), folder / "files")
            served = stack.enter_context(Supervised(*store, package=earlier))
            training = _Training(served, data[-1], steps)
            uploads = Repeated(partial(upload, served))
            if earlier is not None:
                table.add(*_upgrade(served, training))
            table.add(*_interrupt(served, training))
            uploads.end()  # later ones are after the backup
            table.add(*_restore(served, training, store, folder))
            training.finish(steps)
            _check_digests(training.ranks, plans, steps)
            check_jobs(served, uploads.results, steps)
    yield (
        "Each step was delivered once to each of 4 ranks, with the digest of an undisturbed run\n"
        "of either release; each acknowledgement and upload is there at the end."
    )
    yield table


def _extract_earlier(folder: Path) -> Path | None:
    """Extract the earlier release as a package, if this is a clone with the history."""
    archive = subprocess.run(
        ["git", "archive", EARLIER], cwd=REPOSITORY, capture_output=True, check=False
    )
    if archive.returncode:
        print(f"The upgrade is left out: there is no revision {EARLIER} here.\n")
        return None
    tree, package = folder / "tree", folder / "package"
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(tree, filter="data")
    package.mkdir()
    (tree / "seqplan").rename(package / "seqplan")
    for part in ("api", "costs", "integrations", "planner", "plans", "profiler", "runtime"):
        (package / "seqplan" / part).symlink_to(tree / part)
    return package


def _plan_undisturbed(
    data: Data, steps: int, folder: Path, package: Path | None
) -> list[list[str | None]]:
    """Return the digests of each rank of each job without an event."""
    folder.mkdir()
    with Supervised(str(folder / "calm.db"), folder / "files", package) as served:
        ranks = train_jobs(served, data, steps, lambda step: None)
        finish(ranks)
    return [rank.digests for rank in ranks]


class _Training:
    """Jobs whose ranks begin some steps more after each event, so that no event comes too late."""

    def __init__(self, served: Supervised, data: Data, steps: int) -> None:
        self._released = 0
        self.ranks = train_jobs(served, data, steps, self._may_begin)

    def _may_begin(self, step: int) -> None:
        time.sleep(0.1)
        while step >= self._released:
            time.sleep(0.005)

    @property
    def done(self) -> int:
        """Steps of all jobs that are done."""
        return count_steps(self.ranks) // WORLD

    def wait_for(self, steps: int) -> int:
        """Wait until ranks have done more steps, and begin others; return the steps done."""
        begun = min(len(rank.steps) for rank in self.ranks)
        self._released = begun + steps + 6
        while min(len(rank.steps) for rank in self.ranks) < begun + steps:
            raise_failures(self.ranks)
            time.sleep(0.02)
        return self.done

    def finish(self, steps: int) -> None:
        """Do the last steps."""
        self._released = steps
        finish(self.ranks)


def _upgrade(served: Supervised, training: _Training) -> Cells:
    done, began = training.wait_for(8), time.monotonic()
    served.end()
    served.begin()
    return "upgrade", done, time.monotonic() - began, "all"


def _interrupt(served: Supervised, training: _Training) -> Cells:
    done, began = training.wait_for(8), time.monotonic()
    served.kill()
    time.sleep(OUTAGE_S)
    served.begin()
    return "outage (kill -9)", done, time.monotonic() - began, "all"


def _restore(
    served: Supervised, training: _Training, store: tuple[str, Path], folder: Path
) -> Cells:
    """Back up, train on, lose the disk, restore."""
    training.wait_for(2)
    copy, restored = folder / "backup.tar", str(folder / "restored.db")
    _call("backup", store[0], "--files", store[1], "-o", copy)
    before = training.done
    done, began = training.wait_for(8), time.monotonic()
    served.kill()
    _call("restore", copy, "--store", restored, "--files", folder / "restored.files")
    served.begin((restored, folder / "restored.files"))
    stayed = f"steps to {before}, planned again beyond"
    return "disk lost, restored", done, time.monotonic() - began, stayed


def _call(*arguments: object) -> None:
    command = [sys.executable, "-m", "seqplan.api.cli", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _check_digests(
    ranks: Sequence[Rank], plans: Sequence[Sequence[Sequence[str | None]]], steps: int
) -> None:
    """Raise if a step is lost, or its plan is another than of an undisturbed run."""
    for number, rank in enumerate(ranks):
        assert rank.steps == list(range(steps)), rank.steps
        assert rank.digests == ranks[number // WORLD * WORLD].digests
        for step, digest in enumerate(rank.digests):
            assert digest in {release[number][step] for release in plans}, (number, step)
