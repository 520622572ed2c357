"""From the service to a rank's view, as a reader of the README or of its page would type it."""

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

import numpy as np
import pytest

from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.cluster import Cluster
from seqplan.planner.proposal.make_proposal import make_proposal

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
    for written, here, needed in (
        ("./run seqplan", str(Path(sys.executable).with_name("seqplan")), True),
        ("out/seqplan.db", f"{folder}/seqplan.db", True),
        ("out/proposal.json", f"{folder}/proposal.json", False),
        ("8400", port, True),
        ("python3 -c", f"{sys.executable} -c", True),
    ):
        assert written in walk or not needed
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
    """A port that is free; the test is skipped if there is no curl."""
    if shutil.which("curl") is None:
        pytest.skip("no curl")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


def view_in(text: str) -> dict[str, object]:
    view, _ = json.JSONDecoder().raw_decode(text, text.index('{"step":0,"rank":3,"world'))
    assert isinstance(view, dict)
    return view


def test_the_page_of_the_service(tmp_path: Path, port: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(block("docs/service.md", "python", "HttpSource(").replace("8400", port))
    walk = block("docs/service.md", "bash", "seqplan serve")
    outputs = typed(f"{walk}\n{sys.executable} {program}\n", port, tmp_path)
    assert '"state":"planning"' in outputs.replace(" ", "")
    assert view_in(outputs)["world_size"] == 4
    assert '{"step":0,"rank":3}' in outputs
    assert re.search(r"1 \[.*\]$", outputs, re.MULTILINE)


def test_the_readme(tmp_path: Path, port: str) -> None:
    """Its proposal is the demonstration's; here a smaller one stands for it."""
    lengths = np.load(ROOT / "examples" / "data" / "code.npy")
    cluster = Cluster(gpus=4, max_len=4096, tokens=4096)
    proposal = make_proposal(
        load_shipped("llama-7b-a800-80gb").restrict(measured=True), cluster, lengths
    )
    (tmp_path / "proposal.json").write_text(proposal.to_json(), "utf-8")
    walk = block("README.md", "bash", "seqplan serve")
    assert len(walk.splitlines()) <= 8
    outputs = typed(walk, port, tmp_path)
    assert view_in(outputs)["world_size"] == 4
