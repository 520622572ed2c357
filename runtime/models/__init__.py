"""Models of the runtime: a small Llama that every plan can run.

``llama`` has all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.runtime.models.llama import Llama, ModelConfig

_HOMES = {
    "llama": ("Llama", "ModelConfig"),
}

__all__ = [
    "Llama",
    "ModelConfig",
]

if not TYPE_CHECKING:  # names that are not here are errors to type checkers
    __getattr__ = lazy_names(__name__, _HOMES)
