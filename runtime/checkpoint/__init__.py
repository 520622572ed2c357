"""Checkpoints: where a job is in its plans, and states that any number of ranks reads.

Read ``save_restore`` first, then ``stored_slices`` (contents of a checkpoint) and
``checkpoint_files`` (folders, locks, sizes); ``weights`` is for other tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.runtime.checkpoint.save_restore import Cursor as Cursor
    from seqplan.runtime.checkpoint.save_restore import restore as restore
    from seqplan.runtime.checkpoint.save_restore import save as save
    from seqplan.runtime.checkpoint.weights import load_weights as load_weights
    from seqplan.runtime.checkpoint.weights import save_weights as save_weights

if not TYPE_CHECKING:  # names that are not here are errors to type checkers
    __getattr__, __all__ = lazy_names(__name__, __file__)
