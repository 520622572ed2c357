"""Output of commands: tables on stdout, progress on stderr, and files."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from seqplan.plans.format.atomic_file import write_text
from seqplan.plans.percent import count_of as count_of
from seqplan.plans.percent import percent

if TYPE_CHECKING:
    from seqplan.costs.fit.latency_fit import Errors
    from seqplan.costs.profile import Profile


class Columns:
    """Columns of a table as wide as their header and the widest of ``rows``.

    The first ``left`` columns are left-aligned, the others right-aligned. For tables whose rows
    come one by one; a wider cell shifts the rest of its row.
    """

    def __init__(self, header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> None:
        self._header = header
        self._widths = [max(map(len, cells)) for cells in zip(header, *rows, strict=True)]
        self._left = left

    def head(self) -> list[str]:
        """Return the lines above the rows."""
        return [self.line(self._header), "  ".join("─" * width for width in self._widths)]

    def line(self, row: Sequence[str]) -> str:
        """Return the line of a row."""
        parts = [
            text.ljust(width) if i < self._left else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, self._widths, strict=True))
        ]
        return "  ".join(parts).rstrip()


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """Lines of a table; the first ``left`` columns are left-aligned, the others right-aligned."""
    rows = list(rows)
    columns = Columns(header, rows, left)
    return [*columns.head(), *map(columns.line, rows)]


def seconds(time_ms: float | None) -> str:
    """A step's time for people: ``3.41 s``, ``812 ms``, or a dash."""
    if time_ms is None:
        return "—"
    return f"{time_ms / 1000:.2f} s" if time_ms >= 1000 else f"{time_ms:.0f} ms"


ERRORS = "errors of the predictions, relative to the measured times: median / p90"
"""Line below a table of ``describe_errors``."""


def describe_errors(errors: Errors) -> str:
    """Return the median and the p90 of errors, or a dash."""
    if errors.median is None or errors.p90 is None:
        return "–"
    return f"{percent(errors.median)} / {percent(errors.p90)}"


def print_note(text: str) -> None:
    """Print a line about an input on stderr."""
    print(f"seqplan: {text}", file=sys.stderr)


class RedrawnLine:
    """One line on a terminal, redrawn; in a log a line each time. Use as a context manager."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._shown = False

    def show(self, text: str) -> None:
        """Write a text, on a terminal in the place of the one before."""
        self._out.write(f"\r\x1b[K{text}" if self._terminal else f"{text}\n")
        self._out.flush()
        self._shown = True

    def clear(self) -> None:
        """Take the line away, before another is printed or at the end."""
        if self._terminal and self._shown:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


_BAR = 30
"""Characters of a bar."""


class ProgressBar(RedrawnLine):
    """A bar on stderr; in a log a line now and then. Call with (stage, done, total)."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._last = 0.0
        self._stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        changed = stage != self._stage or done == total
        if not changed and now - self._last < (0.1 if self._terminal else 10.0):
            return
        self._last, self._stage = now, stage
        if self._terminal:
            filled = _BAR * done // max(total, 1)
            self.show(f"{stage:<22} {'█' * filled}{'░' * (_BAR - filled)} {done}/{total}")
        elif done in (0, total):
            self.show(f"{stage}: {done}/{total}")


def write_profile(path: Path, document: Mapping[str, Any]) -> Profile:
    """Write a profile's document, which is checked first, and return the profile."""
    from seqplan.costs.profile import Profile

    profile = Profile.from_document(document, str(path))
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return profile


@contextmanager
def create_folder(path: Path | None) -> Iterator[None]:
    """Create a folder and its parents; those that a failure leaves empty are removed."""
    created = [] if path is None else [each for each in (path, *path.parents) if not each.exists()]
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for each in created:
                each.rmdir()
        raise


def check_output(path: Path | None, *inputs: str | Path | None) -> None:
    """``ValueError`` when a file of this name cannot be created or is an input; None is no file."""
    if path is None:
        return
    for source in inputs:
        if source is not None and os.path.realpath(source) == os.path.realpath(path):
            raise ValueError(f"{path}: is an input of this command; name another output")
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; name a file in it")
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        return  # a device or a pipe is written to directly, whatever its folder allows
    folder = target.parent
    if not folder.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist. Create it")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{path}: the folder {path.parent} is not writable. Name another folder")
