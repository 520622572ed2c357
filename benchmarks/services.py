"""A service or sidecar process of a benchmark, clients of it, and a PostgreSQL that is killed."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self


class Served:
    """``seqplan serve`` or ``sidecar`` on loopback, until the block ends.

    ``package``: a folder with the package of another release, None for this one.
    """

    def __init__(
        self, *arguments: object, cores: Sequence[int] = (), package: Path | None = None
    ) -> None:
        self.start(*arguments, cores=cores, package=package)

    def start(
        self, *arguments: object, cores: Sequence[int] = (), package: Path | None = None
    ) -> None:
        """Start the process, and wait until it serves."""
        other = {} if package is None else {"PYTHONPATH": str(package)}
        command = [sys.executable, "-m", "seqplan.api.cli", *map(str, arguments)]
        if cores:
            command = ["taskset", "--cpu-list", ",".join(map(str, cores)), *command]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, cwd=package, env=os.environ | other
        )
        assert self.process.stderr is not None
        stderr = ""
        while not (address := re.search(r"serving on http://(\S+):(\d+)", stderr)):
            line = self.process.stderr.readline()
            if not line:
                raise RuntimeError(f"the service did not start: {stderr}")
            stderr += line
        self.host, self.port = address[1], int(address[2])

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def cpu_s(self) -> float:
        """Count CPU seconds of the process and of its children, also of those that ended."""
        ticks = os.sysconf("SC_CLK_TCK")
        fields = dict(list_processes())
        parents = {process: int(of[1]) for process, of in fields.items()}
        spent = {process: sum(map(int, of[11:15])) for process, of in fields.items()}
        ours = {self.process.pid}
        while more := {child for child, parent in parents.items() if parent in ours} - ours:
            ours |= more  # the planner's processes come from a server of their kind
        return sum(spent.get(process, 0) for process in ours) / ticks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def kill(self) -> None:
        """SIGKILL, which nothing can prepare for."""
        self.process.kill()
        self._reap()

    def end(self) -> None:
        self.process.terminate()
        self._reap()

    def _reap(self) -> None:
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextmanager
def serve(
    *arguments: object,
    cores: Sequence[int] = (),
    prepare: Callable[[Path], object] = lambda store: None,
) -> Iterator[tuple[Served, Path]]:
    """Serve from a SQLite store in a temporary folder, after ``prepare``; also yield its path."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store.db"
        prepare(store)
        options = ("serve", "--port", 0, "--store", store, *arguments)
        with Served(*options, cores=cores) as served:
            yield served, store


def list_processes() -> Iterator[tuple[int, list[str]]]:
    """Yield the processes of this machine: number, and the kernel's fields after the name."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            yield int(path.parent.name), path.read_text().rpartition(")")[2].split()


@dataclass(frozen=True)
class Answered:
    """Status and body of an answer; ``at``: when all of it was here (perf_counter, s)."""

    status: int
    body: bytes
    at: float


class Client:
    """One connection, kept open, with one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, host: str, port: int) -> Client:
        return cls(*await asyncio.open_connection(host, port))

    async def send(self, method: str, path: str, body: bytes = b"") -> Answered:
        """Send a request and read the whole answer, which must have a Content-Length."""
        kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        line = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
        self._writer.write(f"{line}{kind}\r\n".encode() + body)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head[9:12])
        _, named, rest = head.partition(b"\r\ncontent-length:")
        length = int(rest.partition(b"\r\n")[0]) if named else 0
        answer = await self._reader.readexactly(length)
        return Answered(status, answer, time.perf_counter())

    def close(self) -> None:
        self._writer.close()

    async def post(self, path: str, body: object) -> Any:
        """Send a body as JSON, and return the answer's; it must be a success."""
        answer = await self.send("POST", path, json.dumps(body, default=int).encode())
        assert 200 <= answer.status < 300, answer
        return json.loads(answer.body or b"null")


@asynccontextmanager
async def connect(served: Served, clients: int) -> AsyncIterator[list[Client]]:
    """Connect this many clients, one after another, until the block ends."""
    connected = [await Client.connect(served.host, served.port) for _ in range(clients)]
    try:
        yield connected
    finally:
        for client in connected:
            client.close()


Request = Callable[[Client, int], Awaitable[Answered]]
"""A request of a client for a rank."""


def request_view(job: str, step: int) -> Request:
    """Return the request of a rank for its view, which waits for the plan."""
    path = f"/v1/jobs/{job}/plans/{step}/ranks/{{}}?wait=60"
    return lambda client, rank: client.send("GET", path.format(rank))


def request_acknowledgement(job: str, step: int, **fields: object) -> Request:
    """Return the request by which a rank acknowledges a step."""
    body = {"step": step, "digest": None, **fields}
    return lambda client, rank: client.send(
        "POST", f"/v1/jobs/{job}/acks", json.dumps({**body, "rank": rank}).encode()
    )


async def gather(clients: Sequence[Client], request: Request) -> list[Answered]:
    """Make a request of every client and rank at the same moment; all must succeed."""
    answers = await asyncio.gather(*(request(client, at) for at, client in enumerate(clients)))
    assert all(answer.status == 200 for answer in answers), answers
    return answers


_PATIENCE_S = 60.0


class KilledPostgresql:
    """A server on loopback, durable as by default, with its data in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        initdb = shutil.which("initdb")
        versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        if initdb is None and not versions:
            raise SystemExit("no PostgreSQL: install it (Debian, Ubuntu: apt install postgresql)")
        self._programs = Path(initdb).parent if initdb else versions[-1].parent
        self._user: str | None = None
        if os.getuid() == 0:  # as which it does not run
            names = {entry.pw_name for entry in pwd.getpwall()}
            self._user = "postgres" if "postgres" in names else "nobody"
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._port = listener.getsockname()[1]
        self.url = f"postgresql+psycopg://seqplan@127.0.0.1:{self._port}/postgres"

    def __enter__(self) -> KilledPostgresql:
        self._folder.mkdir()
        for folder in (self._folder, *list(self._folder.parents)[:1]):
            folder.chmod(0o755)
        if self._user is not None:
            owner = pwd.getpwnam(self._user)
            os.chown(self._folder, owner.pw_uid, owner.pw_gid)
        initdb = [str(self._programs / "initdb"), "-D", str(self._folder / "data")]
        subprocess.run(
            [*initdb, "-U", "seqplan", "-A", "trust", "-E", "UTF8"],
            check=True, capture_output=True, user=self._user, cwd=self._folder,
        )  # fmt: skip
        self._log: IO[bytes] = (self._folder / "log").open("ab")
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGQUIT)
        self._log.close()

    def kill_and_begin(self) -> None:
        """Kill the server with all of its processes, and begin it again."""
        self._end(signal.SIGKILL)
        self._begin()

    def _end(self, number: signal.Signals) -> None:
        processes = [self._server.pid]
        if number == signal.SIGKILL:  # its children are in separate sessions
            processes += [child for child, of in list_processes() if int(of[1]) == self._server.pid]
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, number)
        self._server.wait()
        while any(Path(f"/proc/{process}").exists() for process in processes):
            time.sleep(0.01)

    def _begin(self) -> None:
        import psycopg

        ends = time.monotonic() + _PATIENCE_S
        command = [
            *(str(self._programs / "postgres"), "-D", str(self._folder / "data")),
            *("-p", str(self._port), "-c", "listen_addresses=127.0.0.1"),
            *("-c", "unix_socket_directories="),
        ]
        self._server = subprocess.Popen(
            command,
            stdout=self._log, stderr=self._log, user=self._user, cwd=self._folder,
        )  # fmt: skip
        while True:
            try:
                psycopg.connect(host="127.0.0.1", port=self._port, user="seqplan",
                                dbname="postgres", connect_timeout=5).close()  # fmt: skip
                return
            except psycopg.OperationalError:
                assert self._server.poll() is None, self._folder
                assert time.monotonic() < ends
                time.sleep(0.05)
