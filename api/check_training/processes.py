"""The processes of training checks: forked from one that is started here, and never left behind."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

GRACE_S = 1.0
"""Time for the other processes to report their errors after a first failure."""

MODULE = "seqplan.runtime.check"

Message = Mapping[str, Any]


class RankServer:
    """A process that imports the ranks' modules once and forks the ranks of each check.

    ``folder``: for files that all of them share, gone when they are. Made by ``rank_server``.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._said: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._log = open(os.path.join(folder, "server.log"), "w+b")  # noqa: SIM115 - by end()
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,  # which closes when this process ends, however it ends
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **_environment()},
            start_new_session=True,  # Ctrl-C is this process's to handle
        )
        self._reader = threading.Thread(target=self._read, name="ranks", daemon=True)
        self._reader.start()

    def messages(self, settings: Mapping[str, Any]) -> Iterator[tuple[int, Message]]:
        """Run a check, ``CheckSettings`` by name; yield its processes' messages, by number.

        Numbered are the ranks, then the one process. ``done`` is each one's last message, and
        when this ends all of them have ended. ``ValueError`` for bad input and ``RuntimeError``
        for any other failure that one of them reports or dies of; others may still run then.
        """
        ranks: int = settings["ranks"]
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(BrokenPipeError):  # its end is noticed anyway
            stdin.write(json.dumps(settings).encode() + b"\n")
            stdin.flush()
        running, explained = set(range(ranks + 1)), set[int]()
        while running:
            message = self._said.get()
            if message is None or "error" in message:
                raise self._failure(message, explained, ranks)
            number = message["process"]
            if "ended" not in message:
                if "done" in message:
                    explained.add(number)
                yield number, message
            elif number in explained:
                running.discard(number)
            else:
                raise self._failure(message, explained, ranks)

    def end(self) -> None:
        """Kill what still runs. Idempotent."""
        if self._process.returncode is None:  # not waited for: the number is still valid
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._reader.join()  # all that it has forked hold its stdout
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._log.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                # What a killed process wrote last may be cut off; its end follows.
                with suppress(ValueError):
                    self._said.put(json.loads(line))
        self._said.put(None)

    def _failure(self, message: Message | None, explained: set[int], ranks: int) -> Exception:
        """The error that explains the others: a death first, then bad input, then the rest.

        ``explained``: processes that have reported their error.
        """
        errors: list[Message] = []
        deadline = time.monotonic() + GRACE_S
        while message is not None:
            number = message["process"]
            if "ended" in message and number not in explained:
                return RuntimeError(_death(_name(number, ranks), message["ended"], message["log"]))
            if "error" in message:
                errors.append(message)
            if message.keys() & {"error", "done"}:
                explained.add(number)
            try:
                message = self._said.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
        for error in errors:
            if error["input"]:
                return ValueError(error["error"])
        if errors:
            return RuntimeError(f"{_name(errors[0]['process'], ranks)}: {errors[0]['error']}")
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return RuntimeError(_death("the process that starts ranks", code, "".join(lines[-1:])))


@contextmanager
def rank_server() -> Iterator[RankServer]:
    """Yield a rank server and end its processes and remove its files afterwards."""
    with tempfile.TemporaryDirectory(prefix="seqplan-") as folder:
        server = RankServer(folder)
        try:
            yield server
        finally:
            server.end()


def _name(number: int, ranks: int) -> str:
    return f"rank {number}" if number < ranks else "the one process"


def _death(who: str, code: int, last_line: str) -> str:
    if code < 0:
        return f"{who} was killed by {signal.Signals(-code).name}; is there enough memory?"
    return f"{who} ended with code {code}: {last_line or 'it printed nothing'}"


def _environment() -> dict[str, str]:
    """What ranks on one machine need to know: gloo over loopback, one thread."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    return {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": loopback}
