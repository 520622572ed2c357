"""Plans steps ahead, in workers or here, and hands them out in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future

from seqplan.planner.batches.batch import Batch
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.planner.workers.executor import ONE_WORKER, Workers, open_executor
from seqplan.planner.workers.planned_step import TimedPlan, plan_one
from seqplan.planner.workers.pool import WorkerPool


def produce(
    proposal: Proposal,
    batches: Iterable[Batch],
    *,
    options: PlanningOptions | None = None,
    workers: Workers | int | str = 1,
    look_ahead: int | None = None,
) -> Iterator[TimedPlan]:
    """Plan ``batches`` and yield their plans in order.

    At most ``look_ahead`` steps (default 2 per worker) are planned or waiting beyond the one handed
    out. ``workers``: processes, of which one is this one, or ``"ray:W"``. Raises what planning
    raises (``Infeasible``), at the step it belongs to, what iterating over ``batches`` raises,
    after the steps before it, ``WorkerDied``, and ``RayUnavailable``. Closing the generator ends
    the workers.
    """
    workers = Workers.parse(workers)
    workers.check_installed()
    if workers == ONE_WORKER:
        planner = StepPlanner(proposal, options)
        for batch in batches:
            yield plan_one(planner, batch)
        return
    ahead = 2 * workers.count if look_ahead is None else look_ahead
    if ahead < 1:
        raise ValueError(f"look-ahead must be 1 or more, not {ahead}")
    pool = open_executor(workers, proposal.to_json(), options or PlanningOptions())
    try:
        yield from _in_order(pool, iter(batches), ahead)
    finally:
        pool.stop()


def _in_order(pool: WorkerPool, batches: Iterator[Batch], ahead: int) -> Iterator[TimedPlan]:
    underway: deque[Future[TimedPlan]] = deque()
    ended = False
    failure: Exception | None = None
    while True:
        while not ended and len(underway) < ahead:
            try:
                underway.append(pool.submit(next(batches)))
            except StopIteration:
                ended = True
            except Exception as error:  # for the consumer, once the steps before it are out
                ended, failure = True, error
        if not underway:
            if failure is not None:
                raise failure
            return
        # Taken off before the wait: a step that is handed out does not count as ahead.
        yield underway.popleft().result()
