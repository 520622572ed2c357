"""A plan, or one rank's view of it, as status, headers and bytes."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import Send

from seqplan.api.rest.payloads.problems import not_found, rank_lost
from seqplan.api.service.plan_summary import ReadyPlan

Headers = list[tuple[bytes, bytes]]


async def send_bytes(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send a whole response."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def describe_json(body: bytes) -> Headers:
    """Return the headers of a JSON body."""
    length = str(len(body)).encode()
    return [(b"content-type", b"application/json"), (b"content-length", length)]


def has_tag(known: bytes, tag: bytes) -> bool:
    """Whether an If-None-Match header has this tag, or is ``*`` (RFC 9110, 13.1.2)."""
    if known == tag:
        return True
    return any(part.strip().removeprefix(b"W/") in (tag, b"*") for part in known.split(b","))


def answer(
    ready: ReadyPlan | None, rank: int | None, request_headers: Iterable[tuple[bytes, bytes]]
) -> tuple[int, Headers, bytes]:
    """Return status, headers and body for a plan, or for one rank's view of it.

    ``ready``: with its views if ``rank`` is given. ``request_headers``: names in lower
    case. ``Problem`` for a rank outside the world and a lost one.
    """
    if ready is None:
        return 204, [], b""
    if rank is not None and rank >= ready.world_size:
        raise not_found(f"rank {rank}: the job has ranks 0 to {ready.world_size - 1}")
    if rank in ready.lost_ranks:
        raise rank_lost(rank)
    tag = f'"{ready.digest}"'.encode()
    if any(name == b"if-none-match" and has_tag(value, tag) for name, value in request_headers):
        return 304, [(b"etag", tag)], b""
    body = ready.line
    if rank is not None:
        assert ready.views is not None  # PlanWaiters.add_views
        body = ready.views[rank]
    return 200, [*describe_json(body), (b"etag", tag)], body
