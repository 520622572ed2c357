"""An upgrade, an outage, a backup and a restore while three jobs train: is anything lost?"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path

from benchmarks.settings import Data, markdown
from benchmarks.trained_jobs import (
    JOBS,
    WORLD,
    Rank,
    Supervised,
    Uploads,
    finish,
    raise_failures,
    send,
    train_jobs,
)

STEPS = 60
OUTAGE_S = 20.0
EARLIER = "e40090eb^"
"""The last revision with the store's previous schema; the repository's history has it."""

REPOSITORY = Path(__file__).parents[1]


def run(data: Sequence[Data]) -> None:
    """Print the events and the steps meanwhile; raises if anything was lost."""
    rows = []
    warnings.filterwarnings("ignore", message=".*waits for the service", category=UserWarning)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        earlier = _extract_earlier(folder / "earlier")
        plans = [_plan_undisturbed(data[-1], folder / "calm", None)]
        if earlier is not None:
            plans.append(_plan_undisturbed(data[-1], folder / "calm-earlier", earlier))
        with ExitStack() as stack:
            store = (str(folder / "jobs.db"), folder / "files")
            served = stack.enter_context(Supervised(*store, package=earlier))
            ranks = train_jobs(served, data[-1], STEPS, lambda step: time.sleep(0.1))
            uploads = Uploads(served.address)
            if earlier is not None:
                rows.append(_upgrade(served, ranks))
            rows.append(_interrupt(served, ranks))
            uploads.end()  # later ones are after the backup
            rows.append(_restore(served, ranks, store, folder))
            finish(ranks)
            _check(served, ranks, plans, uploads)
    print("Each step was delivered once to each of 4 ranks, with the digest of an undisturbed run")
    print("of either release; each acknowledgement and upload is there at the end.\n")
    print(markdown(["event", "steps of 3 jobs before", "service away (s)", "stayed"], rows), "\n")


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


def _plan_undisturbed(data: Data, folder: Path, package: Path | None) -> list[list[str | None]]:
    """Return the digests of each rank of each job without an event."""
    folder.mkdir()
    with Supervised(str(folder / "calm.db"), folder / "files", package) as served:
        ranks = train_jobs(served, data, STEPS, lambda step: None)
        finish(ranks)
    return [rank.digests for rank in ranks]


def _wait_for(ranks: Sequence[Rank], steps: int) -> int:
    """Wait until ranks have done more steps; return the steps of all jobs."""
    begun = min(len(rank.steps) for rank in ranks)
    while min(len(rank.steps) for rank in ranks) < begun + steps:
        raise_failures(ranks)
        time.sleep(0.02)
    return _count(ranks)


def _count(ranks: Sequence[Rank]) -> int:
    return sum(len(rank.steps) for rank in ranks) // WORLD


def _upgrade(served: Supervised, ranks: Sequence[Rank]) -> list[str]:
    done, began = _wait_for(ranks, 8), time.monotonic()
    served.end()
    served.begin()
    return ["upgrade", str(done), f"{time.monotonic() - began:.0f}", "all"]


def _interrupt(served: Supervised, ranks: Sequence[Rank]) -> list[str]:
    done, began = _wait_for(ranks, 8), time.monotonic()
    served.end(kill=True)
    time.sleep(OUTAGE_S)
    served.begin()
    return ["outage (kill -9)", str(done), f"{time.monotonic() - began:.0f}", "all"]


def _restore(
    served: Supervised, ranks: Sequence[Rank], store: tuple[str, Path], folder: Path
) -> list[str]:
    """Back up, train on, lose the disk, restore."""
    _wait_for(ranks, 2)
    copy, restored = folder / "backup.tar", str(folder / "restored.db")
    _call("backup", store[0], "--files", store[1], "-o", copy)
    before = _count(ranks)
    done, began = _wait_for(ranks, 8), time.monotonic()
    served.end(kill=True)
    _call("restore", copy, "--store", restored, "--files", folder / "restored.files")
    served.begin((restored, folder / "restored.files"))
    took = f"{time.monotonic() - began:.0f}"
    return ["disk lost, restored", str(done), took, f"steps to {before}, planned again beyond"]


def _call(*arguments: object) -> None:
    command = [sys.executable, "-m", "seqplan.api.cli", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _check(
    served: Supervised,
    ranks: Sequence[Rank],
    plans: Sequence[Sequence[Sequence[str | None]]],
    uploads: Uploads,
) -> None:
    """Raise if a step, an acknowledgement or an upload is lost, or a plan is another."""
    for number, rank in enumerate(ranks):
        assert rank.steps == list(range(STEPS)), rank.steps
        assert rank.digests == ranks[number // WORLD * WORLD].digests
        for step, digest in enumerate(rank.digests):
            assert digest in {release[number][step] for release in plans}, (number, step)
    for number in range(JOBS):
        job = json.loads(send(served.address, "GET", f"/v1/jobs/job{number}"))
        assert job["acknowledged"] == [STEPS - 1] * WORLD, job
        assert job["planned_steps"] == STEPS
    for key in uploads.data_sets:
        body = json.dumps({"proposal": served.proposal, "lengths": key, "steps": 1, "tokens": 100})
        send(served.address, "POST", "/v1/jobs", body.encode())  # reads the array
