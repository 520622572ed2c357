"""Server: one process, one event loop, until a signal."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import sys
import time
from dataclasses import replace

import uvicorn
from fastapi import FastAPI

from seqplan.api.rest.app import make_app
from seqplan.api.rest.connections import (
    ConnectionLimits,
    make_guarded_protocol,
    open_files,
    raise_file_limit,
)
from seqplan.api.rest.middleware.tokens import Access, is_loopback
from seqplan.api.service.service import Service
from seqplan.api.store.errors import StoreUnavailable
from seqplan.api.store.store import Store
from seqplan.api.store.tables.tokens import list_tokens
from seqplan.plans.service_routes import VERSION_HEADER
from seqplan.plans.version import VERSION

_RETRY_S = 1.0
_CANCELLED_S = 0.1
"""Time for canceled requests to respond."""

_GRACE_S = 2
_GARBAGE = (500_000, 20, 20)
"""Thresholds of Python's collector. With its defaults, collections take a third of the service's
CPU when 10,240 ranks request their views, as each looks through all connections and plans; with
50,000 they take a sixth, with 500,000 a hundredth."""

_KEEP_ALIVE_S = 300
"""A rank sends a request once a step, and steps may be long."""


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address, before a store is made; ``ValueError`` if it cannot be had.

    Port 0 takes a free one.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise ValueError(f"--host {host} --port {port}: {reason}. Name another") from None


def serve(service: Service, listener: socket.socket, host: str, access: Access) -> int:
    """Serve until SIGINT or SIGTERM on the address of ``host``. Prints it on stderr.

    ``ValueError`` for an address beyond loopback while the store has no tokens.
    """
    files = raise_file_limit()
    access = replace(access, guarded=_has_tokens(service.store))
    if not access.guarded and not is_loopback(host):
        raise ValueError(
            f"--host {host}: others could reach this, and the store has no tokens; make one with "
            "--add-token NAME (token_file in a job file), or listen on 127.0.0.1"
        )
    shown = f"[{host}]" if ":" in host else host
    print(f"serving on http://{shown}:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    server = make_server(service, access, files)
    gc.freeze()
    gc.set_threshold(*_GARBAGE)
    server.run(sockets=[listener])
    return 0


def make_server(service: Service, access: Access, files: int | None = None) -> uvicorn.Server:
    """Make what serves a service on any socket, in any thread, until its ``should_exit``.

    ``files``: how many the process may have open, as it is by default.
    """
    app = make_app(service, access)
    config = uvicorn.Config(
        app,
        log_config=None,  # the command writes the log
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACE_S,
        timeout_keep_alive=_KEEP_ALIVE_S,
        headers=[(VERSION_HEADER, VERSION)],
        proxy_headers=False,  # answers name no host, and no client is trusted to name itself
        http=make_guarded_protocol(ConnectionLimits(files or open_files())),
    )
    # The protocol logs data that is no HTTP itself, a line a minute.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    return _Server(config, app)


def _has_tokens(store: Store) -> bool:
    """Whether there are any; waits while the store, which was opened, cannot be read."""
    while True:
        try:
            with store.reading() as connection:
                return bool(list_tokens(connection))
        except StoreUnavailable as error:
            print(f"waiting for the store: {error}", file=sys.stderr, flush=True)
            time.sleep(_RETRY_S)


class _Server(uvicorn.Server):
    """Wakes waiting requests at shutdown, so that it need not wait for them."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.waiters.stop()
        await super().shutdown(sockets)
        if self.force_exit:  # a second signal: no more waiting for requests, but an end of planning
            for task in self.server_state.tasks:
                task.cancel()
            await asyncio.sleep(_CANCELLED_S)
            await self.lifespan.shutdown()
            del self._captured_signals[1:]
