"""Code of the README and the pages: every block that can run is run, here or by a named test."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from code_blocks import PAGES, ROOT, SHELLS, Block, read_blocks
from command_line import call, succeeded

from seqplan.api.cli import build_parser

BLOCKS = [block for page in PAGES for block in read_blocks(page)]
MOST_NOT_RUN = 11
"""Blocks that need a cluster, another trainer, containers or minutes: as many as last counted."""

SMALLER = ("command-line.md", "cuda.md")
"""Pages that show no output: their commands plan one step, of half the tokens."""

HERE = [block for block in BLOCKS if block.can_run and not (block.not_run or block.run_by)]
MOST_SECONDS = 600
"""Of a block, which takes 15 s alone: a busy machine is no failure."""


def test_a_block_that_no_test_runs_has_a_reason() -> None:
    left_out = [f"{block}: {block.not_run}" for block in BLOCKS if block.not_run is not None]
    assert len(left_out) <= MOST_NOT_RUN, left_out


def test_commands_that_no_test_runs_are_parsed() -> None:
    commands = [
        command
        for block in BLOCKS
        if block.not_run is not None and "…" not in block.text
        for command in re.findall(r"(?<!-t )\bseqplan (.+)", block.text.replace("\\\n", " "))
        if not command.startswith("seqplan ")
    ]
    assert len(commands) >= 6
    for command in commands:
        build_parser({}).parse_args(shlex.split(command, comments=True))


def test_every_mark_is_of_a_block_that_can_run() -> None:
    marked = [block for block in BLOCKS if block.not_run or block.run_by]
    assert [str(block) for block in marked if not block.can_run] == []


def test_the_named_test_reads_the_page() -> None:
    for block in BLOCKS:
        if block.run_by is not None:
            assert block.page.name in (ROOT / block.run_by).read_text("utf-8"), str(block)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what a clone offers to the commands of the pages."""
    (tmp_path / "out").mkdir()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (tmp_path / "run").write_text('#!/bin/sh\nexec "$@"\n')
    (tmp_path / "run").chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_blocks_run(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    output = ""
    for block in (block for block in BLOCKS if block.page == page):
        if block.is_output:
            check_output(block, output)
        elif block in HERE:
            output = run_block(shorten(block) if page.name in SMALLER else block, folder)


def shorten(block: Block) -> Block:
    """The block with one step, of half the tokens."""
    text = re.sub(r"(?<=--tokens )\d+", lambda tokens: str(int(tokens[0]) // 2), block.text)
    return replace(block, text=re.sub(r"--steps \d+", "--steps 1", text))


def run_block(block: Block, folder: Path) -> str:
    """Run a block in the folder, and return its stdout.

    Lines that are commands of seqplan alone run in this process, which has imported it.
    """
    lines = block.text.replace("\\\n", " ").splitlines()
    if all(re.fullmatch(r"(\./run )?seqplan [^|&<>$`;#]+", line) for line in lines):
        words = [shlex.split(line.removeprefix("./run ")) for line in lines]
        return "".join(succeeded(call(*of_line[1:])) for of_line in words)
    shell = block.language != "python"
    assert not shell or block.language in SHELLS, f"{block}: bash, or a mark"
    command = ["bash", "-eu", "-c"] if shell else [sys.executable, "-c"]
    completed = subprocess.run(
        [*command, block.text],
        cwd=folder,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
        check=False,
    )
    assert completed.returncode == 0, f"{block}: {completed.stderr}"
    return completed.stdout


def check_output(block: Block, output: str) -> None:
    """Find a block in an output that may have further lines, as it may for a line of ``…``."""
    rest = "\n".join(" ".join(line.split()) for line in output.splitlines())
    shown = "\n".join(" ".join(line.split()) for line in block.text.splitlines())
    for part in shown.split("\n…\n"):
        _, printed, rest = rest.partition(part)
        assert printed, f"{block}: not printed, or not in this order:\n{part}"
