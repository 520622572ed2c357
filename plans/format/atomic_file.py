"""Writing a file so that a reader sees the old content or the new one, never a part of it."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, TextIO, overload

# Errors of a full or failing device on a write. Python raises these without the file's name.
_DEVICE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


@overload
def atomic_write(
    path: str | os.PathLike[str], mode: Literal["w"] = "w"
) -> AbstractContextManager[TextIO]: ...
@overload
def atomic_write(
    path: str | os.PathLike[str], mode: Literal["wb"]
) -> AbstractContextManager[BinaryIO]: ...
def atomic_write(
    path: str | os.PathLike[str], mode: Literal["w", "wb"] = "w"
) -> AbstractContextManager[IO[Any]]:
    """Open a file that becomes ``path`` when the block ends without an exception.

    The content goes to a temporary file in the same folder and is flushed to the device before
    it replaces ``path``; on an exception the temporary file is removed and ``path`` is as it was.
    Text is UTF-8 with ``\\n`` line ends. A new file gets the mode bits that the umask leaves, a
    replaced one keeps its mode. A symbolic link is followed; anything but a regular file (a pipe,
    ``/dev/stdout``) is written to directly, as replacing it would be wrong. ``OSError`` names
    ``path``, for a full disk too.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"atomic_write: mode must be 'w' or 'wb', not {mode!r}")
    return _atomic_write(Path(path), mode)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file as ``atomic_write`` does."""
    with atomic_write(path, "w") as file:
        file.write(text)


@contextmanager
def _atomic_write(path: Path, mode: Literal["w", "wb"]) -> Iterator[IO[Any]]:
    target = Path(os.path.realpath(path))
    try:
        kept_mode = _regular_mode(target)
    except _NotRegularError:
        with _name_error(path), _open(target, mode) as file:
            yield file
        return
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:  # from before there is a file: a signal's exception may come with the call that makes it
        with _name_error(path), _open(_new_file(temporary, path), mode) as file:
            if kept_mode is not None:
                os.chmod(temporary, kept_mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    flush_folder(target.parent)


def _new_file(temporary: Path, path: Path) -> int:
    """Open a file that nobody has; an ``OSError`` names ``path``, for whose sake it is made."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        return os.open(temporary, flags, 0o666)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextmanager
def _name_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _DEVICE_ERRORS and not error.filename:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


class _NotRegularError(Exception):
    """The path is a pipe, a socket or a device."""


def _regular_mode(path: Path) -> int | None:
    """Return the permission bits of a regular file, None when there is none."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise _NotRegularError
    return stat.S_IMODE(mode)


def _open(file: int | Path, mode: Literal["w", "wb"]) -> IO[Any]:
    if mode == "wb":
        return open(file, "wb")
    return open(file, "w", encoding="utf-8", newline="\n")


def flush_folder(folder: Path) -> None:
    """Make new names in a folder survive a crash, if the platform can open it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
