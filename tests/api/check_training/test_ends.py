"""A check that ends early: its message, and no process left behind."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from command_forks import CommandProcess
from small_check import ENDED_S, RANKS, RUNNING, STEPS, have_logs, logs, none_left, process_of

from seqplan.api.check_training import processes
from seqplan.api.check_training.processes import rank_server

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc")


def started(plans: Path) -> CommandProcess:
    """A check of many steps that has begun."""
    command = CommandProcess(
        *("check", "training", "--plans", plans, "--ranks", RANKS, "--steps", STEPS),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert command.stderr.readline().startswith("starting ranks")
    return command


def test_nothing_is_left_of_a_command_that_is_killed(plans: Path, temporary: Path) -> None:
    with started(plans) as command:
        assert have_logs(temporary, RUNNING)
        command.kill()
    assert none_left(temporary)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_nothing_is_left_of_a_command_that_is_stopped(
    plans: Path, temporary: Path, number: signal.Signals, code: int
) -> None:
    """At once; that its ranks end, too, is seen where their rows are."""
    with started(plans) as command:
        assert have_logs(temporary, ["server.log"])
        command.send_signal(number)
        _, err = command.communicate(timeout=ENDED_S)
    assert command.returncode == code
    assert "Traceback" not in err
    assert logs(temporary) == {}
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("log", "who"),
    [("rank-1.log", "rank 1"), ("server.log", "the process that starts ranks")],
)
def test_a_process_that_dies(plans: Path, temporary: Path, log: str, who: str) -> None:
    with started(plans) as command:
        os.kill(process_of(temporary, log), signal.SIGKILL)
        _, err = command.communicate(timeout=ENDED_S)
    assert command.returncode == 1
    line = err.splitlines()[-1]
    assert line == f"seqplan: {who} was killed by SIGKILL; is there enough memory?"
    assert none_left(temporary)


def test_a_server_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last printed line is in the message."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('not for this machine')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with rank_server() as server:
        folder = Path(server.folder)
        assert folder.is_dir()
        with pytest.raises(RuntimeError) as raised:
            list(server.messages({"ranks": RANKS}))
    assert str(raised.value) == (
        "the process that starts ranks ended with code 1: ImportError: not for this machine"
    )
    assert not folder.exists()


@pytest.fixture
def server_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A server that responds to its first request with these lines."""
    module = tmp_path / "messages.py"
    monkeypatch.setattr(processes, "MODULE", "messages")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return module


def speaking(*messages: dict[str, object]) -> str:
    lines = "\n".join(json.dumps(message) for message in messages)
    return f"import sys\nsys.stdin.readline()\nprint({lines!r}, flush=True)\nsys.stdin.read()\n"


def end_of(number: int) -> list[dict[str, object]]:
    return [{"process": number, "done": True}, {"process": number, "ended": 0, "log": ""}]


def test_messages_until_all_are_done(server_module: Path) -> None:
    server_module.write_text(
        speaking({"process": 1, "step": 4}, *end_of(0), *end_of(2), *end_of(1))
    )
    with rank_server() as server:
        messages = list(server.messages({"ranks": 2}))
    assert [number for number, _ in messages] == [1, 0, 2, 1]
    assert [message.get("step") for _, message in messages] == [4, None, None, None]


@pytest.mark.parametrize(
    ("messages", "error", "text"),
    [
        (
            [{"process": 1, "ended": 3, "log": "no room for a thread"}],
            RuntimeError,
            "rank 1 ended with code 3: no room for a thread",
        ),
        (
            [{"process": 0, "ended": 0, "log": ""}],
            RuntimeError,
            "ended with code 0: it printed not",
        ),
        # A rank that has lost another reports it first; the message names the other's death.
        (
            [
                {"process": 0, "error": "lost rank 1", "input": False},
                {"process": 0, "ended": 0, "log": ""},
                *end_of(2),
                {"process": 1, "ended": -6, "log": ""},
            ],
            RuntimeError,
            "rank 1 was killed by SIGABRT",
        ),
        # Bad input explains what else fails.
        (
            [
                {"process": 2, "error": "RuntimeError: lost", "input": False},
                {"process": 1, "error": "no such sample", "input": True},
            ],
            ValueError,
            "^no such sample$",
        ),
        (
            [{"process": 2, "error": "KeyError: 7", "input": False}],
            RuntimeError,
            "the one process: KeyError: 7",
        ),
    ],
)
def test_failures_are_explained(
    server_module: Path, messages: list[dict[str, object]], error: type[Exception], text: str
) -> None:
    server_module.write_text(speaking(*messages))
    with rank_server() as server, pytest.raises(error, match=text):
        list(server.messages({"ranks": 2}))
