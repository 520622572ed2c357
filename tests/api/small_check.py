"""Small plans for training checks, and the processes that a check has."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from command_line import call, succeeded
from planned_files import PlannedFiles

SMALL = Path(__file__).parents[2] / "examples" / "data" / "llama-small-cpu.json"
RANKS, STEPS = 2, 80
ENDED_S = 60.0


def planned(
    folder: Path, lengths: Path, *, tokens: int, max_len: int, steps: int, profile: Path = SMALL
) -> Path:
    """Plan steps on ``RANKS`` ranks by the command line; the file of plans in ``folder``."""
    proposal, plans = folder / "proposal.json", folder / "plans.jsonl"
    files = PlannedFiles(profile, RANKS, tokens, lengths, proposal, plans, steps)
    succeeded(call(*files.propose_arguments, "--max-len", max_len, "-o", proposal))
    succeeded(call(*files.plan_arguments, "--seed", 2, "-o", plans))
    return plans


def logs(temporary: Path) -> dict[int, str]:
    """Return the processes with stderr in this folder: number → name of the file.

    These are all processes that a command has started."""
    names = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stderr = Path(os.readlink(folder / "fd" / "2"))
        except OSError:
            continue
        if temporary in stderr.parents:
            names[int(folder.name)] = stderr.name
    return names


RUNNING = ["rank-0.log", "rank-1.log", "reference.log", "server.log"]
"""Of a check on two ranks."""


def have_logs(temporary: Path, names: Sequence[str]) -> bool:
    """Whether these processes run and no others, within a while."""
    deadline = time.monotonic() + ENDED_S
    while (alive := sorted(logs(temporary).values())) != [*names] and time.monotonic() < deadline:
        time.sleep(0.1)
    return alive == [*names]


def process_of(temporary: Path, name: str) -> int:
    """The process that has this log, of those of ``RUNNING``."""
    assert have_logs(temporary, RUNNING)
    return next(number for number, log in logs(temporary).items() if log == name)


def none_left(temporary: Path) -> bool:
    """Whether all that a command has started ends within a while."""
    return have_logs(temporary, [])
