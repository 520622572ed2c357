"""Reading from a running service over HTTP, for commands; the standard library alone."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

_TIMEOUT_S = 60.0


class ServiceError(ValueError):
    """An answer that is no success, with its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ServiceClient:
    """The service at ``url`` (http or https); ``token`` goes along as a bearer token.

    ``ValueError``, one line, for a URL or token that cannot be used, a service that cannot be
    reached or breaks off, and a response that is an error or no JSON.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or port == -1:
            raise ValueError(f"--server must be http://HOST:PORT: {url!r}")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ValueError("--token: has characters that no header can hold")
        connection = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._http = connection(parts.hostname, port, timeout=_TIMEOUT_S)
        self._prefix = parts.path.rstrip("/")
        self._where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def __enter__(self) -> ServiceClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def text(self, *path: str | int, query: str = "") -> str:
        """The body of a successful GET; the parts of ``path`` are quoted."""
        target = f"{self._prefix}/{'/'.join(quote(str(part), safe='') for part in path)}"
        target += f"?{query}" if query else ""
        subject = f"{self._where}{target}"
        try:
            self._http.request("GET", target, headers=self._headers)
            with self._http.getresponse() as answer:
                status, reason, body = answer.status, answer.reason, answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._http.close()
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ValueError(f"{subject}: no answer: {reason}") from None
        if status != 200:
            detail = reason
            with suppress(ValueError, RecursionError, TypeError, KeyError):
                detail = json.loads(body)["detail"]
            raise ServiceError(f"{subject}: {status}: {detail}", status)
        try:
            return body.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{subject}: the answer is not UTF-8: {error.reason}") from None

    def json(self, *path: str | int, query: str = "") -> Any:
        """The parsed JSON of a successful GET."""
        text = self.text(*path, query=query)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            shown = "/".join(map(str, path))
            raise ValueError(f"{self._where}/{shown}: not JSON: {error}") from None

    def items(
        self, *path: str | int, cursor: str, limit: int, after: str | int | None = None
    ) -> Iterator[Any]:
        """Yield all items of a route with pages.

        ``cursor``: its parameter for the next page; ``after``: the value for the first one.
        """
        query = f"limit={limit}"
        query += "" if after is None else f"&{cursor}={quote(str(after), safe='')}"
        while True:
            page = self.json(*path, query=query)
            try:
                yield from page["items"]
                following = page["next"]
            except (KeyError, TypeError):
                shown = "/".join(map(str, path))
                raise ValueError(
                    f"{self._where}/{shown}: is no page of a seqplan service"
                ) from None
            if following is None:
                return
            query = f"limit={limit}&{cursor}={quote(str(following), safe='')}"
