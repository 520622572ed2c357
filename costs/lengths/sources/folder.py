"""Lengths from a folder of text files: one file, one sequence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, islice
from pathlib import Path

from seqplan.costs.lengths.sources.collector import Collector
from seqplan.costs.lengths.sources.error import LengthsError
from seqplan.costs.lengths.sources.token_count import TextBatch, TokenCounter

CHUNK = 1 << 14
_DATA_SUFFIXES = (".npy", ".npz", ".parquet", ".arrow", ".idx", ".bin", ".gz", ".jsonl", ".zst")


def read_folder(
    folder: Path, pattern: str | None, counter: TokenCounter, collector: Collector
) -> None:
    """Read every file below ``folder`` as a text; hidden files and folders are skipped.

    Order: a folder's files by name, then its folders by name. ``pattern`` keeps the files whose
    name or path within the folder matches it.
    """
    texts = _files(folder, pattern)
    first = next(texts, None)
    if first is None:
        like = f" like {pattern}" if pattern else ""
        raise LengthsError(f"{folder}: holds no text files{like}. Name a folder with text files")
    counter.require(f"{folder}: a folder")
    collector.note(counter.note)
    texts = chain([first], texts)
    if counter.estimates:
        while paths := list(islice(texts, CHUNK)):
            # From sizes alone: a text is not opened.
            sizes = [counter.estimate(path.stat().st_size) for path in paths]
            collector.add(sizes, partial(_nth, paths))
        return
    batch = TextBatch(counter, collector)
    for path in texts:
        batch.add(_text(path), path, str)
    batch.flush(str)


def _nth(paths: list[Path], i: int) -> str:
    return str(paths[i])


def _files(folder: Path, pattern: str | None) -> Iterator[Path]:
    def raise_error(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, onerror=raise_error):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            path = Path(parent, name)
            if (pattern and not _matches(path.relative_to(folder), pattern)) or not path.is_file():
                continue
            if name.lower().endswith(_DATA_SUFFIXES):
                raise LengthsError(
                    f"{path}: is a data file in a folder of texts; name such files as sources "
                    "themselves, or choose the texts with --glob"
                )
            yield path


def _matches(within: Path, pattern: str) -> bool:
    # **/ also stands for no folder at all, which fnmatch does not know.
    return fnmatchcase(within.name, pattern.removeprefix("**/")) or fnmatchcase(
        within.as_posix(), pattern
    )


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LengthsError(
            f"{path}: is not UTF-8 text (byte {error.start + 1}: {error.reason}); "
            "convert it, or choose the texts with --glob"
        ) from None
