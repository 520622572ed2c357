"""Numbers in the paths and queries of requests."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

from seqplan.api.rest.payloads.fields import MOST
from seqplan.plans.format.fields import MAX_INTEGER

Step = Annotated[int, Path(ge=0, le=MOST)]
StepOfPlan = Annotated[int, Path(ge=0, le=MAX_INTEGER)]
"""A step within the plan format's range, for look-ups."""
AfterStep = Annotated[int, Query(ge=-1, le=MAX_INTEGER)]
AtStep = Annotated[int, Query(ge=0, le=MOST)]
Limit = Annotated[int, Query(ge=1, le=1000)]

LONGEST_WAIT_S = 3600
"""Limit of a request's field; the service waits at most as long as its limit."""
Wait = Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, description="seconds to wait for the plan")]
