"""Modules imported when a test needs them: every worker collects all files and runs a few."""

import importlib
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import pytest


class _LazyModule:
    """A module that is imported at the first use of an attribute."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # which pytest looks for in all that a file defines
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


def require(name: str, least: tuple[int, int] | None = None) -> Any:
    """Return a module that is imported at first use; skip the file without it.

    ``least``: the oldest release of its package that will do.
    """
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)
    if least is not None and tuple(map(int, version(name).split(".")[:2])) < least:
        pytest.skip(f"{name} is older than {least}", allow_module_level=True)
    return _LazyModule(name)
