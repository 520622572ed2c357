"""The files that one default plan runs through, and how often execution changes files.

A reader who follows a plan opens these files. Counted by the interpreter's profile events, without
the native extension, so that every call is a Python call.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import seqplan
from benchmarks.settings import PROFILE, Data, markdown
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.placement.fill import VARIABLE
from seqplan.plans import scheme

GPUS, MAX_LEN, TOKENS = 64, 32_768, 200_000
SOURCES = Path(scheme.__file__).resolve().parents[1]


class CallPath:
    """Counts calls by file, and changes of file between them."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.changes = 0
        self._last = ""
        self._names: dict[str, str] = {}

    def record(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call if it is of this project: an argument of ``sys.setprofile``."""
        if event != "call":
            return
        name = self._name(frame.f_code.co_filename)
        if not name:
            return
        self.calls[name] += 1
        self.changes += name != self._last
        self._last = name

    def _name(self, path: str) -> str:
        if path not in self._names:
            real = Path(path).resolve()
            ours = not path.startswith("<") and real.is_relative_to(SOURCES)
            inside = ours and ".venv" not in real.parts
            self._names[path] = str(real.relative_to(SOURCES)) if inside else ""
        return self._names[path]


def run(data: Sequence[Data]) -> None:
    """Print files, changes of file and calls of a default plan, by folder."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "python"
    try:
        planner = seqplan.Planner.from_profile(PROFILE, GPUS, MAX_LEN)
        rows = [_row(planner, source) for source in data]
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before
    print(
        markdown(("lengths", "files", "changes of file", "calls", "calls by folder"), rows) + "\n"
    )


def _row(planner: seqplan.Planner, source: Data) -> list[str]:
    batch = next(iter(Sampler(source.lengths, TOKENS, MAX_LEN, 0).batches(1)))
    planner.plan(batch.lengths)
    path = CallPath()
    sys.setprofile(path.record)
    try:
        planner.plan(batch.lengths)
    finally:
        sys.setprofile(None)
    folders: Counter[str] = Counter()
    for name, calls in path.calls.items():
        folders[str(Path(name).parent)] += calls
    shares = ", ".join(f"{folder} {calls:,}" for folder, calls in folders.most_common())
    counts = (len(path.calls), path.changes, path.calls.total())
    return [source.name, *(f"{count:,}" for count in counts), shares]
