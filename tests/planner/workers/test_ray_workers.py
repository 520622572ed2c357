"""Planning on a real Ray cluster of two machines, as Ray counts: bytes, deaths, failures, ends."""

import importlib.util
import multiprocessing
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import producer_cases
import pytest
from producer_cases import (
    alive_in,
    dense_proposal,
    drawn_batches,
    lines,
    read_processes,
    until_failure,
)

from seqplan import Batch, Infeasible
from seqplan.planner.workers import ray_driver as ray_agent
from seqplan.planner.workers import ray_workers
from seqplan.planner.workers.pool import DEATHS, WorkerDied
from seqplan.planner.workers.produce import produce

PATIENCE_S = 60

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None or not Path("/proc/self/stat").exists(),
    reason="no ray (install seqplan[ray]) or no /proc",
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """A head with one CPU and another node with one: yields the environment to join."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder}
        environment["PYTHONPATH"] = str(Path(producer_cases.__file__).parent)
        environment |= token
        environment.pop("RAY_ADDRESS", None)

        def start(*arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
            log = Path(folder) / f"{len(nodes)}.txt"
            with log.open("w") as out:
                line = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
                line += ["--num-cpus=1", "--object-store-memory=100000000", *arguments]
                node = subprocess.Popen(
                    line, stdout=out, stderr=out, env=environment, start_new_session=True
                )
            nodes.append(node)
            return node, log

        nodes: list[subprocess.Popen[bytes]] = []
        try:
            _, printed = start("--head", "--port=0", "--include-dashboard=false")
            address_line = until(lambda: re.search(r"--address='(\S+?)'", printed.read_text()))
            address: str = address_line[1]  # type: ignore[index]
            start(f"--address={address}")
            yield {"RAY_ADDRESS": address, **token}
        finally:
            for node in nodes:  # all that it started is of its group; nothing is worth saving
                os.killpg(node.pid, signal.SIGKILL)
                node.wait(PATIENCE_S)
            for node in nodes:
                until(lambda session=node.pid: not alive_in(session=session))


def until(happened: Callable[[], object], seconds: float = PATIENCE_S) -> object:
    end = time.monotonic() + seconds
    while not (outcome := happened()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return outcome


@pytest.fixture
def joined(cluster: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What plans here plans on the cluster."""
    for name, value in cluster.items():
        monkeypatch.setenv(name, value)


def actors() -> list[int]:
    """The processes of this machine that are planning actors, whatever they do."""
    titles = read_processes("cmdline")
    return [process for process, title in titles if title.startswith("ray::PlanningActor")]


@needs_ray
@pytest.mark.usefixtures("joined")
def test_ray_gives_the_bytes_of_one_process() -> None:
    """Also if there are fewer CPUs than workers: the third is done without."""
    batches = drawn_batches(8)
    alone = lines(dense_proposal(), batches)
    assert lines(dense_proposal(), batches, "ray:1") == alone
    assert lines(dense_proposal(), batches, "ray:3") == alone
    until(lambda: not actors())


@needs_ray
@pytest.mark.usefixtures("joined")
def test_killed_actors_change_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    def kill(step: int) -> None:
        if step in (4, 13):
            running = actors()
            assert running
            for actor in running if step == 13 else running[:1]:
                os.kill(actor, signal.SIGKILL)

    batches = drawn_batches(24, sequences=200)
    assert lines(dense_proposal(), batches, "ray:2", kill) == lines(dense_proposal(), batches)
    until(lambda: not actors())
    assert capfd.readouterr() == ("", "")  # plans go to stdout, Ray's stories nowhere


@needs_ray
@pytest.mark.usefixtures("joined")
def test_a_killed_agent_changes_nothing() -> None:
    """The agent is Ray's driver: it ends, too, when the head of the cluster is gone."""

    def kill(step: int) -> None:
        if step == 4:
            [agent] = multiprocessing.active_children()
            agent.kill()

    batches = drawn_batches(12, sequences=200)
    assert lines(dense_proposal(), batches, "ray:2", kill) == lines(dense_proposal(), batches)


@needs_ray
@pytest.mark.usefixtures("joined")
def test_planning_errors_are_raised_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that nothing can run, and one that ends its actor every time."""
    batches = drawn_batches(5)
    batches[2] = Batch(2, (8, 9), (100, 32768 * 30))
    messages = []
    for workers in (2, "ray:2"):
        produced = produce(dense_proposal(), batches, workers=workers)
        plans, error = until_failure(produced)
        assert isinstance(error, Infeasible)
        assert [planned.step for planned in plans] == [0, 1]
        messages.append(str(error))
    assert messages[0] == messages[1]
    monkeypatch.setattr(ray_workers, "drive", producer_cases.drive_and_die)
    batches[2] = Batch(2, (producer_cases.DEADLY, 5), (100, 200))
    produced = produce(dense_proposal(), batches, workers="ray:2")
    plans, error = until_failure(produced)
    assert isinstance(error, WorkerDied)
    assert str(error) == f"step 2: planning it ended its worker process {DEATHS} times"
    assert [planned.step for planned in plans] == [0, 1]


@needs_ray
@pytest.mark.usefixtures("joined")
def test_closing_ends_the_actors() -> None:
    endless = (Batch.from_lengths([100, 200], step) for step in range(10**9))
    produced = produce(dense_proposal(), endless, workers="ray:2")
    assert next(produced).step == 0
    assert actors()
    produced.close()  # type: ignore[attr-defined]
    until(lambda: not actors())


@needs_ray
def test_without_an_address_a_cluster_is_started_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command, interrupted in the middle: no output and no process is left."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    proposal, batches = tmp_path / "proposal.json", tmp_path / "batches.jsonl"
    proposal.write_text(dense_proposal().to_json())
    batches.write_text("".join(f'{{"lengths":{[7, 8, 9000]}}}\n' for _ in range(20_000)))
    command = [sys.executable, "-m", "seqplan.api.cli", "plan"]
    command += ["--proposal", str(proposal), str(batches), "--workers", "ray:2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stdout.readline().startswith('{"digest":"sha256:')
        os.killpg(running.pid, signal.SIGINT)
        _, stderr = running.communicate(timeout=PATIENCE_S)
        assert (running.returncode, stderr) == (130, "seqplan: interrupted\n")
        # One of Ray's that was just starting may look for its cluster for a while.
        until(lambda: not alive_in(session=running.pid), 3 * PATIENCE_S)


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "nonsense"])
def test_a_cluster_that_is_not_there(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ray_agent.RayUnavailable) as caught:
        lines(dense_proposal(), drawn_batches(3), "ray:2")
    assert str(caught.value).startswith(f"cannot use the Ray cluster at {address}: ")
    assert "\n" not in str(caught.value)


def test_without_ray_the_package_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'seqplan\[ray\]'"):
        next(produce(dense_proposal(), drawn_batches(1), workers="ray:1"))
