"""Models of the runtime: a small Llama that every plan can run.

``llama`` has all of it. ``run_layer`` and ``run_part`` run layers of other models, and their parts,
under recomputation modes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.runtime.models.llama import Llama as Llama
    from seqplan.runtime.models.llama import ModelConfig as ModelConfig
    from seqplan.runtime.recomputation import run_layer as run_layer
    from seqplan.runtime.recomputation import run_part as run_part

if not TYPE_CHECKING:  # names that are not here are errors to type checkers
    __getattr__, __all__ = lazy_names(__name__, __file__)
