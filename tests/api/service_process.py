"""A service on a free port of loopback, in this process or a separate one, and requests to it.

A process is for tests of what only a process does, signals and ends, the command line, two services
at once.
"""

import http.client
import io
import json
import logging
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from command_forks import CommandProcess

from seqplan.api.rest.middleware.tokens import Access
from seqplan.api.rest.server import make_server
from seqplan.api.service.service import Limits, Service
from seqplan.api.service.upkeep import Keeping
from seqplan.api.store.store import Store
from seqplan.api.store.tables.tokens import list_tokens

PATIENCE_S = 60.0
SMALL_PROFILE = Path(__file__).parents[2] / "examples" / "data" / "llama-small-cpu.json"


def npy(array: npt.ArrayLike) -> bytes:
    """The array as a file of NumPy's."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def wait_until(reached: Callable[[], object]) -> None:
    """Wait for a state; ``AssertionError`` after ``PATIENCE_S``."""
    ends = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < ends
        time.sleep(0.02)


@dataclass
class Reply:
    """What the service answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Served:
    """A running service; ``headers`` go with every request."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)

    def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Reply:
        """One request; bytes are sent as they are, anything else as JSON."""
        host = self.url.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=PATIENCE_S)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"} if data is not None else {}
        try:
            connection.request(method, path, data, {**self.headers, **kind, **(headers or {})})
            answer = connection.getresponse()
            fields = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, fields, answer.read())
        finally:
            connection.close()

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of an answer that must be a success."""
        reply = self.send(method, path, body)
        assert 200 <= reply.status < 300, reply
        return reply.json

    def problem(self, method: str, path: str, body: Any = None, status: int = 422) -> Any:
        """The problem of an answer that must be one."""
        reply = self.send(method, path, body)
        assert reply.status == status, reply
        assert reply.headers["content-type"] == "application/problem+json"
        assert reply.json["status"] == status
        return reply.json

    def proposal(self, body: dict[str, Any]) -> str:
        """Have a proposal made, and wait for it."""
        key = str(self.ok("POST", "/v1/proposals", body)["id"])
        row = self.settled(f"/v1/proposals/{key}", "running")
        assert row["state"] == "ready", row
        return key

    def upload_small(self, lengths: npt.ArrayLike) -> dict[str, str]:
        """Upload the small model's profile, and lengths; return their ids."""
        document = SMALL_PROFILE.read_bytes()
        return {
            "profile": self.ok("POST", "/v1/profiles", document)["id"],
            "lengths": self.ok("POST", "/v1/lengths", npy(lengths))["id"],
        }

    def settled(self, path: str, state: str) -> dict[str, Any]:
        """Return the row at ``path`` once it is not in this state any more."""
        wait_until(lambda: self.ok("GET", path)["state"] != state)
        return dict(self.ok("GET", path))


@dataclass(kw_only=True)
class ServedProcess(Served):
    """A service that is a process."""

    process: CommandProcess


@contextmanager
def serving_here(
    store: str | Path,
    files: Path | None = None,
    port: int = 0,
    hosts: Collection[str] = (),
    keeping: Keeping | None = None,
    limits: Limits | None = None,
    open_files: int | None = None,
) -> Iterator[Served]:
    """Serve a store in a thread of this process until the block ends.

    Then nothing that it logged may be an error."""
    opened = Store(str(store), files)
    with opened.reading() as connection:
        guarded = bool(list_tokens(connection))
    service = Service(opened, keeping=keeping, limits=limits)
    server = make_server(service, Access(hosts, guarded=guarded), open_files)
    errors: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(handler.format(record))  # type: ignore[method-assign]
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(handler)
    listener = socket.create_server(("127.0.0.1", port))
    thread = threading.Thread(target=server.run, args=([listener],), name="service")
    thread.start()
    try:
        yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}")
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        logger.removeHandler(handler)
        listener.close()
        opened.close()
    assert not thread.is_alive()
    assert errors == []


@contextmanager
def serving(*arguments: str | Path | int, command: str = "serve") -> Iterator[ServedProcess]:
    """``seqplan serve`` until the block ends; then it must have ended well or been killed."""
    process = CommandProcess(command, *arguments, stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        stderr, url = "", None
        while url is None:  # its progress comes before its address
            line = process.stderr.readline()
            assert line, stderr
            stderr += line
            url = re.fullmatch(r"serving on (http://\S+)\n", line)
        yield ServedProcess(url[1], process=process)
    finally:
        if process.poll() is None:
            process.terminate()
        stderr = process.stderr.read()
        process.wait(PATIENCE_S)
        process.stderr.close()
    assert "Traceback" not in stderr, stderr
