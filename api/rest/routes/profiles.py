"""Profiles: listed, shown, uploaded."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from sqlalchemy import Connection

from seqplan.api.rest.payloads import answers
from seqplan.api.rest.payloads.idempotency import upload_document
from seqplan.api.rest.payloads.pages import read_page
from seqplan.api.rest.payloads.parameters import Limit
from seqplan.api.rest.payloads.problems import require_row
from seqplan.api.rest.state.shared import ServiceOf
from seqplan.api.store.rows import ListedProfile, ProfileRow
from seqplan.api.store.tables.profiles import put_profile
from seqplan.costs.profile import Profile
from seqplan.costs.shipped.catalogue import list_shipped, load_shipped
from seqplan.plans import service_routes

routes = APIRouter(tags=["profiles"])


@routes.get(service_routes.PROFILES, **answers.describe(answers.ProfilesPage))
def list_profiles(service: ServiceOf, cursor: str = "", limit: Limit = 100) -> dict[str, Any]:
    """Uploaded profiles in order of id; ``load_shipped`` names those that need no upload."""
    listed = read_page(service.store, ListedProfile, cursor, limit)
    return {**listed, "shipped": list(list_shipped())}


@routes.get(service_routes.PROFILE, **answers.describe(dict[str, Any]))
def get_profile(service: ServiceOf, profile: str) -> Response:
    """A profile's document, by id or shipped name."""
    if profile in list_shipped():
        return JSONResponse(load_shipped(profile).document)
    row = require_row(service.store, ProfileRow, profile)
    return Response(row.document, media_type="application/json")


@routes.post(
    service_routes.PROFILES, **answers.describe(answers.NewProfile, 201, body=answers.DOCUMENT)
)
async def upload_profile(service: ServiceOf, request: Request) -> Response:
    """Upload a profile document, as ``seqplan profile measure`` writes it."""

    def keep(connection: Connection, text: str) -> dict[str, Any]:
        uploaded = Profile.from_json(text, "body")
        return {"id": put_profile(connection, uploaded, text), "name": uploaded.name}

    return await upload_document(service, request, service_routes.PROFILES, keep)
