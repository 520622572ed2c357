"""Losses as sums over tokens, and their divisor: one number for the global batch.

``token_losses`` has all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.runtime.losses.token_losses import (
        compute_chunked_loss,
        label_loss,
        log_probabilities,
        loss_divisor,
        token_loss,
    )

_HOMES = {
    "token_losses": (
        "compute_chunked_loss",
        "label_loss",
        "log_probabilities",
        "loss_divisor",
        "token_loss",
    ),
}

__all__ = [
    "compute_chunked_loss",
    "label_loss",
    "log_probabilities",
    "loss_divisor",
    "token_loss",
]

if not TYPE_CHECKING:  # names that are not here are errors to type checkers
    __getattr__ = lazy_names(__name__, _HOMES)
