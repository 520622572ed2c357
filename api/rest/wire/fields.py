"""Numbers as requests give them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

MOST = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly (RFC 7493, 2.2)."""


def _integral(value: Any) -> Any:
    """JSON has one kind of number: 3.0 is an integer. Booleans and text are none."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Natural = Annotated[int, Field(strict=True, ge=0, le=MOST), BeforeValidator(_integral)]
Positive = Annotated[int, Field(strict=True, ge=1, le=MOST), BeforeValidator(_integral)]
LookAhead = Annotated[int, Field(strict=True, ge=1, le=1024), BeforeValidator(_integral)]
Milliseconds = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Step = Annotated[int, Path(ge=0, le=MOST)]


def _exchange_times(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    try:
        found = check(value)
    except ValidationError:
        # Of a choice of three, pydantic names the first that it is not.
        wanted = 'wants times of 0 or more ms, as 900 or [900, 1400], or "published"'
        raise PydanticCustomError("exchange_times", wanted) from None
    return [found] if isinstance(found, float) else found


_Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ExchangeTimes = Annotated[
    Literal["published"] | _Time | Annotated[list[_Time], Field(min_length=1, max_length=2)],
    WrapValidator(_exchange_times),
]
"""``published``, or one time or two (ms) as a list."""
