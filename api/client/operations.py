"""The methods of both clients, one a route, by the operation ids of the OpenAPI document."""

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
    delete,
    get,
    get_page,
    make_body,
    post,
    read_model,
)
from seqplan.api.rest.payloads import answers, bodies
from seqplan.plans import service_routes as routes
from seqplan.plans.format.codec import from_json
from seqplan.plans.plan import Plan
from seqplan.plans.service_routes import fill_route
from seqplan.plans.views.decode_view import decode_view
from seqplan.plans.views.rank_view import RankView

P = ParamSpec("P")
T = TypeVar("T")

_PAGE = 200


def _create(route: str, kind: type[T], body: Callable[P, BaseModel], about: str) -> Operation[P, T]:
    """Make a POST whose arguments are the fields of ``body``."""

    def make(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> ServiceCall[T]:
        return post(kind, route, make_body(body, *args, **kwargs))

    return Operation(make, body, about)


def _of_job(
    route: str, kind: type[T], body: Callable[P, BaseModel], about: str
) -> Operation[Concatenate[str, P], T]:
    """Make a POST below a job, whose further arguments are the fields of ``body``."""

    def make(self: Any, job: str, /, *args: P.args, **kwargs: P.kwargs) -> ServiceCall[T]:
        return post(kind, route, make_body(body, *args, **kwargs), job=job)

    return Operation(make, body, about)


class Operations:
    """The routes as methods; ``get_metrics`` and ``explain_step`` return text."""

    @Operation
    def get_health(self) -> ServiceCall[str]:
        """The process responds."""
        return ServiceCall("GET", routes.HEALTH, bytes.decode)

    @Operation
    def get_readiness(self) -> ServiceCall[str]:
        """The store can be written to and all planning goes on."""
        return ServiceCall("GET", routes.READINESS, bytes.decode)

    @Operation
    def get_metrics(self) -> ServiceCall[str]:
        """Metrics in the Prometheus text format."""
        return ServiceCall("GET", routes.METRICS, bytes.decode)

    @Operation
    def list_profiles(
        self, *, cursor: str = "", limit: int = _PAGE
    ) -> ServiceCall[answers.ProfilesPage]:
        """One page of the uploaded profiles, and the names of shipped ones."""
        return get_page(answers.ProfilesPage, routes.PROFILES, cursor, limit)

    @Operation
    def get_profile(self, profile: str) -> ServiceCall[dict[str, Any]]:
        """A profile's document, by id or shipped name."""
        return get(dict[str, Any], routes.PROFILE, profile=profile)

    @Operation
    def upload_profile(self, document: Mapping[str, Any] | str) -> ServiceCall[answers.NewProfile]:
        """Upload a profile document."""
        return _upload(answers.NewProfile, routes.PROFILES, document)

    @Operation
    def list_lengths(
        self, *, cursor: str = "", limit: int = _PAGE
    ) -> ServiceCall[answers.LengthsPage]:
        """One page of the length data sets."""
        return get_page(answers.LengthsPage, routes.LENGTHS, cursor, limit)

    @Operation
    def get_lengths(self, lengths: str) -> ServiceCall[answers.LengthsResponse]:
        """A data set's counts and histogram."""
        return get(answers.LengthsResponse, routes.LENGTHS_SET, lengths=lengths)

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
            np.save(file, lengths, allow_pickle=False)
            lengths = file.getvalue()
        kind = answers.NewLengths
        media = "application/octet-stream"
        given = {"format": format, "field": field, "bytes_per_token": bytes_per_token}
        query: Query = {name: value for name, value in given.items() if value is not None}
        return ServiceCall("POST", routes.LENGTHS, read_model(kind), query, lengths, media)

    @Operation
    def delete_lengths(self, lengths: str) -> ServiceCall[None]:
        """Delete a data set that no job and no proposal uses."""
        return delete(routes.LENGTHS_SET, lengths=lengths)

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

    @Operation
    def list_proposals(
        self, *, cursor: str = "", limit: int = _PAGE
    ) -> ServiceCall[answers.ProposalsPage]:
        """One page of the proposals."""
        return get_page(answers.ProposalsPage, routes.PROPOSALS, cursor, limit)

    @Operation
    def get_proposal(self, proposal: str) -> ServiceCall[answers.ProposalResponse]:
        """A proposal: its state, progress and, once it is ready, its document."""
        return get(answers.ProposalResponse, routes.PROPOSAL, proposal=proposal)

    @Operation
    def get_proposal_document(self, proposal: str) -> ServiceCall[str]:
        """The file that ``seqplan propose -o`` writes, as text."""
        path = fill_route(routes.PROPOSAL_DOCUMENT, proposal=proposal)
        return ServiceCall("GET", path, bytes.decode)

    @Operation
    def delete_proposal(self, proposal: str) -> ServiceCall[None]:
        """Delete a proposal that no job uses."""
        return delete(routes.PROPOSAL, proposal=proposal)

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
        names = list(range(len(lengths)) if ids is None else ids)
        fields = {"step": step, "ids": names, "lengths": list(lengths), "loss_tokens": loss_tokens}
        body = json.dumps(fields, default=int).encode()
        path = fill_route(routes.PLAN_BATCH, proposal=proposal)

        def decode(text: bytes) -> Plan:
            return from_json(text.decode(), strict=False, origin=f"step {step}")

        return ServiceCall("POST", path, decode, body=body)

    create_job = _create(
        routes.JOBS, answers.JobBegun, bodies.NewJob, "Begin a job from a proposal."
    )

    @Operation
    def list_jobs(self, *, cursor: str = "", limit: int = _PAGE) -> ServiceCall[answers.JobsPage]:
        """One page of the jobs."""
        return get_page(answers.JobsPage, routes.JOBS, cursor, limit)

    @Operation
    def get_job(self, job: str) -> ServiceCall[answers.JobResponse]:
        """A job, its last planned step and each rank's last acknowledgement."""
        return get(answers.JobResponse, routes.JOB, job=job)

    @Operation
    def stop_job(self, job: str) -> ServiceCall[answers.StoppedResponse]:
        """Plan a job no further and keep its data."""
        return post(answers.StoppedResponse, routes.STOP, job=job)

    @Operation
    def restart_job(self, job: str) -> ServiceCall[answers.Restarted]:
        """Plan a failed, stopped or abandoned job again."""
        return post(answers.Restarted, routes.RESTART, job=job)

    @Operation
    def delete_job(self, job: str) -> ServiceCall[None]:
        """Stop a job and delete its data."""
        return delete(routes.JOB, job=job)

    @Operation
    def get_revisions(self, job: str) -> ServiceCall[answers.RevisionsResponse]:
        """Since which step which proposal plans a job, and why."""
        return get(answers.RevisionsResponse, routes.REVISIONS, job=job)

    @Operation
    def set_job_proposal(self, job: str, proposal: str) -> ServiceCall[answers.RevisionResponse]:
        """Plan the unplanned steps of a job by another proposal."""
        body = make_body(bodies.JobProposal, proposal=proposal).model_dump_json().encode()
        read = read_model(answers.RevisionResponse)
        return ServiceCall("PUT", fill_route(routes.JOB_PROPOSAL, job=job), read, body=body)

    push_batches = _of_job(
        routes.BATCHES,
        answers.Pushed,
        bodies.PushedBatches,
        "Add batches to a job without lengths.",
    )

    @Operation
    def get_sampler_state(self, job: str, step: int) -> ServiceCall[answers.SamplerStateResponse]:
        """The sampler's state before ``step``."""
        path = fill_route(routes.SAMPLER_STATE, job=job)
        return ServiceCall("GET", path, read_model(answers.SamplerStateResponse), {"step": step})

    @Operation
    def get_plan(self, job: str, step: int, *, wait: float = 0.0) -> ServiceCall[Plan | None]:
        """The plan of a step.

        None if it is not planned within ``wait`` seconds (at most 60).
        """

        def decode(body: bytes) -> Plan | None:
            text = body.decode()
            return from_json(text, strict=False, origin=f"step {step}") if text else None

        path = fill_route(routes.PLAN, job=job, step=step)
        return ServiceCall("GET", path, decode, {"wait": wait}, wait_s=wait)

    @Operation
    def get_view(
        self, job: str, step: int, rank: int, *, wait: float = 0.0
    ) -> ServiceCall[RankView | None]:
        """What a rank does in a step; None if it is not planned within ``wait`` seconds."""

        def decode(body: bytes) -> RankView | None:
            origin = f"step {step} of rank {rank}"
            return decode_view(json.loads(body), strict=False, origin=origin) if body else None

        path = fill_route(routes.VIEW, job=job, step=step, rank=rank)
        return ServiceCall("GET", path, decode, {"wait": wait}, wait_s=wait)

    @Operation
    def explain_step(self, job: str, step: int) -> ServiceCall[str]:
        """Why a step takes its time, as text; empty if it is not planned yet."""
        return ServiceCall("GET", fill_route(routes.EXPLAIN, job=job, step=step), bytes.decode)

    @Operation
    def simulate_step(self, job: str, step: int) -> ServiceCall[answers.Simulated | None]:
        """The 1F1B simulation of a step; None if it is not planned yet."""
        read = read_model(answers.Simulated)
        path = fill_route(routes.SIMULATE, job=job, step=step)
        return ServiceCall("GET", path, lambda body: read(body) if body else None)

    @Operation
    def get_timeline(self, job: str, step: int) -> ServiceCall[answers.Timeline]:
        """When each pass of a planned step runs."""
        return get(answers.Timeline, routes.TIMELINE, job=job, step=step)

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

    @Operation
    def list_measurements(
        self, job: str, *, cursor: str = "", limit: int = 1000
    ) -> ServiceCall[answers.MeasurementsPage]:
        """One page of the times of ranks; ``cursor``: STEP.RANK."""
        path = fill_route(routes.MEASUREMENTS, job=job)
        query: Query = {"after": cursor, "limit": limit}
        return ServiceCall("GET", path, read_model(answers.MeasurementsPage), query)

    @Operation
    def list_progress(
        self, *, cursor: str = "", limit: int = _PAGE, state: str = ""
    ) -> ServiceCall[answers.ProgressPage]:
        """One page of the jobs with their progress; ``state``: only in these, with commas."""
        query: Query = {"cursor": cursor, "limit": limit, "state": state}
        return ServiceCall("GET", routes.PROGRESS, read_model(answers.ProgressPage), query)

    @Operation
    def get_progress(self, job: str) -> ServiceCall[answers.Progress]:
        """Progress of a job's ranks and of its planning."""
        return get(answers.Progress, routes.JOB_PROGRESS, job=job)

    @Operation
    def list_steps(
        self, job: str, *, cursor: int = -1, limit: int = _PAGE
    ) -> ServiceCall[answers.StepsPage]:
        """One page of the planned steps after step ``cursor``."""
        path = fill_route(routes.STEPS, job=job)
        query = {"after": cursor, "limit": limit}
        return ServiceCall("GET", path, read_model(answers.StepsPage), query)

    @Operation
    def get_calibration(
        self, job: str, *, steps: int = 200, points: int = 0
    ) -> ServiceCall[answers.CalibrationResponse]:
        """Predicted and measured times by scheme over the last measured steps."""
        path = fill_route(routes.CALIBRATION, job=job)
        query = {"steps": steps, "points": points}
        return ServiceCall("GET", path, read_model(answers.CalibrationResponse), query)


def _upload(kind: type[T], route: str, document: Mapping[str, Any] | str) -> ServiceCall[T]:
    text = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)
    return ServiceCall("POST", route, read_model(kind), body=text.encode())
