"""Ending ``seqplan plan`` by signals: exit codes, no process and no part of a file left."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_forks import CommandProcess
from producer_cases import alive_in, dense_proposal, drawn_batches

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")

PATIENCE_S = 60
"""Long enough for the slowest machine; nothing waits so long if all is well."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A proposal and more batches than anyone waits for."""
    folder = tmp_path_factory.mktemp("files")
    proposal, batches = folder / "proposal.json", folder / "batches.jsonl"
    proposal.write_text(dense_proposal().to_json())
    with batches.open("w") as file:
        for batch in drawn_batches(3_000, sequences=60):
            file.write(json.dumps({"step": batch.step, "lengths": batch.lengths}) + "\n")
    return proposal, batches


@pytest.fixture(autouse=True)
def output_folder(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()


@contextmanager
def planning(files: tuple[Path, Path], output: Path) -> Iterator[CommandProcess]:
    """``seqplan plan`` with two workers, in a separate process group."""
    with CommandProcess(
        *("plan", "--workers", 2),
        *("--proposal", files[0], files[1], "-o", output),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as running:
        try:
            yield running
        finally:
            for process in alive_in(running.pid):
                os.kill(process, signal.SIGKILL)


def wait_until(event: str, happened: object) -> None:
    assert callable(happened)
    end = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < end, f"waited in vain until {event}"
        time.sleep(0.01)


def wait_for_plans(folder: Path) -> None:
    """Until some plans have been written to the temporary file."""
    wait_until("plans are written", lambda: any(f.stat().st_size for f in folder.iterdir()))


@pytest.mark.parametrize("when", ["starting", "planning"])
@pytest.mark.parametrize("to", ["parent", "group"])
def test_an_interrupt(files: tuple[Path, Path], tmp_path: Path, when: str, to: str) -> None:
    """Ctrl-C goes to every process of a terminal's group; a supervisor signals one."""
    output = tmp_path / "output" / "plans.jsonl"
    with planning(files, output) as running:
        if when == "starting":
            wait_until("workers start", lambda: len(alive_in(running.pid)) > 3)
        else:
            wait_for_plans(output.parent)
        if to == "group":
            os.killpg(running.pid, signal.SIGINT)
        else:
            running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=PATIENCE_S)
        assert (running.returncode, out, err) == (130, "", "seqplan: interrupted\n")
        assert os.listdir(output.parent) == []
        wait_until("all processes ended", lambda: not alive_in(running.pid))


def test_termination(files: tuple[Path, Path], tmp_path: Path) -> None:
    output = tmp_path / "output" / "plans.jsonl"
    before = '{"pipelines": [], "sequences": [], "predicted_ms": 1}\n'
    output.write_text(before)
    with planning(files, output) as running:
        wait_until("a temporary file", lambda: len(os.listdir(output.parent)) == 2)
        running.terminate()
        out, err = running.communicate(timeout=PATIENCE_S)
        assert (running.returncode, out, err) == (143, "", "")
        assert os.listdir(output.parent) == [output.name]
        assert output.read_text() == before
        wait_until("all processes ended", lambda: not alive_in(running.pid))


def test_workers_end_with_a_killed_parent(files: tuple[Path, Path], tmp_path: Path) -> None:
    output = tmp_path / "output" / "plans.jsonl"
    with planning(files, output) as running:
        wait_for_plans(output.parent)
        assert len(alive_in(running.pid)) >= 3
        running.kill()
        running.communicate(timeout=PATIENCE_S)
        wait_until("all processes ended", lambda: not alive_in(running.pid))
        assert not output.exists()
