"""The README's walk, as a reader would type it: from the service to a rank's view."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _block(language: str, holding: str) -> str:
    text = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    (found,) = [block for block in blocks if holding in block]
    return str(found)


def test_from_the_service_to_a_view(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    program = tmp_path / "program.py"
    python = _block("python", "HttpSource(")
    program.write_text(python.replace("8400", port))
    walk = _block("bash", "seqplan serve")
    for written, here in (
        ("./run seqplan", f"{sys.executable} -m seqplan.api.cli"),
        ("out/seqplan.db", f"{tmp_path}/seqplan.db"),
        ("8400", port),
        ("python3 -c", f"{sys.executable} -c"),
    ):
        assert written in walk
        walk = walk.replace(written, here)
    walk = f"set -eu\n{walk}\n{sys.executable} {program}\n"
    shell = subprocess.Popen(
        ["bash", "-c", walk], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "no_proxy": "*"}, start_new_session=True,
    )  # fmt: skip
    try:
        # The service goes on after the walk, with the pipe's other end: read to the last line.
        assert shell.stdout is not None
        said = []
        for line in shell.stdout:
            said.append(line)
            if re.search(r"1 \[.*\]\n$", line):
                break
        else:
            assert shell.stderr is not None
            pytest.fail("".join(said) + shell.stderr.read())
        assert shell.wait(60) == 0
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        shell.communicate()
    text = "".join(said)
    assert '"state":"planning"' in text.replace(" ", "")
    view, _ = json.JSONDecoder().raw_decode(text, text.index('{"step":0,"rank":3,"world'))
    assert view["world_size"] == 16
    assert '{"step":0,"rank":3}' in text
