"""A real service process on a free port of loopback, and asking it over HTTP."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "seqplan.api.cli")
PATIENCE_S = 60.0


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

    process: subprocess.Popen[str]
    url: str
    headers: dict[str, str] = field(default_factory=dict)

    def ask(
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
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, found, answer.read())
        finally:
            connection.close()

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of an answer that must be a success."""
        reply = self.ask(method, path, body)
        assert 200 <= reply.status < 300, reply
        return reply.json

    def problem(self, method: str, path: str, body: Any = None, status: int = 422) -> Any:
        """The problem of an answer that must be one."""
        reply = self.ask(method, path, body)
        assert reply.status == status, reply
        assert reply.headers["content-type"] == "application/problem+json"
        assert reply.json["status"] == status
        return reply.json

    def proposal(self, body: dict[str, Any]) -> str:
        """Have a proposal made, and wait for it."""
        key = str(self.ok("POST", "/v1/proposals", body)["id"])
        ends = time.monotonic() + PATIENCE_S
        while (found := self.ok("GET", f"/v1/proposals/{key}"))["state"] == "running":
            assert time.monotonic() < ends, found
            time.sleep(0.05)
        assert found["state"] == "ready", found
        return key


@contextmanager
def serving(*arguments: str | Path | int, verb: str = "serve") -> Iterator[Served]:
    """``seqplan serve`` until the block ends; then it must have ended well or been killed."""
    process = subprocess.Popen(
        [*COMMAND, verb, *map(str, arguments)], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        said, found = "", None
        while found is None:  # what it is doing comes before where it serves
            line = process.stderr.readline()
            assert line, said
            said += line
            found = re.fullmatch(r"serving on (http://\S+)\n", line)
        yield Served(process, found[1])
    finally:
        if process.poll() is None:
            process.terminate()
        said = process.stderr.read()
        process.wait(PATIENCE_S)
        process.stderr.close()
    assert "Traceback" not in said, said
