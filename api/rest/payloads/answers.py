"""What successful answers look like, for the OpenAPI document; handlers write them themselves."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel

UPLOADED = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
DOCUMENT = {"application/json": {"schema": {"type": "object"}}}


def describe(
    kind: Any, status: int = 200, *, body: type[BaseModel] | dict[str, Any] | None = None
) -> dict[str, Any]:
    """Describe the answer of a route, as further arguments of its decorator.

    ``body``: that of the request if the handler reads it itself, by model or content.
    """
    about: dict[str, Any] = {
        "status_code": status,
        "response_model": None,
        "responses": {status: {"model": kind}},
    }
    if body is not None:
        content = body
        if not isinstance(body, dict):  # the document has it among its schemas
            schema = {"$ref": f"#/components/schemas/{body.__name__}"}
            content = {"application/json": {"schema": schema}}
        about["openapi_extra"] = {"requestBody": {"required": True, "content": content}}
    return about


class JobState(BaseModel):
    """State of a job."""

    id: str
    state: Literal["planning", "planned", "failed", "abandoned", "stopped"]
    world_size: int
    look_ahead: int
    last_step: int | None
    failed_step: int | None
    error: str | None


class JobOfList(JobState):
    """A job as it is listed."""

    proposal: str
    lengths: str | None
    tokens: int | None
    seed: int
    steps: int | None
    continues: str | None
    first_step: int


class JobResponse(JobOfList):
    """A job with how far its planning and its ranks are."""

    max_len: int | None
    first_epoch: int
    first_cursor: int
    kept_from: int
    expired_steps: int
    asked_at: int
    refit: bool
    robust: float
    planned_steps: int
    last_planned_step: int | None
    acknowledged: list[int]


class JobBegun(BaseModel):
    """A new job; its drawn fields depend on the request."""

    id: str
    proposal: str
    look_ahead: int
    world_size: int
    state: Literal["planning"]
    lengths: str | None
    tokens: int | None
    seed: int
    steps: int | None
    last_step: int | None
    continues: str | None
    first_step: int


class SlowRank(BaseModel):
    """A rank that takes ``factor`` times as long as the profile has it; null: it is lost."""

    rank: int
    factor: float | None


class RevisionResponse(BaseModel):
    """Proposal and slow ranks of a job's steps from ``step`` on.

    ``kind``: begin, request, refit or rollback; ``at``: Unix time, 0 for the begin.
    """

    step: int
    proposal: str
    slowdown: list[SlowRank]
    kind: Literal["begin", "request", "refit", "rollback"]
    reason: str
    at: int


class RevisionsResponse(BaseModel):
    """All revisions of a job, oldest first."""

    items: list[RevisionResponse]


class StoppedResponse(BaseModel):
    """A job that is planned no further."""

    id: str
    state: Literal["stopped"]


class Restarted(BaseModel):
    """A job that is planned again from ``step``."""

    id: str
    state: Literal["planning"]
    step: int


class Progress(JobState):
    """How far a job is."""

    first_step: int
    lost_ranks: list[int]
    slowest: int
    fastest: int
    slowest_ranks: list[int]
    count_slowest: int
    since_acknowledged_s: float | None
    predicted_ms: float | None
    stuck: bool
    miscalibrated: bool
    last_planned_step: int | None
    ahead: int


class PlannedStepResponse(BaseModel):
    """A planned step; times in ms."""

    step: int
    predicted_ms: float
    lower_bound_ms: float
    gap: float
    planning_ms: float
    tokens: int
    sequences: int
    strategy: Any
    measured_ms: float | None
    ranks_measured: int
    error: float | None
    ranks_acknowledged: int


class MeasuredRank(BaseModel):
    """What a step took on a rank."""

    step: int
    rank: int
    measured_ms: float


class SamplerStateResponse(BaseModel):
    """Where a job's sampler is before a step."""

    job: str
    step: int
    epoch: int
    cursor: int
    carry_over: list[int]
    seed: int
    tokens: int
    max_len: int
    proposal: str
    profile: str
    lengths: str


class NewLengths(BaseModel):
    """A data set that was uploaded."""

    id: str
    sequences: int
    tokens: int
    longest: int


class LengthsOfList(NewLengths):
    """A data set as it is listed."""

    kind: Literal["sequences", "histogram"]


class LengthsResponse(LengthsOfList):
    """A data set with its histogram: [over, up to, sequences, tokens] a bucket."""

    histogram: list[list[int]]


class NewProfile(BaseModel):
    """A profile that was uploaded, or as it is listed."""

    id: str
    name: str


class NewProposalId(BaseModel):
    """A proposal that is being made, or was uploaded."""

    id: str
    state: Literal["running", "ready", "failed"]


class ProposalOfList(NewProposalId):
    """A proposal as it is listed."""

    error: str | None


class Making(BaseModel):
    """How far the making of a proposal is."""

    stage: str
    done: int
    total: int


class ProposalResponse(ProposalOfList):
    """A proposal; ``document``: what ``seqplan propose`` writes, once it is ready."""

    progress: Making | None
    document: dict[str, Any] | None


class Pushed(BaseModel):
    """Batches that were taken."""

    job: str
    accepted: int
    last_step: int


class AcknowledgedResponse(BaseModel):
    """An acknowledgement."""

    step: int
    rank: int


class AcknowledgedAll(BaseModel):
    """Acknowledgements of several ranks."""

    step: int
    ranks: list[int]


class Simulated(BaseModel):
    """The simulation of a step; times in ms."""

    step: int
    simulated_ms: float
    predicted_ms: float
    lower_bound_ms: float
    gap: float


Item = TypeVar("Item")
Cursor = TypeVar("Cursor", str, int)


class Page(BaseModel, Generic[Item, Cursor]):
    """Part of a list, and the cursor of the next one."""

    items: list[Item]
    next: Cursor | None


class JobsPage(Page[JobOfList, str]):
    """Jobs, and the cursor of the next page; null on the last."""


class ProgressPage(Page[Progress, str]):
    """Jobs with how far they are."""


class LengthsPage(Page[LengthsOfList, str]):
    """Data sets."""


class ProposalsPage(Page[ProposalOfList, str]):
    """Proposals."""


class ProfilesPage(Page[NewProfile, str]):
    """Uploaded profiles, and the names of those that ship."""

    shipped: list[str]


class StepsPage(Page[PlannedStepResponse, int]):
    """Planned steps; ``next``: the step to go on after."""


class MeasurementsPage(Page[MeasuredRank, str]):
    """What ranks measured; ``next``: STEP.RANK to go on after."""


class CalibrationResponse(BaseModel):
    """Whether the profile of a job still holds, by scheme."""

    job: str
    profile: str
    steps: dict[str, int | None]
    pipelines: dict[str, int]
    schemes: list[dict[str, Any]]
    warning: bool


class Timeline(BaseModel):
    """One planned step in time; ms."""

    step: int
    world_size: int
    idle_ranks: list[int]
    predicted_ms: float
    lower_bound_ms: float
    simulated_ms: float
    forward_fraction: float
    pipelines: list[dict[str, Any]]
