"""This rank's steps of any plans: of a plan file, of a planning service's job, or made here.

Plans that are made on every rank, each on request, are for reinforcement learning, where lengths
are known after the rollout: nothing is fetched ahead.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from numbers import Integral
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

import torch.distributed as dist

from seqplan.plans.format.codec import digest
from seqplan.plans.format.plan_file import check_sound
from seqplan.plans.plan import Plan
from seqplan.plans.service_routes import JOBS
from seqplan.plans.views.rank_view import RankView, rank_view
from seqplan.runtime.communicators import raise_on_all_ranks
from seqplan.runtime.errors import PlanError
from seqplan.runtime.sources.acknowledgements import OUTAGE_S
from seqplan.runtime.sources.agreement import Record, State, find_fault, one_line
from seqplan.runtime.sources.consumer import AHEAD_BYTES, PlanConsumer, Step
from seqplan.runtime.sources.fan_out import open_job
from seqplan.runtime.sources.http_source import FAN_OUT_RANKS
from seqplan.runtime.sources.source import FileSource, PlanSource, place_plan

Prepared = TypeVar("Prepared")

Plans = str | os.PathLike[str] | PlanSource | Iterable[Plan]
"""A plan file, the URL of a planning service's job, a source, or plans made on every rank."""

TOKEN_VARIABLE = "SEQPLAN_TOKEN"


class Steps(Generic[Prepared]):
    """Iterates over this rank's steps, each agreed on by all ranks; ``steps`` makes it.

    A step is acknowledged to a planning service when the next one is requested, unless
    ``acknowledge`` has reported it before. Closes itself after the last step, after a failure and
    when nothing refers to it any more.
    """

    def __init__(
        self, agreed: Iterator[Step[Prepared]], consumer: PlanConsumer[Prepared] | None
    ) -> None:
        self._agreed, self._consumer = agreed, consumer
        self._unacknowledged: int | None = None
        self._acknowledged_here = -1
        self._closed = False
        # The consumer's threads do not refer to this object, and would outlive it.
        self._finalizer = None if consumer is None else weakref.finalize(self, consumer.close)
        if self._finalizer is not None:
            self._finalizer.atexit = False  # a process that has lost a rank ends at once

    def __iter__(self) -> Iterator[Step[Prepared]]:
        return self

    def __next__(self) -> Step[Prepared]:
        """Return the next step. Collective; ``PlanError`` on all ranks or on none."""
        if self._closed:
            raise StopIteration
        if self._consumer is not None and self._unacknowledged is not None:
            self._acknowledged_here = self._unacknowledged
            self._consumer.acknowledge(self._unacknowledged)
        try:
            step = next(self._agreed)
        except BaseException:
            self.close()
            raise
        self._unacknowledged = step.view.step
        return step

    def acknowledge(self, step: int, measured_ms: float | None = None) -> None:
        """Report that this rank has done ``step``, after its optimizer step.

        ``measured_ms``: time of its micro-batches (``StepResult.compute_s`` in ms), if it had any;
        a planning service compares it with the prediction. ``ValueError`` for a step that was not
        handed out or is reported already. Plan files and plans made here need no report.
        """
        if step == self._unacknowledged:
            self._unacknowledged = None
        elif step <= self._acknowledged_here:
            return
        if self._consumer is not None and not self._closed:
            self._consumer.acknowledge(step, measured_ms)

    def close(self) -> None:
        """End fetching ahead and send the last acknowledgements. Idempotent."""
        self._closed = True
        if self._finalizer is not None:
            self._finalizer()

    def __enter__(self) -> Steps[Prepared]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def steps(
    plans: Plans,
    *,
    prepare: Callable[[RankView], Prepared],
    control_group: dist.ProcessGroup | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    start_step: int = 0,
    token: str | None = None,
    fan_out_ranks: int = FAN_OUT_RANKS,
    outage_s: float = OUTAGE_S,
    queue_folder: str | os.PathLike[str] | None = None,
    prefetch: int = 2,
    timeout_s: float = OUTAGE_S,
    ahead_s: float | None = None,
    ahead_bytes: int = AHEAD_BYTES,
) -> Steps[Prepared]:
    """Iterate over this rank's steps of ``plans``, from ``start_step`` on. Collective.

    ``plans``: a plan file that every rank can read, a job of a planning service
    (``http://HOST:PORT/v1/jobs/JOB``), a source, or plans made on every rank, equal on all of them
    and each on request. ``prepare`` gets each view ahead of its step (``make_preparer``).
    ``control_group``: ``Communicators.control``, None for one rank. ``rank`` and ``world_size``
    are those of ``torch.distributed`` if None.

    For a service: ``token``, that of ``SEQPLAN_TOKEN`` if None; ``fan_out_ranks``: number of ranks
    from which rank 0 alone has a connection; ``outage_s`` and ``queue_folder`` as of
    ``HttpSource``. For a service and a file: ``prefetch``, ``timeout_s``, ``ahead_s`` and
    ``ahead_bytes`` as of ``PlanConsumer``.

    ``PlanError`` on every rank if plans cannot be opened, or a step cannot be had or prepared;
    ``TypeError`` for anything else than plans. Steps have no gap, and ``start_step`` is at most the
    step after the last.
    """
    if not isinstance(start_step, Integral):
        raise TypeError(f"start_step: {start_step!r}. Give the whole number of a step")
    if start_step < 0:
        raise ValueError(f"start_step: {start_step}. Give 0 or more")
    if rank is None:
        rank = dist.get_rank() if dist.is_initialized() else 0
    if world_size is None:
        world_size = dist.get_world_size() if dist.is_initialized() else 1
    source: Any = plans
    if isinstance(plans, (str, os.PathLike)):
        service: dict[str, Any] = {"token": token, "queue_folder": queue_folder}
        service |= {"fan_out_ranks": fan_out_ranks, "outage_s": outage_s}
        source = _open_on_all_ranks(plans, rank, world_size, control_group, service)
    if hasattr(source, "view"):
        consumer = PlanConsumer(
            source,
            rank=rank,
            world_size=world_size,
            prepare=prepare,
            control_group=control_group,
            start_step=start_step,
            prefetch=prefetch,
            timeout_s=timeout_s,
            ahead_s=ahead_s,
            ahead_bytes=ahead_bytes,
        )
        return Steps(consumer, consumer)
    if control_group is None and world_size > 1:
        raise ValueError(f"control_group: {world_size} ranks need one to agree")
    if not isinstance(source, Iterable):
        kind = type(source).__name__
        raise TypeError(f"plans must be a file, a job's URL or an iterable of plans, not {kind}")
    agreed = iterate_agreed_steps(
        source,
        rank=rank,
        world_size=world_size,
        prepare=prepare,
        control_group=control_group,
        start_step=start_step,
    )
    return Steps(agreed, None)


def iterate_agreed_steps(
    plans: Iterable[Plan],
    *,
    rank: int,
    world_size: int,
    prepare: Callable[[RankView], Prepared],
    control_group: dist.ProcessGroup | None,
    start_step: int = 0,
) -> Iterator[Step[Prepared]]:
    """Yield this rank's steps of ``plans``, an iterator that plans equally on every rank.

    Plans before ``start_step`` are passed over. ``PlanError`` on every rank if one fails or
    plans something else: with the number and the message of the first that does, or if the ranks'
    data differ at the first step. ``RankLost`` if another rank died.
    """
    following = iter(plans)
    expected = start_step
    before: int | None = None
    compared = False
    while True:
        step: Step[Prepared] | None = None
        cause: Exception | None = None
        try:
            plan = next(following, None)
            while plan is not None and _check_plan(plan, expected).step < expected:
                if compared:
                    after = f"step {plan.step} follows step {expected - 1}"
                    raise PlanError(f"{after}. Give each step once, in order")
                before, plan = plan.step, next(following, None)
            if before is not None:
                _check_number(plan, expected, before)
            elif start_step and plan is not None and plan.step > start_step:
                raise PlanError(
                    f"step {start_step}: has no plan, the first is of step {plan.step}. "
                    "Give the plans from there on"
                )
            if plan is None:
                record = Record(State.END, expected)
            else:
                step = _prepare(plan, rank, world_size, prepare)
                record = Record(State.READY, plan.step, step.view.digest or "")
        except Exception as error:
            record, cause = Record(State.FAILED, expected, message=one_line(error)), error
        view = None if compared or step is None else step.view
        fault = find_fault(record, control_group, prepare, view)
        compared = True
        if fault is not None:
            raise PlanError(fault) from cause
        if step is None:
            return
        before, expected = step.view.step, step.view.step + 1
        yield step


def _check_plan(plan: object, step: int) -> Plan:
    if not isinstance(plan, Plan):
        raise PlanError(f"step {step}: must be a Plan, not {type(plan).__name__}")
    return plan


def _check_number(plan: Plan | None, expected: int, before: int) -> None:
    """Reject a gap after step ``before``, and plans that end before ``expected``. ``PlanError``."""
    if plan is not None and plan.step != expected:
        raise PlanError(
            f"step {expected}: has no plan, the next one is of step {plan.step}. "
            "Give each step once, in order"
        )
    if plan is None and before + 1 < expected:
        raise PlanError(
            f"step {expected}: the plans end with step {before}. Start at {before + 1} at most"
        )


def _prepare(
    plan: Plan, rank: int, world_size: int, prepare: Callable[[RankView], Prepared]
) -> Step[Prepared]:
    check_sound(plan, f"step {plan.step}")
    placed = place_plan(plan, world_size, f"step {plan.step}")
    view = rank_view(placed, rank, digest=digest(plan))
    return Step(view, prepare(view))


def _open_on_all_ranks(
    plans: str | os.PathLike[str],
    rank: int,
    world_size: int,
    control_group: dist.ProcessGroup | None,
    service: dict[str, Any],
) -> PlanSource:
    """Open a source on every rank or on none: one without it would leave the others waiting."""
    source: PlanSource | None = None
    error_message: str | None = None
    try:
        source = _open(plans, world_size, service)
    except (ValueError, OSError) as error:
        error_message = " ".join(str(error).split())
        if control_group is None:
            raise PlanError(error_message) from None
        error_message = f"rank {rank}: {error_message}"
    if control_group is not None:
        try:
            raise_on_all_ranks(error_message, control_group, "opening the plans", PlanError)
        except BaseException:
            if source is not None:
                source.close()
            raise
    assert source is not None
    return source


def _open(plans: str | os.PathLike[str], world_size: int, service: dict[str, Any]) -> PlanSource:
    if not isinstance(plans, str) or "://" not in plans:
        return FileSource(plans, world_size=world_size)
    base, separator, job = plans.rstrip("/").partition(f"{JOBS}/")
    if not base.startswith(("http://", "https://")) or not separator or not job or "/" in job:
        raise PlanError(f"{plans}: a job's URL must be http://HOST:PORT/v1/jobs/JOB")
    if service["token"] is None:
        service = service | {"token": os.environ.get(TOKEN_VARIABLE)}
    return open_job(base, unquote(job), **service)
