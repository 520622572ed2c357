"""Processes of a training check, started together and never left behind."""

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

GRACE_S = 1.0
"""How long the other ranks have to say what they know after a first failure."""

Message = Mapping[str, Any]


class RankProcesses:
    """``python -m module arguments…`` once for each entry of ``environments``.

    A process writes messages to its stdout, one JSON object a line, ``done`` or ``error`` at its
    end. Its stdin is a pipe that closes when this process ends, however it ends. ``folder``: for
    files that they share, gone when they are. Made by ``started``.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._said: queue.SimpleQueue[tuple[int, Message | None]] = queue.SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._names: list[str] = []
        self._logs: list[IO[bytes]] = []

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        name: str | None = None,
    ) -> int:
        """Start one more process, ``rank N`` where it has no other name; its number N."""
        number = len(self._processes)
        log = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 - closed by end()
        self._logs.append(log)
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **environment},
            start_new_session=True,  # Ctrl-C is this process's to handle
        )
        self._processes.append(process)
        self._names.append(f"rank {number}" if name is None else name)
        threading.Thread(target=self._read, args=(number, process), daemon=True).start()
        return number

    def tell(self, number: int, text: str) -> None:
        """Write a line to a process; nothing where it is gone, as its end is noticed anyway."""
        stdin = self._processes[number].stdin
        assert stdin is not None
        with suppress(BrokenPipeError):
            stdin.write(text.encode() + b"\n")
            stdin.flush()

    def messages(self, numbers: Sequence[int]) -> Iterator[tuple[int, Message]]:
        """What these processes say, ``done`` included, until all of them are done.

        ``ValueError`` for bad input and ``RuntimeError`` for any other failure that one of them
        tells or dies of.
        """
        waiting = set(numbers)
        while waiting:
            number, message = self._said.get()
            if message is None:
                if number in waiting:
                    raise self._failure(number, None)
            elif "error" in message:
                raise self._failure(number, message)
            else:
                if "done" in message:
                    waiting.discard(number)
                yield number, message

    def end(self) -> None:
        """Kill what still runs. Idempotent."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()
            with suppress(BrokenPipeError):
                assert process.stdin is not None
                process.stdin.close()
        for log in self._logs:
            log.close()

    def _read(self, number: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                # What a killed process wrote last may be cut off; its end follows.
                with suppress(ValueError):
                    self._said.put((number, json.loads(line)))
        self._said.put((number, None))

    def _failure(self, number: int, message: Message | None) -> Exception:
        """The error that explains the others: a death first, then bad input, then the rest."""
        messages = [(number, message)]
        deadline = time.monotonic() + GRACE_S
        while (left := deadline - time.monotonic()) > 0 and len(messages) < len(self._processes):
            try:
                messages.append(self._said.get(timeout=left))
            except queue.Empty:
                break
        failed = {who for who, said in messages if said is not None and "error" in said}
        for who, said in messages:
            if said is None and who not in failed:
                return RuntimeError(f"{self._names[who]} {self._death(who)}")
        errors = [said for _, said in messages if said is not None and "error" in said]
        for said in errors:
            if said["input"]:
                return ValueError(said["error"])
        return RuntimeError(f"{self._names[number]}: {errors[0]['error']}")

    def _death(self, number: int) -> str:
        code = self._processes[number].wait()
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}; is there enough memory?"
        log = self._logs[number]
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines()
        return f"ended with code {code}: {lines[-1] if lines else 'it said nothing'}"


@contextmanager
def started() -> Iterator[RankProcesses]:
    """No processes yet, in a block at whose end there are none again."""
    with tempfile.TemporaryDirectory(prefix="seqplan-") as folder:
        processes = RankProcesses(folder)
        try:
            yield processes
        finally:
            processes.end()


def rank_environment(rank: int, world_size: int) -> dict[str, str]:
    """What a rank on this machine needs to know: gloo over loopback, one thread."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": loopback,
    }
