"""A planning service of the fewest lines that speak the real protocol, for tests of its clients."""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from small_plans import view_of

from seqplan import Plan, digest, to_json


class PlanService:
    """Responses and requests of the service; ``plans`` may be filled in while it runs."""

    def __init__(self, plans: list[Plan], *, ends: bool = True, token: str | None = None) -> None:
        self.plans = {plan.step: plan for plan in plans}
        self.ends = ends
        """Whether a step without a plan is after the end, or not planned yet."""

        self.failure: tuple[int, dict[str, str]] | None = None
        """Status and problem instead of a plan that is not there."""

        self.token = token
        self.passing: list[str] = []
        """Troubles of the next requests: a status such as ``503``, ``hang up``, ``mute`` (accept,
        never answer),
        ``no body`` and ``half a body`` (gone in the middle of an answer)."""

        self.retry_after = ""
        self.waits = True
        self.etag = '"{}"'
        self.acks: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.requests = 0
        self.connections = 0
        self.stopping = threading.Event()
        self.url = ""


@contextmanager
def serving(service: PlanService) -> Iterator[PlanService]:
    """The service on a free port of loopback; ends when its clients have closed."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # two small writes an answer: no 40 ms in between

        def setup(self) -> None:
            super().setup()
            service.connections += 1
            self.body_share = 1.0

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            if self.troubled():
                return
            url = urlsplit(self.path)
            match = re.fullmatch(r"/base/v1/jobs/a%20job/plans/(\d+)(?:/ranks/(\d+))?", url.path)
            if match is None:
                self.problem(404, {"title": "Not found", "detail": url.path})
                return
            step = int(match[1])
            wait = float(parse_qs(url.query)["wait"][0])
            deadline = time.monotonic() + wait * service.waits
            while step not in service.plans and service.failure is None and not service.ends:
                if time.monotonic() >= deadline or service.stopping.wait(0.01):
                    self.answer(204, b"", {})
                    return
            if step in service.plans:
                plan = service.plans[step]
                text = to_json(plan)
                if match[2] is not None:
                    text = json.dumps(view_of(plan, int(match[2])).to_dict())
                kind = {"Content-Type": "application/json"}
                tag = service.etag.format(digest(plan))
                self.answer(200, text.encode(), {"ETag": tag, **kind})
            elif service.failure is not None:
                self.problem(*service.failure)
            else:
                kind = "https://example.org/problems/end-of-plans"
                self.problem(410, {"type": kind, "title": "End", "detail": f"no step {step}"})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.troubled():
                return
            where = self.path.removeprefix("/base/v1/jobs/a%20job/")
            if where not in ("acks", "acks/many"):
                self.problem(404, {"title": "Not found"})
                return
            key = self.headers["Idempotency-Key"]
            if key not in service.keys:
                document = json.loads(body)
                service.acks += [document] if where == "acks" else _one_by_one(document)
            service.keys.append(key)
            self.answer(204, b"", {})

        def troubled(self) -> bool:
            service.requests += 1
            if service.token and self.headers["Authorization"] != f"Bearer {service.token}":
                self.problem(401, {"title": "Who are you?"})
                return True
            trouble = service.passing.pop(0) if service.passing else None
            if trouble is not None and trouble.isdecimal():
                pause = {"Retry-After": service.retry_after} if service.retry_after else {}
                self.answer(int(trouble), b"busy", pause)
            elif trouble == "hang up":
                self.close_connection = True
            elif trouble == "mute":
                service.stopping.wait(60)
                self.close_connection = True
            elif trouble in ("no body", "half a body"):
                self.body_share = 0.0 if trouble == "no body" else 0.5
                self.close_connection = True
                return False
            return trouble is not None

        def problem(self, status: int, fields: dict[str, str]) -> None:
            body = json.dumps(fields).encode()
            self.answer(status, body, {"Content-Type": "application/problem+json; charset=utf-8"})

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: int(len(body) * self.body_share)])

    class Server(ThreadingHTTPServer):
        daemon_threads = False

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that is gone is no trouble of a test."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    service.url = f"http://127.0.0.1:{server.server_address[1]}/base/"
    try:
        yield service
    finally:
        service.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _one_by_one(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The equal requests of the same ranks, one by one."""
    ranks = document.pop("ranks")
    times = document.pop("measured_ms", [None] * len(ranks))
    return [
        {**document, "rank": rank, **({} if ms is None else {"measured_ms": ms})}
        for rank, ms in zip(ranks, times, strict=True)
    ]
