"""Profiles: listed, shown, uploaded."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from seqplan.api.rest.payloads.answers import (
    DOCUMENT,
    NewProfile,
    ProfilesPage,
    answers,
    describe_upload,
)
from seqplan.api.rest.payloads.idempotency import add_location, once
from seqplan.api.rest.payloads.pages import read_page
from seqplan.api.rest.payloads.parameters import Limit
from seqplan.api.rest.payloads.problems import require_found
from seqplan.api.rest.payloads.texts import body_text
from seqplan.api.rest.state.shared import ServiceOf
from seqplan.api.store.rows import ListedProfile, ProfileRow, get
from seqplan.api.store.tables.profiles import put_profile
from seqplan.costs.profile import Profile
from seqplan.costs.shipped.catalogue import list_shipped, load_shipped
from seqplan.plans import service_routes

routes = APIRouter(tags=["profiles"])


@routes.get(service_routes.PROFILES, **answers(ProfilesPage))
def list_profiles(service: ServiceOf, cursor: str = "", limit: Limit = 100) -> dict[str, Any]:
    """Uploaded profiles in order of id; ``load_shipped`` names those that need no upload."""
    listed = read_page(service.store, ListedProfile, cursor, limit)
    return {**listed, "shipped": list(list_shipped())}


@routes.get(service_routes.PROFILE, **answers(dict[str, Any]))
def get_profile(service: ServiceOf, profile: str) -> Response:
    """A profile's document, by id or shipped name."""
    if profile in list_shipped():
        return JSONResponse(load_shipped(profile).document)
    with service.store.reading() as connection:
        row = require_found(get(connection, ProfileRow, profile), f"profile {profile}")
    return Response(row.document, media_type="application/json")


@routes.post(
    service_routes.PROFILES,
    status_code=201,
    openapi_extra=describe_upload(DOCUMENT),
    **answers(NewProfile, 201),
)
async def upload_profile(service: ServiceOf, request: Request) -> Response:
    """Upload a profile document, as ``seqplan profile measure`` writes it."""
    text = body_text(await request.body())

    def effect(connection: Connection) -> tuple[int, dict[str, Any]]:
        uploaded = Profile.from_json(text, "body")
        return 201, {"id": put_profile(connection, uploaded, text), "name": uploaded.name}

    answer = await run_in_threadpool(once, service, request, text, effect)
    return add_location(answer, service_routes.PROFILES)
