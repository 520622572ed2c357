"""Files of checkpoints: a lock on their folder, their sizes, and failures as one line."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch.distributed as dist

from seqplan.runtime.communicators import raise_on_all_ranks
from seqplan.runtime.errors import CheckpointError, RankLost

_LOCK = "lock"

_LOCKS: dict[Path, BinaryIO] = {}
"""Open files of the folders that this process writes into: the lock ends with the process."""

Result = TypeVar("Result")

_OF_FILES = (
    *(OSError, EOFError, RuntimeError, ValueError, LookupError, AttributeError, ImportError),
    pickle.UnpicklingError,
)
"""Errors that reading or writing a file may raise, damaged pickles included."""


def lock_folder(folder: Path) -> None:
    """Lock a folder for this process until it ends. ``OSError`` if another process has it."""
    folder = folder.resolve()
    if folder in _LOCKS:
        return
    file = (folder / _LOCK).open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.read(200).decode(errors="replace").strip()
        file.close()
        raise BlockingIOError(
            errno.EWOULDBLOCK, f"another job writes into this folder ({owner}): use another folder"
        ) from None
    except OSError:  # a file system without locks
        file.close()
        return
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    file.flush()
    _LOCKS[folder] = file


def list_sizes(folder: Path) -> dict[str, int]:
    """Return the size of each file in bytes, by name."""
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


def check_sizes(folder: Path, sizes: Mapping[str, int]) -> None:
    """Compare files with the sizes that they were written with. ``OSError``."""
    for name, size in sizes.items():
        there = (folder / name).stat().st_size
        if there != size:
            raise OSError(errno.EIO, f"{name} has {there} bytes, {size} were written")


def attempt_together(
    function: Callable[[], Result], problem: str, group: dist.ProcessGroup, doing: str
) -> Result:
    """Call ``function`` on every rank; ``CheckpointError`` on all if it fails on any.

    Errors that are not about files are raised as they are, on their rank.
    """
    result: Any = None
    failure: str | None = None
    try:
        result = function()
    except RankLost:
        raise
    except BaseException as error:  # torch's CheckpointException is no Exception
        if not _is_of_files(error):
            raise
        failure = f"{problem}: {_cause(error)}"
    raise_on_all_ranks(failure, group, doing, CheckpointError)
    return result  # type: ignore[no-any-return]


def _is_of_files(error: BaseException) -> bool:
    name = type(error).__name__
    return name != "OutOfMemoryError" and (
        isinstance(error, _OF_FILES) or name == "CheckpointException"
    )


def _cause(error: BaseException) -> str:
    """Return the first cause in one line, with the rank that it happened on."""
    failures = getattr(error, "failures", None)
    if failures:
        rank, (first, _) = min(failures.items())
        return f"rank {rank}: {_cause(first)}"
    if isinstance(error, OSError) and error.strerror:
        where = f" ({Path(os.fsdecode(error.filename)).name})" if error.filename else ""
        return f"{error.strerror}{where}"
    text = ""
    with suppress(IndexError):
        text = str(error).strip().splitlines()[0][:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
