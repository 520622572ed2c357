"""Plans of single batches without a job: planning processes by proposal, turns by token."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from seqplan.api.rest.payloads.problems import Problem, require_row
from seqplan.api.service.service import Service
from seqplan.api.store.rows import ListedProposal, ProposalRow
from seqplan.api.store.tables.proposals import ready_document
from seqplan.planner.batches.batch import Batch
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.workers.executor import open_executor
from seqplan.planner.workers.planned_step import TimedPlan
from seqplan.planner.workers.pool import WorkerPool

MOST_POOLS = 4
"""Proposals whose planning processes are kept; the one that was idle for longest goes first."""

MOST_WAITING = 1024
"""Queries that may wait for a turn; more are answered with 503."""


class FairTurns:
    """Gives ``slots`` turns to those who wait, in rotation over their names.

    So that one token with many queries delays another's by one turn at most. Used on the event
    loop only.
    """

    def __init__(self, slots: int, most_waiting: int = MOST_WAITING) -> None:
        self._free = slots
        self._most_waiting = most_waiting
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def take(self, name: str) -> AsyncIterator[None]:
        """Wait for a turn, which lasts as long as the block; 503 if too many wait."""
        if self._free > 0:
            self._free -= 1
        else:
            await self._wait(name)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, name: str) -> None:
        if sum(map(len, self._waiting.values())) >= self._most_waiting:
            why = f"{self._most_waiting} queries wait already. Try again later"
            raise Problem(503, "busy", why)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            name = next(iter(self._waiting))
            turns = self._waiting.pop(name)
            turn = turns.popleft()
            if turns:
                self._waiting[name] = turns  # behind all others
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._free += 1


@dataclass(frozen=True)
class _Planners:
    """The planning processes of a proposal, and its longest sequence (tokens)."""

    executor: WorkerPool
    max_len: int


class PlanQueries:
    """Plans batches by proposals of the store; used on the event loop only."""

    def __init__(self, service: Service) -> None:
        self._service = service
        # One more than can be planned at once, so that no process waits for the event loop.
        self._turns = FairTurns(service.workers.count + 1)
        self._pools: dict[str, _Planners] = {}
        self._ready: set[str] = set()
        self._opening = asyncio.Lock()
        self._in_use: Counter[str] = Counter()

    async def plan(self, proposal: str, make_batch: Callable[[int], Batch], name: str) -> TimedPlan:
        """Plan a batch in the turn of ``name``. ``Problem``; ``Infeasible``.

        ``make_batch`` makes it, given the longest sequence that the proposal is for (tokens).
        """
        self._in_use[proposal] += 1  # its processes are kept while the query waits
        try:
            planners = await self._planners(proposal)
            batch = make_batch(planners.max_len)
            async with self._turns.take(name):
                return await asyncio.wrap_future(planners.executor.submit(batch))
        finally:
            self._in_use[proposal] -= 1

    def forget(self, proposal: str) -> None:
        """Read a proposal again before its next query, as it may be deleted. From any thread."""
        self._ready.discard(proposal)

    def stop(self) -> None:
        """End all planning processes."""
        for planners in self._pools.values():
            planners.executor.stop()
        self._pools.clear()

    async def _planners(self, proposal: str) -> _Planners:
        if proposal not in self._ready or proposal not in self._pools:
            self._ready.add(proposal)  # before it is read: forgotten meanwhile, it is read again
            await self._check_ready(proposal)
        async with self._opening:
            planners = self._pools.pop(proposal, None)
            if planners is None:
                if len(self._pools) >= MOST_POOLS:
                    await self._close_one()
                planners = await run_in_threadpool(self._open, proposal)
            self._pools[proposal] = planners  # the latest is the last
        return planners

    async def _check_ready(self, proposal: str) -> None:
        try:
            row = await run_in_threadpool(self._read, proposal)
            if row.state != "ready":
                raise Problem(409, "not-ready", f"proposal {proposal} is {row.state}")
        except BaseException:
            self._ready.discard(proposal)
            raise

    def _read(self, proposal: str) -> ListedProposal:
        return require_row(self._service.store, ListedProposal, proposal)

    def _open(self, proposal: str) -> _Planners:
        row = require_row(self._service.store, ProposalRow, proposal)
        document = ready_document(row)
        executor = open_executor(self._service.workers, document.to_json(), PlanningOptions())
        return _Planners(executor, document.workload.max_len)

    async def _close_one(self) -> None:
        idle = next((key for key in self._pools if not self._in_use[key]), None)
        if idle is None:
            raise Problem(503, "busy", f"{MOST_POOLS} proposals are in use. Try again later")
        await run_in_threadpool(self._pools.pop(idle).executor.stop)
