"""Clients of a running service, sync and async."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, ParamSpec, Protocol, TypeVar

import httpx2

from seqplan.api.client.call import ServiceCall
from seqplan.api.client.exchange import Exchange, Received
from seqplan.api.client.operations import Operations
from seqplan.plans.service_routes import VERSION_HEADER, check_seconds, split_service_url
from seqplan.plans.version import VERSION

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")


class ItemPage(Protocol[Item]):
    """One page of a list; ``next``: the cursor of the following one, None on the last."""

    @property
    def items(self) -> list[Item]: ...
    @property
    def next(self) -> str | int | None: ...


class _Connection(Operations, ABC):
    """What both clients have: the service's address, credentials and time limits."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        ca: str | os.PathLike[str] | None = None,
        timeout_s: float = 60.0,
        retry_s: float = 30.0,
        poll_s: float = 0.5,
    ) -> None:
        parts = split_service_url(url, token)
        limits = {"timeout_s": timeout_s, "retry_s": retry_s, "poll_s": poll_s}
        for name, seconds in limits.items():
            check_seconds(name, seconds)
        if timeout_s == 0:
            raise ValueError(f"timeout_s: {timeout_s}. Give more than 0 seconds")
        self._service = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip(
            "/"
        )
        self._timeout_s, self._retry_s, self._poll_s = timeout_s, retry_s, poll_s
        headers = {"User-Agent": f"seqplan/{VERSION}"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        # No proxy and no .netrc of the environment: ranks use none either.
        self._options: dict[str, Any] = {
            "headers": headers,
            "trust_env": False,
            "verify": _read_certificates(ca)
            if parts.scheme == "https" or ca
            else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),  # never used, and made at once
        }
        self._open()

    @abstractmethod
    def _open(self) -> None:
        """Make the connections."""

    def _request(self, call: ServiceCall[Any], headers: dict[str, str]) -> dict[str, Any]:
        return {
            "method": call.method,
            "url": self._service + call.path,
            "params": dict(call.query) or None,
            "content": call.body,
            "headers": headers,
            "timeout": self._timeout_s + call.wait_s,
        }


class Client(_Connection):
    """A running service, with a method for each route.

    ``url``: ``http://HOST:PORT`` or https; ``token``: sent as bearer token; ``ca``: a PEM file of
    trusted certificates instead of the system's; ``timeout_s``: longest wait for a connection or
    for data; ``retry_s``: seconds for which lost connections, 429 and 5xx are retried;
    ``poll_s``: pause of ``watch``. A response is an object with the fields of the route's model.

    ``ValueError``: a value that cannot be used. ``ServiceError``: no answer, an error as response,
    a service of another version.
    """

    def _open(self) -> None:
        self._http = httpx2.Client(**self._options)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def send(self, call: ServiceCall[T]) -> T:
        """Send a call and return its result."""
        exchange = Exchange(call, self._service, self._retry_s)
        request = self._request(call, exchange.headers)
        while True:
            try:
                received = _receive(self._http.request(**request))
            except (httpx2.HTTPError, OSError) as error:
                received = _describe_trouble(error)
            if (pause_s := exchange.find_pause(received)) is None:
                return exchange.read(received)
            time.sleep(pause_s)

    def items(
        self, operation: Callable[P, ItemPage[T]], *args: P.args, **kwargs: P.kwargs
    ) -> Iterator[T]:
        """Yield the items of all pages of a list, as ``items(client.list_steps, job)``."""
        while True:
            page = operation(*args, **kwargs)
            yield from page.items
            if page.next is None:
                return
            kwargs["cursor"] = page.next

    def watch(self, operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        """Yield each new response until its state is final, as ``watch(client.get_job, job)``."""
        latest: T | None = None
        while latest is None or not _is_final(latest):
            if latest is not None:
                time.sleep(self._poll_s)
            if (response := operation(*args, **kwargs)) != latest:
                yield response
            latest = response


class AsyncClient(_Connection):
    """``Client`` for ``asyncio``: its methods are awaited, its iterators are asynchronous."""

    def _open(self) -> None:
        self._http = httpx2.AsyncClient(**self._options)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def send(self, call: ServiceCall[T]) -> T:
        """Send a call and return its result."""
        exchange = Exchange(call, self._service, self._retry_s)
        request = self._request(call, exchange.headers)
        while True:
            try:
                received = _receive(await self._http.request(**request))
            except (httpx2.HTTPError, OSError) as error:
                received = _describe_trouble(error)
            if (pause_s := exchange.find_pause(received)) is None:
                return exchange.read(received)
            await asyncio.sleep(pause_s)

    async def items(
        self, operation: Callable[P, Awaitable[ItemPage[T]]], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[T]:
        """Yield the items of all pages of a list."""
        while True:
            page = await operation(*args, **kwargs)
            for item in page.items:
                yield item
            if page.next is None:
                return
            kwargs["cursor"] = page.next

    async def watch(
        self, operation: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[T]:
        """Yield each new response until its state is final."""
        latest: T | None = None
        while latest is None or not _is_final(latest):
            if latest is not None:
                await asyncio.sleep(self._poll_s)
            if (response := await operation(*args, **kwargs)) != latest:
                yield response
            latest = response


def _read_certificates(ca: str | os.PathLike[str] | None) -> ssl.SSLContext:
    """Return the certificates to trust; None: the system's, or those of SSL_CERT_FILE."""
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else "no certificate in it"
        raise ValueError(f"ca: {os.fspath(ca or '')}: {reason}. Name a PEM file") from None


def _receive(response: httpx2.Response) -> Received:
    seconds = 0.0
    with suppress(ValueError):
        seconds = max(0.0, float(response.headers.get("Retry-After", "0")))
    version = response.headers.get(VERSION_HEADER)
    return Received(
        response.status_code, response.reason_phrase, version, seconds, response.content
    )


def _describe_trouble(error: Exception) -> Received:
    cause: BaseException = error
    while cause.__cause__ is not None or cause.__context__ is not None:
        cause = cause.__cause__ or cause.__context__ or cause
    if isinstance(cause, ssl.SSLCertVerificationError):
        text = f"{cause.verify_message}. Name the service's CA file (--ca, ca=)"
    else:
        text = getattr(cause, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, httpx2.ConnectError):
            text += ". Check the address, and that the service runs"
    return Received(0, "", None, 0.0, b"", text)


def _is_final(response: Any) -> bool:
    """Whether a proposal or job changes no more: a planned job does while its ranks train."""
    if response.state == "planned" and hasattr(response, "slowest"):
        return bool(response.slowest == response.last_step)
    return response.state not in ("running", "planning")
