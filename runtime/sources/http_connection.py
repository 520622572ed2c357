"""One HTTP connection that is kept open; a whole answer has a deadline and a bound on its size."""

from __future__ import annotations

import http.client
import io
import socket
import threading
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, NamedTuple

CONNECT_S = 5.0
"""What connecting may take; closing cannot cut it short."""

MOST_BYTES = 256 << 20
"""Of an answer: more than a hundred times a plan of 1,024 ranks and 3.2 million tokens."""


class HttpResponse(NamedTuple):
    """A response; ``kind``: its content type, ``retry_after_s``: the pause that it requests."""

    status: int
    reason: str
    etag: str | None
    kind: str
    body: bytes
    retry_after_s: float = 0.0


class Connection:
    """One connection that is kept open; another thread may close it for good."""

    def __init__(self, host: str, port: int | None, secure: bool) -> None:
        connection_class = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._http = connection_class(host, port)
        self._closed = False
        self._in_use = threading.Lock()

    def request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout_s: float
    ) -> HttpResponse:
        """Send a request, on a new connection if the open one is gone.

        ``OSError``, ``HTTPException`` for failures, ``TimeoutError`` if the whole response
        is not there after ``timeout_s``; ``IncompleteRead``, an ``HTTPException``, if it was cut
        off; ``TooLarge``.
        """
        deadline = time.monotonic() + timeout_s
        with self._in_use:
            if self._closed:
                raise ConnectionError("closed")
            reused = self._http.sock is not None
            try:
                return self._request_once(method, path, body, headers, deadline)
            except (ConnectionError, http.client.BadStatusLine):
                # A service may close an idle connection at any time: that is no trouble of it.
                if not reused or self._closed:
                    raise
            return self._request_once(method, path, body, headers, deadline)

    def close(self) -> None:
        """End it, also for a thread that is waiting for an answer."""
        self._closed = True
        # Shutting down wakes a thread that is reading, which closing alone does not.
        with suppress(OSError, AttributeError):
            self._http.sock.shutdown(socket.SHUT_RDWR)
        with self._in_use:
            self._http.close()

    def _request_once(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], deadline: float
    ) -> HttpResponse:
        try:
            if self._http.sock is None:
                self._http.timeout = min(CONNECT_S, _left(deadline))
                self._http.connect()
                # Looked at again: close() cannot shut down a socket that is not there yet.
                if self._closed:
                    raise ConnectionError("closed")
            self._http.sock.settimeout(_left(deadline))
            self._http.request(method, path, body, headers)
            self._http.response_class = partial(_response, deadline=deadline)  # type: ignore[assignment]
            with self._http.getresponse() as response:
                announced = response.length or 0
                if announced > MOST_BYTES:
                    raise TooLarge(announced)
                answer = HttpResponse(
                    response.status,
                    response.reason,
                    response.getheader("ETag"),
                    response.getheader("Content-Type", ""),
                    response.read(MOST_BYTES + 1),
                    _retry_after_s(response.getheader("Retry-After", "")),
                )
                if len(answer.body) > MOST_BYTES:
                    raise TooLarge(None)
                if len(answer.body) < announced:  # which a bounded read does not report
                    raise http.client.IncompleteRead(answer.body, announced - len(answer.body))
                if not response.isclosed():
                    response.read()  # the end of a body in chunks
                return answer
        except BaseException:
            self._http.close()  # what comes next on it would be the answer to this request
            raise


def _retry_after_s(text: str) -> float:
    """Return the seconds of a Retry-After header, a number or a date; 0 for any other."""
    with suppress(ValueError):
        return max(0.0, float(int(text)))
    with suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    return 0.0


class TooLarge(Exception):
    """An answer larger than any view of a plan."""

    def __init__(self, size: int | None) -> None:
        size_text = "more than" if size is None else f"{size} bytes, more than"
        super().__init__(f"the answer has {size_text} {MOST_BYTES} bytes")


def _left(deadline: float) -> float:
    """Return the seconds until ``deadline``; ``TimeoutError`` when there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _response(
    sock: socket.socket, *arguments: Any, deadline: float, **more: Any
) -> http.client.HTTPResponse:
    """Make a response that is read until ``deadline``, however its bytes come in."""
    response = http.client.HTTPResponse(sock, *arguments, **more)
    response.fp.close()
    response.fp = io.BufferedReader(_Timed(sock, deadline))
    return response


class _Timed(io.RawIOBase):
    """A socket's bytes, each read of which ends by one deadline for all."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        # Keeps the socket open while the response is read, as closing the connection is counted.
        self._file = sock.makefile("rb", buffering=0)
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_left(self._deadline))
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()
