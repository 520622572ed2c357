"""Numbers and names in the bodies of requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    FailFast,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from seqplan.planner.workload import MOST_GPUS, MOST_LOOK_AHEAD

MOST = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly (RFC 7493, 2.2)."""


def _integral(value: Any) -> Any:
    """Take 3.0 for an integer, as JSON has one kind of number. Booleans and text are none."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _integral_list(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Validate each with ``_integral``, unless the list is valid as it is."""
    try:
        return check(value)
    except ValidationError:
        if type(value) is not list or float not in set(map(type, value)):
            raise
        return check([_integral(number) for number in value])


def _check_text(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError("nul", "has a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError(
            "surrogate", "must be text without half of a surrogate pair"
        ) from None
    return text


Text = Annotated[
    str,
    AfterValidator(_check_text),
    WithJsonSchema({"type": "string", "pattern": "^[^\\u0000]*$"}),
]
"""A name or digest; PostgreSQL has no text with a NUL."""

Naturals = Annotated[
    list[Annotated[int, Field(strict=True, ge=0, le=MOST)]],
    FailFast(),
    WrapValidator(_integral_list),
]
Positives = Annotated[
    list[Annotated[int, Field(strict=True, ge=1, le=MOST)]],
    FailFast(),
    WrapValidator(_integral_list),
]
"""Lists that may hold millions: no function of Python is called for each number."""

Natural = Annotated[int, Field(strict=True, ge=0, le=MOST), BeforeValidator(_integral)]
Positive = Annotated[int, Field(strict=True, ge=1, le=MOST), BeforeValidator(_integral)]
LookAhead = Annotated[int, Field(strict=True, ge=1, le=MOST_LOOK_AHEAD), BeforeValidator(_integral)]
Milliseconds = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
Duration = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


def _reword(kind: str, wanted: str) -> WrapValidator:
    """Make the one message of a field: of a choice, pydantic names the first that it is not."""

    def check_value(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        try:
            return check(value)
        except ValidationError:
            raise PydanticCustomError(kind, wanted) from None

    return WrapValidator(check_value)


_Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]
SyncField = Annotated[
    Literal["derived", "none"] | _Time | Annotated[list[_Time], Field(min_length=1, max_length=2)],
    AfterValidator(lambda times: [times] if isinstance(times, float) else times),
    _reword("sync_times", "must be derived, none, or times of 0 or more ms, as 900 or [900, 1400]"),
]
"""``derived``, ``none``, or one time or two (ms) as a list."""

_Factor = Annotated[float, Field(ge=1, allow_inf_nan=False)]
SlowdownField = Annotated[
    Annotated[list[_Factor | None], Field(max_length=MOST_GPUS)],
    _reword("factors", "must be a factor of 1 or more for each rank, as [1, 1.3]"),
]
"""How many times as long each rank takes, null for a lost one."""
