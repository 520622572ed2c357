"""Trainers, compared systems, cost terms and kernels of installed packages, by entry points."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Literal

Group = Literal["seqplan.trainers", "seqplan.systems", "seqplan.cost_terms", "seqplan.kernels"]
"""``seqplan.trainers``: a ``TrainingBackend``. ``seqplan.systems``: a function from ``Setting`` to
a list of ``ComparedSystem`` and ``Skipped``. ``seqplan.cost_terms``: a ``CostTerm``.
``seqplan.kernels``: a ``Kernel``."""


def list_extensions(group: Group) -> list[str]:
    """List the names that installed packages add to a group, sorted."""
    return sorted({entry.name for entry in entry_points(group=group)})


def load_extension(group: Group, name: str) -> Any | None:
    """Load what a package adds under this name; None if no package does.

    ``ValueError`` if two packages do, or if loading fails.
    """
    entries = list(entry_points(group=group, name=name))
    if not entries:
        return None
    if len(entries) > 1:
        packages = " and ".join(sorted(entry.dist.name for entry in entries if entry.dist))
        raise ValueError(f"{group} {name!r}: of {packages}. Uninstall one of them")
    try:
        return entries[0].load()
    except Exception as error:  # whatever the package's modules raise
        raise ValueError(
            f"{group} {name!r}: {entries[0].value} cannot be loaded: {error}. Repair the package"
        ) from None
