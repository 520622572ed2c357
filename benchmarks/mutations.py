"""Which faults of the runtime its tests catch: each of ``mutants.csv`` in a copy of the tree.

Faults are put in one at a time, and the test files named with them run until the first failure. One
that passes all of them is not caught; one that does not end in time is.
"""

from __future__ import annotations

import csv
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.tables import Output, Table

ROOT = Path(__file__).parents[1]


class Mutant(NamedTuple):
    """One fault: ``old`` occurs once in ``file``; ``tests``: files of which one must fail."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def read_mutants() -> list[Mutant]:
    """Read the faults; ``tests`` are divided by spaces."""
    with Path(__file__).with_name("mutants.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [Mutant(r["file"], r["old"], r["new"], tuple(r["tests"].split())) for r in rows]


MUTANTS = read_mutants()
WORKERS = 2
LIMIT_S = 120.0
"""Seconds for the tests of a mutant; a fault may leave a rank waiting."""

LEAST_SHARE = 0.95

_FOLDERS = (
    *("api", "costs", "integrations", "planner", "plans", "profiler", "runtime", "seqplan"),
    *("examples", "tests", ".types"),
)


def catch_mutants(data: object) -> Output:
    """List which mutants are caught; ``SystemExit`` if fewer than 95 % are."""
    begun = time.monotonic()
    for mutant in MUTANTS:
        count = (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old)
        if count != 1:
            raise SystemExit(f"mutations: {mutant.file} has {count} times: {mutant.old}")
    copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(WORKERS):
            copies.put(_copy(Path(folder) / str(number)))
        with ThreadPoolExecutor(WORKERS) as pool:
            files = sorted({test for mutant in MUTANTS for test in mutant.tests})
            whole = list(pool.map(lambda test: _fails(copies, None, (test,)), files))
            if broken := [test for test, fails in zip(files, whole, strict=True) if fails]:
                raise SystemExit(f"mutations: tests fail without a mutant: {', '.join(broken)}")
            results = list(pool.map(lambda mutant: _fails(copies, mutant, mutant.tests), MUTANTS))
    yield Table(
        "file | line | changed to | caught",
        "{} | `{}` | `{}` | {}",
        (
            (mutant.file, _line(mutant.old), _line(mutant.new), caught or "**no**")
            for mutant, caught in zip(MUTANTS, results, strict=True)
        ),
    )
    share = sum(map(bool, results)) / len(results)
    seconds = time.monotonic() - begun
    yield f"{sum(map(bool, results))} of {len(results)} caught ({share:.0%}), {seconds:.0f} s"
    if share < LEAST_SHARE:
        raise SystemExit(f"mutations: {share:.0%} caught, at least {LEAST_SHARE:.0%} are expected")


def _copy(folder: Path) -> Path:
    folder.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", ".pytest_cache")
    for name in _FOLDERS:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def _fails(
    copies: queue.SimpleQueue[Path], mutant: Mutant | None, tests: tuple[str, ...]
) -> str | None:
    """Run tests with a mutant in a free copy; how they fail, None if they pass."""
    root = copies.get()
    try:
        if mutant is None:
            return _run_tests(root, tests)
        path = root / mutant.file
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        try:
            return _run_tests(root, tests)
        finally:
            path.write_text(text, encoding="utf-8")
    finally:
        copies.put(root)


def _run_tests(root: Path, tests: tuple[str, ...]) -> str | None:
    # The copy's packages go before the installed ones; bytecode is not kept, as files of one size
    # may change within a second.
    environment = os.environ | {
        "PYTHONPATH": str(root / ".types"),
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:schemathesis", "-x", "-q"]
    process = subprocess.Popen(
        [*command, "-p", "no:cacheprovider", *tests],
        cwd=root,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        return "does not end"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if code < 0:  # by another process, not by the mutant
        raise SystemExit(f"mutations: signal {-code} ended the tests: {', '.join(tests)}")
    if code not in (0, 1):
        return "tests cannot be collected" if code == 2 else f"pytest ends with {code}"
    return "yes" if code else None


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|") or "(removed)"
