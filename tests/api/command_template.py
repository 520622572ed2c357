"""A process that has imported what commands import, and forks itself into each that is ordered.

A program with the number of a socket as argument, through which orders come: see
``command_forks.py``. It has no threads, so that a fork of it is whole, and ends with that socket.
"""

import fcntl
import gc
import json
import multiprocessing.util
import os
import resource
import runpy
import selectors
import signal
import socket
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from seqplan.planner.bounds.linear_program import SOLVER

COMMAND = "seqplan.api.cli"
PLANNING = ("plan", "serve", "sidecar")
"""Commands that start planners, which are forked from a server with what they need imported."""
STREAMS = ("stdin", "stdout", "stderr")
IMPORTED = (
    f"{COMMAND}.framework.entry",
    "seqplan.api.rest.server",
    "seqplan.api.service.service",
    "seqplan.planner.proposal.make_proposal",
    "seqplan.planner.workers.pool",
    *SOLVER,
)


def main() -> None:
    """Fork until no more orders come; return in each fork, with its order carried out so far
    that the command can run."""
    orders = socket.socket(fileno=int(sys.argv[1]))
    # Ctrl-C is for the commands of its terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wakes, wake = socket.socketpair()
    for end in (wakes, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    running: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(orders, selectors.EVENT_READ)
        selector.register(wakes, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if wakes in ready:
                wakes.recv(1 << 10)
                tell_ends(running)
            if orders in ready:
                order = next_order(orders)
                if order is None:
                    os._exit(0)
                ends = socket.socket(fileno=order["streams"].pop())
                if pid := os.fork():
                    running[pid] = ends
                    for stream in order["streams"]:
                        os.close(stream)
                else:
                    break
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for end in (orders, wakes, wake, *running.values()):
        end.close()
    become(order)
    ends.sendall(b"%d\n" % os.getpid())
    ends.close()
    if order["arguments"][0] in PLANNING:
        fork_server_of_planners()


def next_order(orders: socket.socket) -> dict[str, Any] | None:
    """The next order with the ``streams`` that came with it: stdin, stdout, stderr, and where to
    report how the command ends."""
    size = orders.recv(4, socket.MSG_WAITALL)
    if len(size) < 4:
        return None
    text, streams, _, _ = socket.recv_fds(orders, 1, 4)
    text += orders.recv(int.from_bytes(size, "big") - 1, socket.MSG_WAITALL)
    return {**json.loads(text), "streams": streams}


def tell_ends(running: dict[int, socket.socket]) -> None:
    """Report ended commands to those who wait."""
    for pid, ends in list(running.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            ends.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
            del running[pid]
            ends.close()


def become(order: dict[str, Any]) -> None:
    """Have the streams, the session, the folder, the environment and the arguments ordered."""
    for number, (name, stream) in enumerate(zip(STREAMS, order["streams"], strict=True)):
        os.dup2(stream, number)
        os.close(stream)
        kind: dict[str, Any] = {"closefd": False, "mode": "r" if name == "stdin" else "w"}
        if name == "stderr":
            kind |= {"buffering": 1, "errors": "backslashreplace"}
        setattr(sys, name, open(number, **kind))  # noqa: SIM115
    if order["session"]:
        os.setsid()
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = [sys.argv[0], *order["arguments"]]


def fork_server_of_planners() -> None:
    """Fork a server of planners, for commands that start one, before there are threads.

    It has imported a server's modules, a second of work, and waits till then."""
    orders, waiting = socket.socketpair()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as in started commands
    if (pid := os.fork()) == 0:
        orders.close()
        serve_planners(waiting)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    waiting.close()
    start = multiprocessing.util.spawnv_passfds

    def forked_or_started(path: Any, arguments: Sequence[Any], descriptors: Sequence[int]) -> int:
        program = str(arguments[-1])
        if "multiprocessing.forkserver" not in program or orders.fileno() < 0:
            return start(path, arguments, descriptors)
        socket.send_fds(orders, [json.dumps([program, *descriptors]).encode()], descriptors)
        orders.close()
        return pid

    multiprocessing.util.spawnv_passfds = forked_or_started


def serve_planners(waiting: socket.socket) -> None:
    """Run the ordered program with the descriptors that it names; end without an order."""
    text, received, _, _ = socket.recv_fds(waiting, 1 << 16, 8)
    if text:
        program, *numbers = json.loads(text)
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = max(*numbers, *received, 2) + 1
        copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, free) for descriptor in received]
        waiting.detach()  # its number may soon be another's
        os.closerange(3, free)
        for copy, number in zip(copies, numbers, strict=True):
            os.dup2(copy, number)
        os.closerange(free, most)
        exec(program, {})
    os._exit(0)


if __name__ == "__main__":
    gc.disable()  # each collection would walk all that is imported so far
    for module in IMPORTED:
        import_module(module)
    gc.collect()
    gc.freeze()
    gc.enable()
    main()
    runpy.run_module(COMMAND, run_name="__main__", alter_sys=True)
