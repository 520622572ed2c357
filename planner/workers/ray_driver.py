"""The driver of a Ray cluster: a process that passes steps from pipes to actors and answers back.

``RAY_ADDRESS`` names the cluster (``host:6379`` on a machine of it, ``ray://host:10001`` from
elsewhere, ``auto`` for the one on this machine). Without it a cluster of this machine alone is
started, and ended with the driver. A cluster that authenticates requires its ``RAY_AUTH_MODE`` and
``RAY_AUTH_TOKEN`` (or ``RAY_AUTH_TOKEN_PATH``) here, too, as Ray documents.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from seqplan.planner.batches.batch import Batch
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.planner.workers.planned_step import TimedPlan
from seqplan.planner.workers.processes import answer_of
from seqplan.plans.version import VERSION

ADDRESS = "RAY_ADDRESS"

_ACTOR_S = 300.0
"""How long an actor may wait for a CPU; clusters that grow by demand take minutes."""

_RETRY_S = 2.0
_RECONNECT_S = 10
_PORT_S = 10.0
_OBJECT_STORE_BYTES = 100 << 20
"""Of a local cluster; the largest object is the proposal's text."""


class RayUnavailable(RuntimeError):
    """No planning worker can be had from Ray; the message gives the reason."""


class ActorDied(Exception):
    """Among the answers: the actor has died, or its machine."""


def drive(
    pipes: list[Connection], patience_s: float, arguments: tuple[str, PlanningOptions]
) -> None:
    """Pass steps from pipes to actors until the parent process ends.

    Or until the parent terminates it. A cluster that cannot be joined is tried again for
    ``patience_s``. ``arguments``: of a planner.
    """
    _silence_ray()
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        start_worker = _connect(len(pipes), patience_s, *arguments)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # in place of Ray's handler
        for pipe in pipes:
            threading.Thread(target=_relay, args=(pipe, start_worker), daemon=True).start()
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if (ray := sys.modules.get("ray")) is not None:
            ray.shutdown()
        os._exit(0)  # whatever threads still wait for


def _silence_ray() -> None:
    """Keep Ray off the terminal and from usage statistics; it may keep its logs."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


class PlanningActor:
    """The methods of one actor; made with ``ray.remote`` by a driver of the same release."""

    def __init__(self, proposal: str, options: PlanningOptions) -> None:
        document = Proposal.from_json(proposal, "proposal")
        self._planner = StepPlanner(document, options)

    def version(self) -> str:
        return VERSION

    def plan(self, batch: Batch) -> TimedPlan | Exception:
        return answer_of(self._planner, batch)


_StartWorker = Callable[[], Any]
"""Returns an actor that is ready; ``RayUnavailable`` or ``ActorDied``."""


def _connect(
    workers: int,
    patience_s: float,
    proposal: str,
    options: PlanningOptions,
) -> _StartWorker:
    """Join the cluster, or start one; every attempt to start a worker raises a failure."""
    address = os.environ.get(ADDRESS, "")
    place = f"the Ray cluster at {address}" if address else "a Ray cluster of this machine"
    end = time.monotonic() + patience_s
    while True:
        try:
            return _worker_starter(_join(address, workers), place, proposal, options)
        except Exception as error:
            if time.monotonic() >= end:
                failure = RayUnavailable(f"cannot use {place}: {_in_short(error)}")
                break
            time.sleep(_RETRY_S)

    def fail() -> Any:
        raise failure

    return fail


def _join(address: str, workers: int) -> Any:
    if address:
        _check_port(address)
    else:
        # Known to this cluster alone; by itself Ray would keep one in the user's home.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        # A process that starts as the cluster ends looks for it, by itself for a minute.
        os.environ |= {"RAY_gcs_rpc_server_reconnect_timeout_s": str(_RECONNECT_S)}
    import ray  # which reads them as it is imported

    if address:
        ray.init(address, log_to_driver=False)
    else:
        ray.init(
            "local",
            num_cpus=workers,  # as Ray counts: on one machine any number of workers can be had
            num_gpus=0,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=_OBJECT_STORE_BYTES,
        )
    return ray


def _check_port(address: str) -> None:
    """Raise ``OSError`` if nothing listens; Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _PORT_S).close()


def _worker_starter(ray: Any, place: str, proposal: str, options: PlanningOptions) -> _StartWorker:
    remote = ray.remote(PlanningActor).options(num_cpus=1, max_restarts=0, max_task_retries=0)
    text = ray.put(proposal)

    def start_worker() -> Any:
        actor = remote.remote(text, options)
        try:
            version = ray.get(actor.version.remote(), timeout=_ACTOR_S)
        except ray.exceptions.GetTimeoutError:
            ray.kill(actor)
            raise RayUnavailable(
                f"{place} has had no free CPU for a planning worker for {_ACTOR_S:.0f} s"
                ". Free a CPU or use fewer workers"
            ) from None
        except ray.exceptions.ActorDiedError as error:
            if "creation task" not in str(error):
                raise ActorDied from None
            reason = str(error).strip().splitlines()[-1]
            raise RayUnavailable(
                f"{place} cannot start a planning worker, as its machines need seqplan {VERSION}: "
                f"{reason}"
            ) from None
        if version != VERSION:
            raise RayUnavailable(
                f"{place} has seqplan {version}, not {VERSION}. Install the same version"
            )
        return actor

    return start_worker


def _relay(pipe: Connection, start_worker: _StartWorker) -> None:
    """Serve one worker of the agent: pass steps from the pipe to an actor, answers back."""
    actor: Any = None
    while True:
        try:
            batch = pipe.recv()
        except (EOFError, OSError):
            return
        answer: TimedPlan | Exception | None
        try:
            if actor is None:
                actor = start_worker()
            answer = None if batch is None else _plan(actor, batch)
        except ConnectionError:
            os._exit(1)  # the cluster is gone, for all: a new agent tries to reach it again
        except ActorDied as error:
            actor, answer = None, error
        except RayUnavailable as error:
            answer = error
        except Exception as error:  # Ray's errors need not travel well
            answer = RayUnavailable(f"{type(error).__name__}: {_in_short(error)}")
        try:
            pipe.send(answer)
        except OSError:
            return


def _plan(actor: Any, batch: Batch) -> TimedPlan | Exception:
    import ray

    try:
        answer: TimedPlan | Exception = ray.get(actor.plan.remote(batch))
    except ray.exceptions.RayError as error:
        raise ActorDied from error
    return answer


def _in_short(error: Exception) -> str:
    """Cut Ray's messages to the first line, and the last after a colon."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{lines[0]} {lines[-1].strip()}" if lines[0].rstrip().endswith(":") else lines[0]
