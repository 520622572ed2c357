"""Versions of trainers: the installed one, and the error if it cannot take plans."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


class UnsupportedVersion(RuntimeError):
    """The installed version of a trainer cannot take plans; the message lists those that can."""


def find_installed_version(package: str) -> str:
    """Return the version of a package that is installed; ``unknown`` for a bare source tree."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
