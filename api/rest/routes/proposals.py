"""Proposals: listed, shown, made, uploaded, removed."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from sqlalchemy import Connection

from seqplan.api.rest.payloads import answers
from seqplan.api.rest.payloads.bodies import NewProposal
from seqplan.api.rest.payloads.idempotency import Done, once, upload_document
from seqplan.api.rest.payloads.json_bodies import json_body
from seqplan.api.rest.payloads.pages import read_page
from seqplan.api.rest.payloads.parameters import Limit
from seqplan.api.rest.payloads.problems import Problem, not_found, require_row
from seqplan.api.rest.state.shared import QueriesOf, ServiceOf
from seqplan.api.service.proposal_request import parse_request, usable_profile
from seqplan.api.store import rows
from seqplan.api.store.tables.lengths import lengths_path, missing
from seqplan.api.store.tables.profiles import profile_ids, put_profile
from seqplan.api.store.tables.proposals import put_proposal, remove_proposal
from seqplan.costs.profile import Profile
from seqplan.costs.shipped.catalogue import list_shipped, load_shipped
from seqplan.planner.batches.sampler import check_tokens
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.workload import TOKENS_PER_GPU
from seqplan.plans import service_routes

routes = APIRouter(tags=["proposals"])


@routes.get(service_routes.PROPOSALS, **answers.describe(answers.ProposalsPage))
def list_proposals(service: ServiceOf, cursor: str = "", limit: Limit = 100) -> dict[str, Any]:
    """Proposals in order of id."""
    return read_page(service.store, rows.ListedProposal, cursor, limit)


@routes.get(service_routes.PROPOSAL, **answers.describe(answers.ProposalResponse))
def get_proposal(service: ServiceOf, proposal: str) -> Response:
    """A proposal: its state, how far it is, and its document when it is ready."""
    row = require_row(service.store, rows.ProposalRow, proposal)
    making = service.proposals.progress.get(proposal)
    progress = None if making is None else asdict(making)
    document = None if row.document is None else json.loads(row.document)
    body = {"id": row.id, "state": row.state, "error": row.error}
    return JSONResponse({**body, "progress": progress, "document": document})


@routes.get(service_routes.PROPOSAL_DOCUMENT, **answers.describe(dict[str, Any]))
def get_proposal_document(service: ServiceOf, proposal: str) -> Response:
    """The file that ``seqplan propose -o`` writes; 409 while it is not ready."""
    row = require_row(service.store, rows.ProposalRow, proposal)
    if row.document is None:
        raise Problem(409, "not-ready", f"proposal {proposal} is {row.state}")
    return Response(row.document, media_type="application/json")


@routes.delete(service_routes.PROPOSAL, status_code=204, response_class=Response)
def delete_proposal(service: ServiceOf, queries: QueriesOf, proposal: str) -> Response:
    """Remove a proposal, ready or not; 409 while a job is planned by it."""
    with service.store.writing() as connection:
        was_there = remove_proposal(connection, proposal)
    if not was_there:
        raise not_found(f"proposal {proposal}")
    service.proposals.drop(proposal)
    queries.forget(proposal)
    return Response(status_code=204)


ProposalBody = Annotated[NewProposal, Depends(json_body(NewProposal))]


@routes.post(
    service_routes.PROPOSALS, **answers.describe(answers.NewProposalId, 202, body=NewProposal)
)
def create_proposal(service: ServiceOf, request: Request, body: ProposalBody) -> Response:
    """Make a proposal; the response's Location shows its progress."""
    key = secrets.token_hex(8)

    def effect(connection: Connection) -> Done:
        lengths = rows.get_for_update(connection, rows.ListedLengths, body.lengths)
        if lengths is None:
            raise ValueError(f"body.lengths: there are no lengths {body.lengths}")
        if lengths.kind != "histogram" and not lengths_path(service.store, lengths.id).exists():
            raise missing(lengths.id)
        request = body.model_dump()
        request["tokens"] = body.tokens or TOKENS_PER_GPU * body.gpus
        request["profile"] = _profile_id(connection, body.profile)
        check_tokens(lengths.tokens, request["tokens"])
        row = rows.get(connection, rows.ProfileRow, request["profile"])
        assert row is not None
        parse_request(usable_profile(Profile.from_json(row.document, "profile"), request), request)
        put_proposal(connection, key, request, None)
        return Done(202, {"id": key, "state": "running"}, partial(service.proposals.add, key))

    content = body.model_dump_json()
    return once(service, request, content, effect, below=service_routes.PROPOSALS)


@routes.post(
    service_routes.PROPOSAL_DOCUMENTS,
    **answers.describe(answers.NewProposalId, 201, body=answers.DOCUMENT),
)
async def upload_proposal(service: ServiceOf, request: Request) -> Response:
    """Upload a proposal that ``seqplan propose`` made."""

    def keep(connection: Connection, text: str) -> dict[str, Any]:
        key = Proposal.from_json(text, "body").digest.removeprefix("sha256:")
        put_proposal(connection, key, {}, text)
        return {"id": key, "state": "ready"}

    return await upload_document(service, request, service_routes.PROPOSALS, keep)


def _profile_id(connection: Connection, wanted: str) -> str:
    if wanted in list_shipped():
        profile = load_shipped(wanted)
        text = json.dumps(dict(profile.document), ensure_ascii=False)
        return put_profile(connection, profile, text)
    keys = profile_ids(connection, wanted)
    if len(keys) != 1:
        why = "is of several profiles. Give the id"
        if not keys:
            near = get_close_matches(wanted, list_shipped(), n=1, cutoff=0.3)
            hint = f"; did you mean {near[0]}?" if near else "."
            why = f"is neither uploaded nor shipped{hint} Upload it, or name one that is"
        raise ValueError(f"body.profile: {wanted!r} {why}")
    return keys[0]
