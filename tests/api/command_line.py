"""Running the command line in this process, which is fast, or as a separate process."""

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_forks import CommandProcess

from seqplan.api.cli import main


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str


def call(*arguments: str | Path | int) -> Outcome:
    """Run ``seqplan arguments…`` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as left:
            code = int(left.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue())


def process(*arguments: str | Path | int) -> Outcome:
    """Run ``seqplan arguments…`` as a process, forked from one that has imported it."""
    with CommandProcess(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        out, err = running.communicate()
    return Outcome(running.wait(), out, err)


def fresh_process(
    *arguments: str | Path | int, environment: Mapping[str, str] | None = None, **options: Any
) -> Outcome:
    """Run ``seqplan arguments…`` in a new interpreter; ``options`` go to ``subprocess.run``."""
    completed = subprocess.run(
        [sys.executable, "-m", "seqplan.api.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
        **options,
    )
    return Outcome(completed.returncode, completed.stdout, completed.stderr)


def succeeded(outcome: Outcome) -> str:
    """What a command that went well wrote on stdout."""
    assert outcome.code == 0, outcome.err
    assert "Traceback" not in outcome.err
    return outcome.out


def complaint(outcome: Outcome, code: int = 2) -> str:
    """The one line on stderr of a command that failed, without the program's name."""
    assert outcome.code == code, outcome
    assert outcome.err.endswith("\n")
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    return outcome.err.removesuffix("\n").removeprefix("seqplan: ")


def nothing_left(output: Path) -> None:
    """The folder of an output that was not to be written is empty."""
    assert os.listdir(output.parent) == []
