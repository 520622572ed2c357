"""Checkpoints: where a job is in its plans, and states that any number of ranks reads.

Read ``save_restore`` first, then ``stored_slices`` (contents of a checkpoint) and
``checkpoint_files`` (folders, locks, sizes); ``weights`` is for other tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.runtime.checkpoint.save_restore import Cursor, restore, save
    from seqplan.runtime.checkpoint.weights import load_weights, save_weights

_HOMES = {
    "save_restore": ("Cursor", "restore", "save"),
    "weights": ("load_weights", "save_weights"),
}

__all__ = [
    "Cursor",
    "load_weights",
    "restore",
    "save",
    "save_weights",
]

if not TYPE_CHECKING:  # names that are not here are errors to type checkers
    __getattr__ = lazy_names(__name__, _HOMES)
