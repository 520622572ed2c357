"""Packages that only some commands need, as extras of the installation."""

from __future__ import annotations

import importlib.util

RUNTIME = "the torch package: pip install 'seqplan[runtime]'"


def lacks_torch() -> bool:
    """Whether torch, which the extra ``runtime`` brings, is not installed."""
    return importlib.util.find_spec("torch") is None


def require_torch(purpose: str) -> None:
    """Raise ``ValueError`` with the fix if torch is not installed."""
    if lacks_torch():
        raise ValueError(f"{purpose} needs {RUNTIME}")
