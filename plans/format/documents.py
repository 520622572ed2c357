"""Which of the project's documents some JSON is, for errors that name it."""

from __future__ import annotations

from typing import Any

_MARKS = {
    "a plan": {"pipelines", "sequences", "predicted_ms"},
    "a proposal": {"candidates", "judged_batches"},
    "a profile": {"schemes", "hardware", "model"},
}
BATCH_FIELDS = frozenset({"step", "ids", "lengths", "loss_tokens", "loads"})
"""Fields of a line in a file of batches."""


def name_document(raw: Any) -> str | None:
    """Name the document that parsed JSON is by its fields; None for others."""
    if type(raw) is not dict:
        return None
    if isinstance(raw.get("lengths"), list) and ("step" in raw or raw.keys() <= BATCH_FIELDS):
        return "a batch"
    return next((name for name, fields in _MARKS.items() if fields <= raw.keys()), None)
