"""The dashboard at ``/``: a page and what it loads, as they are in the package.

They are handed out before the guard requires a token, as they contain nothing of the jobs: the page
requests a token and sends it with each request.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from seqplan.api.rest.middleware.http_middleware import HttpMiddleware
from seqplan.api.rest.payloads.plan_response import has_tag, send_bytes

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

POLICY = (
    "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Nothing from elsewhere, nothing inline, no text turned into markup, in no one's frame."""

SECURITY_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
"""Of every page."""

_PLACE = b"{{files}}"
"""In the page: the folder of this version's files."""


@dataclass(frozen=True)
class _File:
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    tag: bytes


class Dashboard(HttpMiddleware):
    """Middleware that answers ``GET /`` and ``GET /dashboard/…``; the rest goes on.

    The files' folder is named by their content, so that browsers may keep them for ever; the page
    itself is requested each time and has not changed (304) until the next version.
    """

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self._files = _dashboard()

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        file = None
        if scope["method"] in ("GET", "HEAD"):
            file = self._files.get(scope["path"])
        if file is None:
            await self._app(scope, receive, send)
            return
        tags = Headers(scope=scope).get("if-none-match", "").encode("latin-1")
        known = has_tag(tags, file.tag)
        status, body = (304, b"") if known else (200, file.body)
        headers = [*file.headers]
        if not known:
            headers.append((b"content-length", str(len(body)).encode()))
        await send_bytes(send, status, headers, b"" if scope["method"] == "HEAD" else body)


def _dashboard() -> dict[str, _File]:
    """Read the files, by the path they are served at."""
    folder = files("seqplan.api.dashboard")
    bodies = {name: file.read_bytes() for name, file in _serve(folder, "")}
    page = bodies.pop("index.html")
    digest = hashlib.sha256()
    for name, body in sorted(bodies.items()):
        digest.update(f"{name} {len(body)}\n".encode() + body)
    place = f"dashboard/{digest.hexdigest()[:16]}"
    served = {
        f"/{place}/{name}": _file(name, body, "public, max-age=31536000, immutable")
        for name, body in bodies.items()
    }
    served["/"] = _file("index.html", page.replace(_PLACE, place.encode()), "no-cache")
    return served


def _serve(folder: Traversable, place: str) -> list[tuple[str, Traversable]]:
    files_below = []
    for entry in folder.iterdir():
        if entry.is_dir():
            files_below += _serve(entry, f"{place}{entry.name}/")
        elif _suffix(entry.name) in CONTENT_TYPES:
            files_below.append((f"{place}{entry.name}", entry))
    return files_below


def _file(name: str, body: bytes, caching: str) -> _File:
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'.encode()
    headers = {
        b"content-type": CONTENT_TYPES[_suffix(name)].encode(),
        b"etag": tag,
        b"cache-control": caching.encode(),
    }
    headers |= {name.encode(): value.encode() for name, value in SECURITY_HEADERS.items()}
    return _File(body, tuple(headers.items()), tag)


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]
