"""The methods of both clients, one a route, by the operation ids of the OpenAPI document."""

# mypy: disable-error-code="empty-body"
# Declared methods have none: the route and the signature state all of the call.

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from seqplan.api.client.call import (
    Operation,
    Query,
    ServiceCall,
    declare,
    make_body,
    read_model,
    send_model,
    to_json_value,
)
from seqplan.api.rest.payloads import answers, bodies
from seqplan.planner.batches.batch import whole_lengths
from seqplan.plans import service_routes as routes
from seqplan.plans.format.codec import from_json
from seqplan.plans.plan import Plan
from seqplan.plans.service_routes import fill_route
from seqplan.plans.views.rank_view import RankView

P = ParamSpec("P")
T = TypeVar("T")

_PAGE = 200


def _create(route: str, kind: type[T], body: Callable[P, BaseModel], about: str) -> Operation[P, T]:
    """Make a POST whose arguments are the fields of ``body``."""

    def make(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> ServiceCall[T]:
        return send_model("POST", kind, route, make_body(body, *args, **kwargs))

    return Operation(make, body, about)


def _of_job(
    route: str, kind: type[T], body: Callable[P, BaseModel], about: str
) -> Operation[Concatenate[str, P], T]:
    """Make a POST below a job, whose further arguments are the fields of ``body``."""

    def make(self: Any, job: str, /, *args: P.args, **kwargs: P.kwargs) -> ServiceCall[T]:
        return send_model("POST", kind, route, make_body(body, *args, **kwargs), job=job)

    return Operation(make, body, about)


class Operations:
    """The routes as methods; ``get_metrics`` and ``explain_step`` return text."""

    @declare("GET", routes.HEALTH)
    def get_health(self) -> str:
        """The process responds."""

    @declare("GET", routes.READINESS)
    def get_readiness(self) -> str:
        """The store can be written to and all planning goes on."""

    @declare("GET", routes.METRICS)
    def get_metrics(self) -> str:
        """Metrics in the Prometheus text format."""

    @declare("GET", routes.PROFILES)
    def list_profiles(self, *, cursor: str = "", limit: int = _PAGE) -> answers.ProfilesPage:
        """One page of the uploaded profiles, and the names of shipped ones."""

    @declare("GET", routes.PROFILE)
    def get_profile(self, profile: str) -> dict[str, Any]:
        """A profile's document, by id or shipped name."""

    @Operation
    def upload_profile(self, document: Mapping[str, Any] | str) -> ServiceCall[answers.NewProfile]:
        """Upload a profile document."""
        return _upload(answers.NewProfile, routes.PROFILES, document)

    @declare("GET", routes.LENGTHS)
    def list_lengths(self, *, cursor: str = "", limit: int = _PAGE) -> answers.LengthsPage:
        """One page of the length data sets."""

    @declare("GET", routes.LENGTHS_SET)
    def get_lengths(self, lengths: str) -> answers.LengthsResponse:
        """A data set's counts and histogram."""

    @Operation
    def upload_lengths(
        self,
        lengths: NDArray[np.integer[Any]] | bytes,
        *,
        format: str = "npy",
        field: str | None = None,
        bytes_per_token: float | None = None,
    ) -> ServiceCall[answers.NewLengths]:
        """Upload lengths [sequences].

        Or the bytes of a file in ``format``: npy, jsonl, txt or histogram. ``field`` of jsonl;
        ``bytes_per_token`` estimates the tokens of its text and conversations.
        ``seqplan.read_lengths`` reads all other sources. The same data has the same id.
        """
        if not isinstance(lengths, bytes):
            file = io.BytesIO()
            np.save(file, whole_lengths(lengths))
            lengths = file.getvalue()
        kind = answers.NewLengths
        media = "application/octet-stream"
        given = {"format": format, "field": field, "bytes_per_token": bytes_per_token}
        query: Query = {name: value for name, value in given.items() if value is not None}
        return ServiceCall("POST", routes.LENGTHS, read_model(kind), query, lengths, media)

    @declare("DELETE", routes.LENGTHS_SET)
    def delete_lengths(self, lengths: str) -> None:
        """Delete a data set that no job and no proposal uses."""

    create_proposal = _create(
        routes.PROPOSALS,
        answers.NewProposalId,
        bodies.NewProposal,
        "Begin to make a proposal; ``watch(client.get_proposal, id)`` ends when it is ready.",
    )

    @Operation
    def upload_proposal(
        self, document: Mapping[str, Any] | str
    ) -> ServiceCall[answers.NewProposalId]:
        """Upload a proposal of ``seqplan propose``."""
        return _upload(answers.NewProposalId, routes.PROPOSAL_DOCUMENTS, document)

    @declare("GET", routes.PROPOSALS)
    def list_proposals(self, *, cursor: str = "", limit: int = _PAGE) -> answers.ProposalsPage:
        """One page of the proposals."""

    @declare("GET", routes.PROPOSAL)
    def get_proposal(self, proposal: str) -> answers.ProposalResponse:
        """A proposal: its state, progress and, once it is ready, its document."""

    @declare("GET", routes.PROPOSAL_DOCUMENT)
    def get_proposal_document(self, proposal: str) -> str:
        """The file that ``seqplan propose -o`` writes, as text."""

    @declare("DELETE", routes.PROPOSAL)
    def delete_proposal(self, proposal: str) -> None:
        """Delete a proposal that no job uses."""

    @Operation
    def plan_batch(
        self,
        proposal: str,
        lengths: Sequence[int],
        *,
        ids: Sequence[int] | None = None,
        step: int = 0,
        loss_tokens: int | None = None,
    ) -> ServiceCall[Plan]:
        """Plan one batch of ``lengths`` (tokens) without a job.

        ``ids``: by default positions.
        """
        names = list(range(len(lengths))) if ids is None else ids
        fields = {"step": step, "ids": names, "lengths": lengths, "loss_tokens": loss_tokens}
        body = json.dumps(to_json_value(fields)).encode()
        path = fill_route(routes.PLAN_BATCH, proposal=proposal)

        def decode(text: bytes) -> Plan:
            return from_json(text.decode(), strict=False, origin=f"step {step}")

        return ServiceCall("POST", path, decode, body=body)

    create_job = _create(
        routes.JOBS, answers.JobBegun, bodies.NewJob, "Begin a job from a proposal."
    )

    @declare("GET", routes.JOBS)
    def list_jobs(self, *, cursor: str = "", limit: int = _PAGE) -> answers.JobsPage:
        """One page of the jobs."""

    @declare("GET", routes.JOB)
    def get_job(self, job: str) -> answers.JobResponse:
        """A job, its last planned step and each rank's last acknowledgement."""

    @declare("POST", routes.STOP)
    def stop_job(self, job: str) -> answers.StoppedResponse:
        """Plan a job no further and keep its data."""

    @declare("POST", routes.RESTART)
    def restart_job(self, job: str) -> answers.Restarted:
        """Plan a failed, stopped or abandoned job again."""

    @declare("DELETE", routes.JOB)
    def delete_job(self, job: str) -> None:
        """Stop a job and delete its data."""

    @declare("GET", routes.REVISIONS)
    def get_revisions(self, job: str) -> answers.RevisionsResponse:
        """Since which step which proposal plans a job, and why."""

    @Operation
    def set_job_proposal(self, job: str, proposal: str) -> ServiceCall[answers.RevisionResponse]:
        """Plan the unplanned steps of a job by another proposal."""
        body = make_body(bodies.JobProposal, proposal=proposal)
        return send_model("PUT", answers.RevisionResponse, routes.JOB_PROPOSAL, body, job=job)

    push_batches = _of_job(
        routes.BATCHES,
        answers.Pushed,
        bodies.PushedBatches,
        "Add batches to a job without lengths.",
    )

    @declare("GET", routes.SAMPLER_STATE)
    def get_sampler_state(self, job: str, step: int) -> answers.SamplerStateResponse:
        """The sampler's state before ``step``."""

    @declare("GET", routes.PLAN)
    def get_plan(self, job: str, step: int, *, wait: float = 0.0) -> Plan | None:
        """The plan of a step.

        None if it is not planned within ``wait`` seconds (at most 60).
        """

    @declare("GET", routes.VIEW)
    def get_view(self, job: str, step: int, rank: int, *, wait: float = 0.0) -> RankView | None:
        """What a rank does in a step; None if it is not planned within ``wait`` seconds."""

    @declare("GET", routes.EXPLAIN)
    def explain_step(self, job: str, step: int) -> str:
        """Why a step takes its time, as text; empty if it is not planned yet."""

    @declare("GET", routes.SIMULATE)
    def simulate_step(self, job: str, step: int) -> answers.Simulated | None:
        """The 1F1B simulation of a step; None if it is not planned yet."""

    @declare("GET", routes.TIMELINE)
    def get_timeline(self, job: str, step: int) -> answers.Timeline:
        """When each pass of a planned step runs."""

    acknowledge = _of_job(
        routes.ACKS, answers.AcknowledgedResponse, bodies.Ack, "Report a step that a rank has done."
    )
    acknowledge_many = _of_job(
        routes.ACKS_MANY, answers.AcknowledgedAll, bodies.Acks, "Report a step of several ranks."
    )
    add_measurement = _of_job(
        routes.MEASUREMENTS,
        answers.MeasuredRank,
        bodies.MeasurementRequest,
        "Report a rank's time of a step (ms).",
    )

    @declare("GET", routes.MEASUREMENTS, cursor="after")
    def list_measurements(
        self, job: str, *, cursor: str = "", limit: int = 1000
    ) -> answers.MeasurementsPage:
        """One page of the times of ranks; ``cursor``: STEP.RANK."""

    @declare("GET", routes.PROGRESS)
    def list_progress(
        self, *, cursor: str = "", limit: int = _PAGE, state: str = ""
    ) -> answers.ProgressPage:
        """One page of the jobs with their progress; ``state``: only in these, with commas."""

    @declare("GET", routes.JOB_PROGRESS)
    def get_progress(self, job: str) -> answers.Progress:
        """Progress of a job's ranks and of its planning."""

    @declare("GET", routes.STEPS, cursor="after")
    def list_steps(self, job: str, *, cursor: int = -1, limit: int = _PAGE) -> answers.StepsPage:
        """One page of the planned steps after step ``cursor``."""

    @declare("GET", routes.CALIBRATION)
    def get_calibration(
        self, job: str, *, steps: int = 200, points: int = 0
    ) -> answers.CalibrationResponse:
        """Predicted and measured times by scheme over the last measured steps."""


def _upload(kind: type[T], route: str, document: Mapping[str, Any] | str) -> ServiceCall[T]:
    text = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)
    return ServiceCall("POST", route, read_model(kind), body=text.encode())
