"""Folders that ``datasets.save_to_disk`` wrote: which arrow files hold the rows, in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seqplan.costs.lengths.sources.error import LengthsError
from seqplan.costs.model_files.description_file import read_fields

_STATE = "state.json"
_SPLITS = "dataset_dict.json"


def is_saved_dataset(folder: Path) -> bool:
    """Whether the folder is a saved data set, or several of them as splits."""
    return (folder / _SPLITS).is_file() or (
        (folder / _STATE).is_file() and (folder / "dataset_info.json").is_file()
    )


def list_saved_files(folder: Path) -> list[Path]:
    """List a saved data set's arrow files in the order of its rows.

    ``LengthsError`` for several splits, of which one must be named, for rows chosen by an index
    file, and for files that are not there.
    """
    if (folder / _SPLITS).is_file():
        splits = read_fields(folder / _SPLITS, LengthsError).get("splits")
        names = [str(split) for split in splits] if isinstance(splits, list) else []
        advice = f"; give one, as {folder / names[0]}" if names else ""
        raise LengthsError(
            f"{folder}: has the splits {', '.join(names) or 'of no name'}{advice}"
            ". Name the folder of one split"
        )
    state = read_fields(folder / _STATE, LengthsError)
    if state.get("_indices_data_files"):
        raise LengthsError(
            f"{folder}: its rows are chosen by an index file; save it again after flatten_indices()"
        )
    files = state.get("_data_files")
    entries = files if isinstance(files, list) else []
    names = [entry["filename"] for entry in entries if _names_a_file(entry)]
    if not names or len(names) < len(entries):
        raise LengthsError(f"{folder / _STATE}: names no data files. Save the data set again")
    for name in names:
        if not (folder / name).is_file():
            raise LengthsError(
                f"{folder / name}: no such file, though {_STATE} names it. Save the data set again"
            )
    return [folder / name for name in names]


def _names_a_file(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("filename"), str)
