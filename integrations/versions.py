"""Versions of trainers: which is here, and the refusal of one without the place that plans need."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


class UnsupportedVersion(RuntimeError):
    """A host whose installed version lacks what plans enter by; the message says which have it."""


def find_installed_version(package: str) -> str:
    """Return the version of a package that is installed; ``unknown`` for a bare source tree."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
