"""The bodies of requests, by which a client makes them, too."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from seqplan.api.rest.payloads import fields
from seqplan.api.store.names import JOB_ID
from seqplan.planner.execution import ExecutionKind
from seqplan.planner.workload import MOST_GPUS

_DIGEST = f"sha256:{64 * '0'}"


def _with_example(example: dict[str, Any]) -> ConfigDict:
    """Return the rules of a body, with an example for the OpenAPI document."""
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"example": example})


class NewProposal(BaseModel):
    """Options of ``seqplan propose``, by name, with its defaults.

    ``profile``: id or name; ``lengths``: id; ``sync``: one time (ms), [equal replicas, different
    layouts], ``derived`` for each layout, or ``none``; ``execution``: uniform, static, regroup or
    lockstep, by default what the profile and the trainer run; ``schemes``: filters, of measured,
    flagged and a layout such as tp4.pp2; ``trainer``: only what it runs.
    """

    model_config = _with_example(
        {"profile": "llama-7b-a800-80gb", "lengths": "LENGTHS", "gpus": 16, "max_len": 32768}
    )
    profile: fields.Text
    lengths: fields.Text
    gpus: Annotated[fields.Positive, Field(le=MOST_GPUS)]
    max_len: fields.Positive
    tokens: fields.Positive | None = None
    method: Literal["search", "eq4"] = "search"
    seed: fields.Natural = 0
    optimizer_shards: fields.Positive | None = None
    sync: fields.SyncField = "derived"
    overlap: fields.Share = 0.0
    execution: ExecutionKind | None = None
    micro_step_multiple: fields.Positive = 1
    schemes: list[fields.Text] = []
    trainer: fields.Text | None = None


class Continued(BaseModel):
    """A job, and the step from which on its batches are planned by another proposal."""

    model_config = ConfigDict(extra="forbid", strict=True)
    job: fields.Text
    step: fields.Natural


class NewJob(BaseModel):
    """Either ``lengths`` and ``steps``, or neither: then the trainer pushes its batches.

    Or ``continues``: then lengths, tokens and seed are those of the job that is continued, and so
    are ``steps`` unless given. ``refit``: later steps are planned by costs that the measured times
    of earlier ones have corrected. ``slowdown``: how many times as long each rank takes as the
    profile has it. ``robust``: share by which a, b or c of the costs may be off.
    """

    model_config = _with_example(
        {"id": "run1", "proposal": "PROPOSAL", "lengths": "LENGTHS", "steps": 1000}
    )
    id: Annotated[str, Field(pattern=JOB_ID)] | None = None
    proposal: fields.Text
    lengths: fields.Text | None = None
    tokens: fields.Positive | None = None
    seed: fields.Natural = 0
    steps: fields.Positive | None = None
    look_ahead: fields.LookAhead = 8
    continues: Continued | None = None
    refit: bool = False
    slowdown: fields.SlowdownField | None = None
    robust: fields.Share = 0.0


class JobProposal(BaseModel):
    """The proposal that plans a job's steps from now on."""

    model_config = _with_example({"proposal": "PROPOSAL"})
    proposal: fields.Text


class PushedLoad(BaseModel):
    """Work of a step's sequences in one phase before the language model."""

    model_config = _with_example(
        {"name": "vision", "tokens": [0, 900], "work_ms": [0.0, 80.5], "overhead_ms": 1.0}
    )
    name: fields.Text
    tokens: fields.Naturals
    work_ms: list[fields.Duration]
    overhead_ms: fields.Duration = 0.0
    capacity: fields.Positive | None = None


class PushedBatch(BaseModel):
    """The sequences of one step."""

    model_config = _with_example({"step": 0, "ids": [5, 9, 0], "lengths": [812, 96, 2048]})
    step: fields.Natural
    ids: fields.Naturals
    lengths: fields.Positives
    loss_tokens: fields.Natural | None = None
    loads: list[PushedLoad] = []


class PushedBatches(BaseModel):
    """Batches in ascending order of step; ``end``: there are no more."""

    model_config = _with_example(
        {"batches": [{"step": 0, "ids": [5, 9], "lengths": [812, 96]}], "end": False}
    )
    batches: list[PushedBatch] = []
    end: bool = False


def _each_once(ranks: list[int]) -> list[int]:
    if len(set(ranks)) != len(ranks):
        again = next(rank for rank, count in Counter(ranks).items() if count > 1)
        raise PydanticCustomError("rank_twice", "names rank {rank} twice", {"rank": again})
    return ranks


class Ack(BaseModel):
    """A rank has done a step by the plan with this digest, and its time."""

    model_config = _with_example({"step": 17, "rank": 3, "digest": _DIGEST, "measured_ms": 812.5})
    step: fields.Natural
    rank: fields.Natural
    digest: fields.Text | None
    measured_ms: fields.Milliseconds | None = None


class Acks(BaseModel):
    """Several ranks have done a step; ``measured_ms``: one figure, or null, for each of them."""

    model_config = _with_example(
        {"step": 17, "ranks": [0, 1], "digest": _DIGEST, "measured_ms": [812.5, 799.1]}
    )
    step: fields.Natural
    ranks: Annotated[
        fields.Naturals, Field(min_length=1, max_length=MOST_GPUS), AfterValidator(_each_once)
    ]
    digest: fields.Text | None
    measured_ms: list[fields.Milliseconds | None] | None = Field(default=None, max_length=MOST_GPUS)


class MeasurementRequest(BaseModel):
    """What a step took on a rank."""

    model_config = _with_example({"step": 17, "rank": 3, "measured_ms": 812.5})
    step: fields.Natural
    rank: fields.Natural
    measured_ms: fields.Milliseconds
