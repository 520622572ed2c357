"""Real ranks for tests: one spawned process each, joined by gloo over loopback.

The functions that are run must be importable (top level of a module) and so must their arguments
and results be picklable.
"""

import gc
import os
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context, set_forkserver_preload
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

# Processes are forked from a server that has imported torch and nothing else has happened in: a
# rank starts in a fraction of the seconds that importing torch takes. One server forks the planners
# of this process, too, whichever of them is first; in a checkout it has the template.
set_forkserver_preload(
    ["tests.runtime.rank_template", "torch", "seqplan.planner.workers.processes"]
)
FORKED = get_context("forkserver")


@dataclass(frozen=True)
class _Outcome:
    """How a rank ended: its result, or what it raised, as a line and as a traceback."""

    value: Any = None
    error: str | None = None
    trace: str = ""


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout_s: float = 60,
    dying: frozenset[int] = frozenset(),
) -> list[Any]:
    """``function(rank, world_size, *args)`` on every rank; the results in rank order.

    Each process has the default gloo group and one torch thread. ``AssertionError`` with the
    traceback of the first rank that fails, or naming the ranks that are silent after
    ``timeout_s``. The ``dying`` ranks may end without a result, which is None then. No process is
    left behind.
    """
    outcomes = _run(function, world_size, args, timeout_s, stop_at_failure=True, dying=dying)
    return [outcome.value for outcome in outcomes]


def run_ranks_expecting_failure(
    function: Callable[..., Any], world_size: int, *args: Any, timeout_s: float = 60
) -> list[str]:
    """As ``run_ranks`` where every rank must raise: ``Type: message`` of each, in rank order.

    ``AssertionError`` where a rank returns, dies without raising, or is silent.
    """
    outcomes = _run(function, world_size, args, timeout_s, stop_at_failure=False)
    texts = []
    for rank, outcome in enumerate(outcomes):
        assert outcome.error is not None, f"rank {rank} did not fail, it gave {outcome.value!r}"
        texts.append(outcome.error)
    return texts


def _run(
    function: Callable[..., Any],
    world_size: int,
    args: tuple[Any, ...],
    timeout_s: float,
    *,
    stop_at_failure: bool,
    dying: frozenset[int] = frozenset(),
) -> list[_Outcome]:
    # The store listens here, on a port that the system chooses: no rank can lose a race for it.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ours: list[Connection] = []
    processes = []
    outcomes: dict[int, _Outcome] = {}
    deadline = time.monotonic() + timeout_s
    try:
        for rank in range(world_size):
            here, there = FORKED.Pipe()
            process = FORKED.Process(
                target=_rank_main,
                args=(there, function, rank, world_size, store.port, timeout_s, args),
                daemon=True,
            )
            process.start()
            there.close()
            ours.append(here)
            processes.append(process)
        while len(outcomes) < world_size:
            waiting = {ours[rank]: rank for rank in range(world_size) if rank not in outcomes}
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            assert ready, f"ranks {sorted(waiting.values())} are silent after {timeout_s} s"
            for connection in ready:
                rank = waiting[connection]  # type: ignore[index]
                if rank in dying:
                    with suppress(EOFError):
                        connection.recv()  # type: ignore[union-attr]
                    outcomes[rank] = _Outcome()
                    continue
                outcome = _received(ours[rank], rank, processes[rank])
                assert outcome.error is None or not stop_at_failure, (
                    f"rank {rank} failed:\n{outcome.trace}"
                )
                outcomes[rank] = outcome
        for connection in ours:
            with suppress(BrokenPipeError):
                connection.send("all have reported")
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        stuck = [rank for rank, process in enumerate(processes) if process.exitcode is None]
        assert not stuck, f"ranks {stuck} reported but did not end within {timeout_s} s"
        codes = [process.exitcode for rank, process in enumerate(processes) if rank not in dying]
        assert stop_at_failure is False or not any(codes), f"exit codes {codes}"
    finally:
        for process in processes:
            if process.exitcode is None:
                process.kill()
            process.join()
            process.close()
        for connection in ours:
            connection.close()
    return [outcomes[rank] for rank in range(world_size)]


def _received(connection: Connection, rank: int, process: Any) -> _Outcome:
    try:
        outcome: _Outcome = connection.recv()
    except EOFError:
        process.join(5)
        raise AssertionError(f"rank {rank} died, exit code {process.exitcode}") from None
    return outcome


def _rank_main(
    connection: Connection,
    function: Callable[..., Any],
    rank: int,
    world_size: int,
    port: int,
    timeout_s: float,
    args: tuple[Any, ...],
) -> None:
    gc.freeze()  # what the server has imported: walking it would copy its pages
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        limit = timedelta(seconds=timeout_s)
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=world_size, timeout=limit
        )
        outcome = _Outcome(value=function(rank, world_size, *args))
    except BaseException as error:
        outcome = _Outcome(error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
    connection.send(outcome)
    # Ranks leave together: one that left early would fail the others with a lost connection,
    # which would hide their errors.
    with suppress(EOFError):
        connection.recv()
    if dist.is_initialized():
        dist.destroy_process_group()
