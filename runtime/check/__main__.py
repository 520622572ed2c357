"""Process of a training check, which forks the ranks and the reference.

Started by the command line as ``python -m seqplan.runtime.check``. It imports what they need, which
takes longer than a short check, and then serves checks one after another: each is a line of stdin,
the ``CheckSettings`` as a JSON object. Messages of a process are on stdout, one
JSON object a line with its number as ``process``; the last one has ``ended``, its
exit code, and ``log``, the last line that it printed. At the end of stdin, which is the command's,
this process ends and those that it has forked end with it, so that none is left behind.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

import torch._dynamo  # noqa: F401 - an optimizer imports it, which takes seconds

from seqplan.runtime.check.processes import CheckSettings, log_path, run_process

# Elsewhere than on Linux libraries are not safe to fork: there each process imports for itself.
CONTEXT: ForkContext | SpawnContext = (
    get_context("fork") if sys.platform == "linux" else get_context("spawn")
)
STDIN = 0


@dataclass
class _Child:
    """A process of the check that runs, and this end of the pipe to it."""

    number: int
    process: BaseProcess
    pipe: Connection


def main() -> int:
    """Serve checks until stdin ends."""
    messages = _MessageWriter()
    while line := sys.stdin.readline():
        settings = CheckSettings(**json.loads(line))
        children = [_start(settings, number) for number in range(settings.ranks + 1)]
        try:
            _serve(settings, children, messages)
        except BrokenPipeError:  # nobody listens any more
            return 1
        finally:
            for child in children:
                child.process.kill()
                child.process.join()
                child.pipe.close()
    return 0


def _start(settings: CheckSettings, number: int) -> _Child:
    here, there = CONTEXT.Pipe()
    with there:
        process = CONTEXT.Process(target=run_process, args=(settings, number, there), daemon=True)
        process.start()
    return _Child(number, process, here)


def _serve(settings: CheckSettings, children: list[_Child], messages: _MessageWriter) -> None:
    """Forward the processes' messages until all have ended, or stdin has."""
    speaking: dict[Any, _Child] = {child.pipe: child for child in children}
    while speaking:
        for ready in wait([STDIN, *speaking]):
            if ready == STDIN:
                return
            child = speaking[ready]
            try:
                message = child.pipe.recv()
            except (EOFError, OSError):  # reset, if it has unread input
                del speaking[ready]
                child.process.join()
                messages.write(
                    process=child.number,
                    ended=child.process.exitcode,
                    log=_last_line(settings, child),
                )
                continue
            if "port" in message:
                for other in children[1 : settings.ranks]:
                    with suppress(BrokenPipeError):  # its end is reported
                        other.pipe.send(message["port"])
            else:
                messages.write(process=child.number, **message)


def _last_line(settings: CheckSettings, child: _Child) -> str:
    try:
        text = log_path(settings, child.number).read_text("utf-8", "replace")
    except OSError:  # it died before it made one
        return ""
    return next(iter(reversed(text.strip().splitlines())), "")


class _MessageWriter:
    """Writes messages to the original stdout; other output there goes to stderr."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def write(self, **message: Any) -> None:
        """Write a message."""
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()


if __name__ == "__main__":
    sys.exit(main())
