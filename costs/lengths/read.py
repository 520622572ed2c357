"""From paths to lengths: finds the files, picks the reader of each by its suffix."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from seqplan.costs.lengths.sources.collector import Collector, Lengths, Progress
from seqplan.costs.lengths.sources.error import LengthsError, first_line
from seqplan.costs.lengths.sources.options import SourceOptions
from seqplan.costs.lengths.sources.saved_dataset import is_saved_dataset, list_saved_files
from seqplan.costs.lengths.sources.token_count import TokenCounter

_WITH_FIELDS = (".json", ".jsonl", ".jsonl.gz", ".csv", ".tsv", ".parquet", ".arrow")
SUFFIXES = (".npy", ".txt", *_WITH_FIELDS, ".idx")
"""Files that are understood; a folder is read as text files, unless ``datasets`` saved it."""


def read_lengths(
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    options: SourceOptions | None = None,
    progress: Progress | None = None,
) -> Lengths:
    """Read the lengths, in tokens, of all sequences of the sources, in order.

    A source is a file with one of ``SUFFIXES``, a folder of text files or one that
    ``datasets.save_to_disk`` wrote, or a pattern such as ``shards/*.idx``, which stands for the
    files it matches in sorted order. ``LengthsError`` states in one line the error, its place,
    and a fix.
    """
    options = options or SourceOptions()
    if isinstance(sources, str | os.PathLike):
        sources = [sources]
    listed = list(sources) if isinstance(sources, Iterable) else [sources]
    if not all(isinstance(source, str | os.PathLike) for source in listed):
        raise TypeError(f"sources: {sources!r:.60}. Give a file, a folder or a list of them")
    files = [(path, _suffix(path)) for path in _expand(listed)]
    _check_use(options, [suffix for _, suffix in files])
    collector = Collector(progress)
    counter = TokenCounter(options)
    for path, suffix in files:
        collector.begin(str(path))
        try:
            _read(path, suffix, options, counter, collector)
        except OSError as error:
            reason = error.strerror or first_line(error)
            raise LengthsError(
                f"{error.filename or path}: cannot be read: {reason}. Check the path"
            ) from None
        collector.end()
    given = options.tokenizer
    if given is not None and not counter.required:
        shown = given if isinstance(given, Path) else f"{given:g}"
        raise LengthsError(
            f"--tokenizer {shown}: no text of the sources is read. Name its field with --field, "
            "or leave --tokenizer out"
        )
    return collector.lengths()


def _expand(sources: Sequence[str | os.PathLike[str]]) -> Iterator[Path]:
    if not sources:
        raise LengthsError("no source of lengths was given. Name at least one")
    for pattern in sources:
        source = os.fspath(pattern)
        # A name that exists is that file, whatever characters are in it.
        if os.path.lexists(source) or not glob.has_magic(source):
            paths = [Path(source)]
        else:
            paths = [Path(match) for match in sorted(glob.glob(source, recursive=True))]
        if not paths:
            raise LengthsError(f"{source}: matches no file. Change the pattern")
        for path in paths:
            if is_saved_dataset(path):
                yield from list_saved_files(path)
            else:
                yield path


def _suffix(path: Path) -> str:
    """Return the suffix that picks the reader, empty for a folder."""
    if path.is_dir():
        return ""
    if not path.exists():
        raise LengthsError(f"{path}: no such file or folder. Check the path")
    name = path.name.lower()
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.endswith(suffix):
            if not path.is_file() and suffix != ".txt":  # others are read more than once
                raise LengthsError(f"{path}: is no regular file. Copy it to one")
            if path.is_file() and path.stat().st_size == 0:
                raise LengthsError(f"{path}: is empty. Name a file with sequences")
            return suffix
    hint = "; give the .idx next to it" if path.suffix == ".bin" else ""
    raise LengthsError(
        f"{path}: {path.suffix or 'a name without suffix'} is not a source of lengths{hint} "
        f"(understood: {' '.join(SUFFIXES)}, a folder of text files or of a saved data set)"
        ". Name one of these"
    )


def _check_use(options: SourceOptions, suffixes: list[str]) -> None:
    """Reject an option that no source uses: it was meant for something else."""
    if options.field is not None and not set(suffixes) & set(_WITH_FIELDS):
        raise LengthsError(
            f"--field {options.field}: no source has fields. Name it for .jsonl, .csv or .parquet"
        )
    if isinstance(options.tokenizer, Path) and not options.tokenizer.exists():
        raise LengthsError(
            f"--tokenizer {options.tokenizer}: no such file or folder. Give a tokenizer.json, a "
            "tokenizer's folder, or bytes per token"
        )
    if options.glob is not None and "" not in suffixes:
        raise LengthsError(f"--glob {options.glob}: no source is a folder. Leave it out")


def _read(
    path: Path,
    suffix: str,
    options: SourceOptions,
    counter: TokenCounter,
    collector: Collector,
) -> None:
    # Each reader is imported when its kind of file is met: most need little, some a lot.
    match suffix:
        case "":
            from seqplan.costs.lengths.sources.folder import read_folder

            read_folder(path, options.glob, counter, collector)
        case ".npy":
            from seqplan.costs.lengths.sources.npy import read_npy

            read_npy(path, collector)
        case ".txt":
            from seqplan.costs.lengths.sources.txt import read_txt

            read_txt(path, collector)
        case ".idx":
            from seqplan.costs.lengths.sources.megatron import read_idx

            read_idx(path, collector)
        case ".parquet" | ".arrow":
            from seqplan.costs.lengths.sources.arrow import read_arrow

            read_arrow(path, options.field, counter, collector)
        case ".csv" | ".tsv":
            from seqplan.costs.lengths.sources.csv_records import read_csv_records
            from seqplan.costs.lengths.sources.jsonl import read_records

            read_records(
                path, read_csv_records(path, options.field), options.field, counter, collector
            )
        case _:
            from seqplan.costs.lengths.sources.batches import has_batches, read_batch_lengths
            from seqplan.costs.lengths.sources.jsonl import read_jsonl

            if options.field is None and has_batches(path):
                read_batch_lengths(path, collector)
            else:
                read_jsonl(path, options.field, counter, collector)
