"""``seqplan`` commands as processes, forked from one that has imported them all.

A fresh interpreter takes one to two seconds to import a service. What comes after that is the same
here: a process with separate arguments, environment, folder and streams, which runs
``python -m seqplan.api.cli``, gets signals and is killed. What Python reads when it starts (its
``PYTHON…`` variables) is that of the tests; commands that need another are started afresh, by
``command_line.fresh_process``.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

PROGRAM = Path(__file__).with_name("command_template.py")
_ORDERS = threading.Lock()


class CommandProcess:
    """A command that runs: what ``subprocess.Popen`` has, for streams of text."""

    def __init__(
        self,
        *arguments: str | Path | int,
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | int | None = None,
        environment: Mapping[str, str] | None = None,
        start_new_session: bool = False,
    ) -> None:
        """Start ``seqplan arguments…``; ``stdout`` and ``stderr`` as in ``subprocess.Popen``,
        ``environment``: variables in addition to those of this process."""
        self.args = [str(argument) for argument in arguments]
        self.returncode: int | None = None
        self.stdout, out = _stream(stdout, 1)
        self.stderr, err = _stream(stderr, 2)
        self._ends, ends = socket.socketpair()
        order = {
            "arguments": self.args,
            "environment": {**os.environ, **(environment or {})},
            "folder": os.getcwd(),
            "session": start_new_session,
        }
        text = json.dumps(order).encode()
        with _ORDERS:
            template = _template()
            template.sendall(len(text).to_bytes(4, "big"))
            socket.send_fds(template, [text[:1]], [0, out, err, ends.fileno()])
            template.sendall(text[1:])
        ends.close()
        for end, stream in ((out, stdout), (err, stderr)):
            if stream in (subprocess.PIPE, subprocess.DEVNULL):
                os.close(end)
        self._said = self._ends.makefile("r", encoding="ascii")
        self.pid = int(self._said.readline())

    def poll(self) -> int | None:
        """How the command ended, None while it runs."""
        if self.returncode is None and select.select([self._ends], [], [], 0)[0]:
            self._collect()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the command has ended; ``subprocess.TimeoutExpired`` when it has not."""
        if self.returncode is None:
            if not select.select([self._ends], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._collect()
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What the command still writes on stdout and stderr until it has ended."""
        limit = None if timeout is None else time.monotonic() + timeout
        written = {stream: b"" for stream in (self.stdout, self.stderr) if stream is not None}
        with selectors.DefaultSelector() as streams:
            for stream in written:
                streams.register(stream, selectors.EVENT_READ)
            while streams.get_map():
                left = None if limit is None else limit - time.monotonic()
                ready = streams.select(left)
                if not ready:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                for key, _ in ready:
                    part = os.read(key.fd, 1 << 16)
                    if not part:
                        streams.unregister(key.fileobj)
                    written[key.fileobj] += part  # type: ignore[index]
        self.wait(None if limit is None else max(limit - time.monotonic(), 0))
        self._close()
        out, err = (written.get(stream, b"").decode() for stream in (self.stdout, self.stderr))
        return out, err

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the command has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> CommandProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self.wait()

    def _collect(self) -> None:
        """Receive how the command has ended."""
        self.returncode = int(self._said.readline())
        self._said.close()
        self._ends.close()

    def _close(self) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()


def _stream(stream: IO[Any] | int | None, number: int) -> tuple[IO[Any] | None, int]:
    """What this process reads, and what the command has as stream ``number``."""
    if stream is None:
        return None, number
    if stream == subprocess.PIPE:
        reads, writes = os.pipe()
        return os.fdopen(reads), writes
    if stream == subprocess.DEVNULL:
        return None, os.open(os.devnull, os.O_WRONLY)
    assert not isinstance(stream, int)
    return None, stream.fileno()


@functools.cache
def _template() -> socket.socket:
    """Return the template process's socket; started at first use."""
    here, there = socket.socketpair()
    with there:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(there.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[there.fileno()],
        )

    def end() -> None:
        here.close()
        process.wait()

    atexit.register(end)
    return here
