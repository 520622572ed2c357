"""A PostgreSQL server that is killed and begun again."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

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
            processes += _children(self._server.pid)
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


def _children(parent: int) -> list[int]:
    children = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                children.append(int(path.parent.name))
    return children
