"""A PostgreSQL server for the tests, from the system's packages, on loopback."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from free_port import free_port

ABSENT = "no PostgreSQL: install it (Debian, Ubuntu: apt install postgresql)"
PATIENCE_S = 60.0


def programs() -> Path | None:
    """The folder of ``initdb`` and ``postgres``; None if it is not installed."""
    if program := shutil.which("initdb"):
        return Path(program).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return versions[-1].parent if versions else None


@contextmanager
def postgresql() -> Iterator[str]:
    """The URL of an empty database, gone with its server when the block ends."""
    where = programs()
    assert where is not None, ABSENT
    user = _user()
    folder = Path(tempfile.mkdtemp(prefix="seqplan-postgresql-"))
    data, log = folder / "data", folder / "log"
    port = free_port()
    try:
        if user is not None:
            os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        completed = subprocess.run(
            [where / "initdb", "-D", data, "-U", "seqplan", "-A", "trust", "-E", "UTF8", "-N"],
            capture_output=True, text=True, user=user, cwd=folder, check=False,
        )  # fmt: skip
        assert completed.returncode == 0, completed.stderr
        with log.open("wb") as output:
            server = subprocess.Popen(
                [where / "postgres", "-D", data, "-p", str(port), "-c", "fsync=off",
                 "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="],
                stdout=output, stderr=output, user=user, cwd=folder,
            )  # fmt: skip
        try:
            _await(port, server, log)
            yield f"postgresql+psycopg://seqplan@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
            server.wait(PATIENCE_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _user() -> str | None:
    """The user of the server, which does not run as root."""
    if os.getuid() != 0:
        return None
    return "postgres" if "postgres" in {entry.pw_name for entry in pwd.getpwall()} else "nobody"


def _await(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg

    ends = time.monotonic() + PATIENCE_S
    while True:
        try:
            psycopg.connect(host="127.0.0.1", port=port, user="seqplan", dbname="postgres").close()
            return
        except psycopg.OperationalError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < ends, log.read_text()
            time.sleep(0.05)
