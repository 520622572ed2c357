"""Versions of trainers: the installed one, and the error if it cannot take plans."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any


class UnsupportedVersion(RuntimeError):
    """The installed version of a trainer cannot take plans; the message lists those that can."""


def find_installed_version(package: str) -> str:
    """Return the version of a package that is installed; ``unknown`` for a bare source tree."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def find_class(path: str, name: str) -> Any:
    """Return a class of a trainer's module; None if the trainer has none or is not installed."""
    try:
        return getattr(import_module(path), name, None)
    except ImportError:
        return None


def import_with(package: str, path: str, *names: str, known: str) -> Any:
    """Import a trainer's module, which must have ``names``.

    ``known``: the versions that have them, for the message of ``UnsupportedVersion``. An
    ``ImportError`` of another package than the trainer's is raised as it is.
    """
    module = None
    try:
        module = import_module(path)
        lacking = [name for name in names if not hasattr(module, name)]
    except ImportError as error:
        if not str(error.name).startswith(path.partition(".")[0]):
            raise
        lacking = [*names]
    if lacking:
        raise UnsupportedVersion(
            f"{package} {find_installed_version(package)} has no {', '.join(lacking)} in {path}; "
            f"{known}"
        )
    return module
