"""What a planned trainer tries before the first step: short samples, and losses of token counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LABELS = ("labels", "shift_labels")


def measure_losses(model: Any, packed: Mapping[str, Any], function: Any) -> list[float]:
    """Return the losses of one sample in steps of 8 and of 16 tokens.

    The second is half of the first if the loss is a sum that is divided by the step's tokens.

    ``function``: of the loss in place of the model's, or None.
    """
    labels, count = packed["input_ids"].clone(), packed["input_ids"].new_tensor
    if function is None:
        inputs = {**packed, "labels": labels}
        return [float(model(**inputs, num_items_in_batch=count(n)).loss) for n in (8, 16)]
    outputs = model(**{key: value for key, value in packed.items() if key not in LABELS})
    return [float(function(outputs, labels, num_items_in_batch=count(n))) for n in (8, 16)]


def _has_tokens(value: Any, length: int) -> bool:
    """Whether a field has an entry for each token; a tensor may be a number."""
    if isinstance(value, str) or not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0:
        return False
    return len(value) == length


def cut_sample(sample: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """Cut every field that has an entry for each token to its first tokens."""
    length = len(sample["input_ids"])
    cut = {
        key: value[:tokens] if _has_tokens(value, length) else value
        for key, value in sample.items()
    }
    return {**cut, "length": min(tokens, length)} if "length" in sample else cut
