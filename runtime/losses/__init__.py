"""Losses as sums over tokens, and their divisor: one number for the global batch.

``token_losses`` has all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.runtime.losses.token_losses import compute_chunked_loss as compute_chunked_loss
    from seqplan.runtime.losses.token_losses import label_loss as label_loss
    from seqplan.runtime.losses.token_losses import log_probabilities as log_probabilities
    from seqplan.runtime.losses.token_losses import loss_divisor as loss_divisor
    from seqplan.runtime.losses.token_losses import token_loss as token_loss

if not TYPE_CHECKING:  # names that are not here are errors to type checkers
    __getattr__, __all__ = lazy_names(__name__, __file__)
