"""Numbers in the paths and queries of requests."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import Path, Query, Request
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from seqplan.api.rest.payloads.fields import MOST
from seqplan.api.rest.payloads.problems import Problem
from seqplan.plans.format.fields import MAX_INTEGER


def _check_digits(value: Any) -> Any:
    """Reject what Python reads as an integer, too: ``1_0``, ``+1``, ``1.0``, `` 1``."""
    if isinstance(value, str) and not re.fullmatch("-?(0|[1-9][0-9]*)", value):
        raise PydanticCustomError("whole_number", "must be a whole number, in digits")
    return value


Digits = Annotated[int, BeforeValidator(_check_digits)]
Step = Annotated[Digits, Path(ge=0, le=MOST)]
StepOfPlan = Annotated[Digits, Path(ge=0, le=MAX_INTEGER)]
"""A step within the plan format's range, for look-ups."""
AfterStep = Annotated[Digits, Query(ge=-1, le=MAX_INTEGER)]
AtStep = Annotated[Digits, Query(ge=0, le=MOST)]
Limit = Annotated[Digits, Query(ge=1, le=1000)]

LONGEST_WAIT_S = 3600
"""Limit of a request's field; the service waits at most as long as its limit."""
Wait = Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, description="seconds to wait for the plan")]


async def check_query(request: Request) -> None:
    """Reject query parameters that the route does not have, or given twice; ``Problem``."""
    if not request.url.query:
        return
    known = [field.alias for field in request.scope["route"].dependant.query_params]
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name not in known:
            having = f"The route has {', '.join(known)}" if known else "The route has none"
            raise Problem(422, "invalid-request", f"query.{name}: unknown parameter. {having}")
        if names.count(name) > 1:
            raise Problem(422, "invalid-request", f"query.{name}: given twice. Give it once")
