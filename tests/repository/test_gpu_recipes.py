"""The commands of docs/gpu-recipes.md, run as far as they run without a GPU."""

import os
import re
import shlex
from pathlib import Path

import pytest
from code_blocks import ROOT, read_blocks

from seqplan.api.cli import build_parser
from seqplan.api.cli.framework.entry import main

PAGE = ROOT / "docs" / "gpu-recipes.md"
MEASURED = ROOT / "docs" / "data" / "measured" / "llama3-8b-h200.json"
TORCHRUN = "torchrun --nproc-per-node 8 -m seqplan.api.cli "


def _read_commands(heading: str) -> list[str]:
    """List the commands below a heading, each on one line."""
    below = PAGE.read_text("utf-8").partition(f"## {heading}\n")[0].count("\n")
    block = next(block for block in read_blocks(PAGE) if block.line > below)
    return block.text.replace("\\\n", " ").splitlines()


@pytest.mark.parametrize("gpus", ["One GPU", "Eight GPUs", "64 GPUs"])
def test_recipes_run_without_a_gpu_but_for_the_device(
    gpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of a measured profile: one of an H200 with schemes that are derived from it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    ran = 0
    of = "--model small" if gpus == "One GPU" else f"--profile {MEASURED}"
    derive = f"profile derive {of} --hardware h200-141gb -o profile.json"
    assert main(shlex.split(derive)) == 0
    for command in _read_commands(gpus):
        text = re.sub(r"^([A-Z_]+=\S+ )+", "", command).removeprefix(TORCHRUN)
        text = re.sub(r"--tokens \d+ --steps 5", "--tokens 65536 --steps 1", text)
        words = shlex.split(text.removeprefix("seqplan "))
        if words[0].startswith("examples/") or words[0] in ("export", "sbatch"):
            files = [word for word in words if word.startswith("examples/")]
            assert all(os.access(file, os.X_OK) or file.endswith(".sbatch") for file in files)
            continue
        build_parser({}).parse_args(words)
        if "--device" not in words and "refit" not in words:
            assert main(words) == 0, command
            ran += 1
    assert ran == 2


def test_checks_of_devices_are_parsed() -> None:
    (command,) = [line for line in _read_commands("Check first") if TORCHRUN in line]
    build_parser({}).parse_args(shlex.split(command.partition(TORCHRUN)[2]))
