"""The bodies of requests about jobs."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from seqplan.api.rest.payloads.fields import LookAhead, Natural, Naturals, Positive, Positives, Text
from seqplan.api.store.names import JOB_ID


class Continued(BaseModel):
    """A job, and the step from which on its batches are planned by another proposal."""

    model_config = ConfigDict(extra="forbid", strict=True)
    job: Text
    step: Natural


class NewJob(BaseModel):
    """Either ``lengths`` and ``steps``, or neither: then the trainer pushes its batches.

    Or ``continues``: then lengths, tokens and seed are those of the job that is continued, and so
    are ``steps`` unless given.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    id: Annotated[str, Field(pattern=JOB_ID)] | None = None
    proposal: Text
    lengths: Text | None = None
    tokens: Positive | None = None
    seed: Natural = 0
    steps: Positive | None = None
    look_ahead: LookAhead = 8
    continues: Continued | None = None


class PushedBatch(BaseModel):
    """The sequences of one step."""

    model_config = ConfigDict(extra="forbid", strict=True)
    step: Natural
    ids: Naturals
    lengths: Positives
    loss_tokens: Natural | None = None


class PushedBatches(BaseModel):
    """Batches in ascending order of step; ``end``: there are no more."""

    model_config = ConfigDict(extra="forbid", strict=True)
    batches: list[PushedBatch] = []
    end: bool = False
