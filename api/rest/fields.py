"""Numbers as requests give them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import BeforeValidator, Field

MOST = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly (RFC 7493, 2.2)."""


def _integral(value: Any) -> Any:
    """JSON has one kind of number: 3.0 is an integer. Booleans and text are none."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Natural = Annotated[int, Field(strict=True, ge=0, le=MOST), BeforeValidator(_integral)]
Positive = Annotated[int, Field(strict=True, ge=1, le=MOST), BeforeValidator(_integral)]
LookAhead = Annotated[int, Field(strict=True, ge=1, le=1024), BeforeValidator(_integral)]
Milliseconds = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
Step = Annotated[int, Path(ge=0, le=MOST)]
