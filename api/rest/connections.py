"""Connections: how many there may be, how long headers may take, and ends that are half closed."""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections import Counter
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_S = 10.0
"""Time from the begin of a connection, or of a request on it, to the end of its headers."""

_HEADER_BYTES = 256 << 10
"""Bytes that may come before the headers end; more than one read of the event loop."""

_RESERVED_FILES = 128
"""Files that connections leave for the store, its arrays and the planning processes."""

_LEAST_LIMIT = 16
_PEER_SHARE = 0.5
"""Share of all connections that one address may have; a proxy, or a node, is one address."""

_LOGGED_EVERY_S = 60.0

_log = logging.getLogger("seqplan.connections")


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, 1 << 20)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return soft
    return hard


def open_files() -> int:
    """Return how many files the process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class ConnectionLimits:
    """Counts connections, in all and of each address, against what the process may open."""

    def __init__(self, files: int) -> None:
        self.most = max(_LEAST_LIMIT, files - _RESERVED_FILES)
        self.most_of_peer = max(_LEAST_LIMIT, int(_PEER_SHARE * self.most))
        self._of_peer: Counter[str] = Counter()
        self._total = 0
        self._logged_at: dict[str, float] = {}
        self._unlogged: Counter[str] = Counter()

    def admit(self, peer: str) -> bool:
        """Count a connection of an address; False, and a line in the log, if that is too many."""
        if self._total >= self.most:
            self.log(
                "full", f"{self.most} connections are open, the most that fit: more are closed"
            )
            return False
        if self._of_peer[peer] >= self.most_of_peer:
            self.log(
                f"peer {peer}",
                f"{peer} has {self.most_of_peer} connections, the most for one address: "
                "more are closed",
            )
            return False
        self._total += 1
        self._of_peer[peer] += 1
        return True

    def release(self, peer: str) -> None:
        """Count a connection no more that was admitted."""
        self._total -= 1
        self._of_peer[peer] -= 1
        if not self._of_peer[peer]:
            del self._of_peer[peer]

    def log(self, kind: str, line: str) -> None:
        """Log a line, at most one of each kind a minute."""
        now = time.monotonic()
        if now - self._logged_at.get(kind, -_LOGGED_EVERY_S) < _LOGGED_EVERY_S:
            self._unlogged[kind] += 1
            return
        if len(self._logged_at) > 1000:
            self._logged_at.clear()
        self._logged_at[kind] = now
        again = self._unlogged.pop(kind, 0)
        _log.warning("%s%s", line, f" ({again} more since the last such line)" if again else "")


class GuardedProtocol(HttpToolsProtocol):
    """HTTP on one connection, within the limits that ``limits`` has."""

    limits: ConnectionLimits
    """Set by the subclass that a server makes for itself."""

    _admitted = False
    _headers_timer: asyncio.TimerHandle | None = None
    _header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the connection, or close it."""
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if peer else ""
        super().connection_made(transport)
        self._admitted = self.limits.admit(self._peer)
        if self._admitted:
            self._expect_headers()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the place of the connection."""
        self._have_headers()
        if self._admitted:
            self._admitted = False
            self.limits.release(self._peer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data; one line a minute of those that are no HTTP."""
        if self._admitted:
            super().data_received(data)
            if self._headers_timer is not None:  # they have not ended
                self._header_bytes += len(data)
                if self._header_bytes > _HEADER_BYTES:
                    self.limits.log("large", f"{self._peer}: headers over {_HEADER_BYTES} bytes")
                    self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Respond to data that is no HTTP request."""
        self.limits.log("invalid", f"{self._peer}: no HTTP request")
        self._have_headers()
        super().send_400_response(msg)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Keep the connection of a request that is complete: its client still reads."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return None
        cycle.keep_alive = False
        return True

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        if self._headers_timer is None:
            self._expect_headers()

    def on_headers_complete(self) -> None:
        """End its headers."""
        self._have_headers()
        super().on_headers_complete()

    def _expect_headers(self) -> None:
        self._headers_timer = self.loop.call_later(HEADERS_S, self._headers_late)

    def _have_headers(self) -> None:
        self._header_bytes = 0
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

    def _headers_late(self) -> None:
        self._headers_timer = None
        self.limits.log("late", f"{self._peer}: no request within {HEADERS_S:g} s")
        self.transport.abort()


def make_guarded_protocol(limits: ConnectionLimits) -> type[Any]:
    """Make the protocol class of one server."""
    return type("Guarded", (GuardedProtocol,), {"limits": limits})
