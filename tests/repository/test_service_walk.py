"""From the service to a rank's view, as a reader of its page would type it."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def block(page: str, language: str, holding: str) -> str:
    text = (ROOT / page).read_text("utf-8")
    blocks = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    (shown,) = [block for block in blocks if holding in block]
    return str(shown)


def typed(walk: str, port: str, folder: Path) -> str:
    """Run the walk in a shell, with a free port and separate files.

    It is read up to the walk's end only: the service goes on after it, with the pipe's other end.
    """
    for written, here in (
        ("./run seqplan", str(Path(sys.executable).with_name("seqplan"))),
        ("out/seqplan.db", f"{folder}/seqplan.db"),
        ("8400", port),
        ("python3 -c", f"{sys.executable} -c"),
    ):
        assert written in walk
        walk = walk.replace(written, here)
    shell = subprocess.Popen(
        ["bash", "-c", f"set -eu\n{walk}\necho\necho walked"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "no_proxy": "*"}, start_new_session=True,
    )  # fmt: skip
    try:
        assert shell.stdout is not None
        outputs = []
        for line in shell.stdout:
            if line == "walked\n":
                break
            outputs.append(line)
        else:
            assert shell.stderr is not None
            pytest.fail("".join(outputs) + shell.stderr.read())
        assert shell.wait(60) == 0
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        shell.communicate()
    return "".join(outputs)


@pytest.fixture
def port() -> str:
    """A port that is free; the test is skipped if there is no curl.

    It is below the range from which systems choose ports for connections of other tests.
    """
    if shutil.which("curl") is None:
        pytest.skip("no curl")
    for port in random.Random(os.getpid()).sample(range(20_000, 30_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return str(port)
    pytest.fail("no port from 20000 to 30000 is free")


def view_in(text: str) -> dict[str, object]:
    view, _ = json.JSONDecoder().raw_decode(text, text.index('{"step":0,"rank":3,"world'))
    assert isinstance(view, dict)
    return view


def test_the_page_of_the_service(tmp_path: Path, port: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(block("docs/service.md", "python", "HttpSource(").replace("8400", port))
    walk = block("docs/service.md", "bash", "./run seqplan serve")
    # The page continues with another proposal, from a later checkpoint.
    going_on = block("docs/service.md", "bash", "continues")
    for written, here in (("ID2", "'$proposal'"), ('"step": 400', '"step": 2')):
        assert written in going_on
        going_on = going_on.replace(written, here)
    outputs = typed(f"{walk}\n{sys.executable} {program}\n{going_on}", port, tmp_path)
    assert '"state":"planning"' in outputs.replace(" ", "")
    assert view_in(outputs)["world_size"] == 4
    assert '{"step":0,"rank":3}' in outputs
    assert re.search(r"1 \[.*\]$", outputs, re.MULTILINE)
    assert '{"id":"run1b"' in outputs.replace(" ", "")
