"""The table of plans, with the sampler's state before each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, select

from seqplan.api.store import schema
from seqplan.api.store.rows import JobRow
from seqplan.api.store.store import notify
from seqplan.api.store.tables.jobs import key_of
from seqplan.api.store.tables.measurements import slowest_busy_ranks, slowest_ranks
from seqplan.planner.batches.sampler import SamplerState

_AT_ONCE = 500
"""Steps named in one query: databases bound the parameters of a statement."""


@dataclass(frozen=True)
class StoredPlan:
    """A plan's JSON line as it was published, with its digest."""

    step: int
    digest: str
    line: str


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step that has a plan.

    ``measured_ms``: of its slowest rank, None before any is measured. Ranks without work count
    until ``leave_out_idle_ranks``.
    """

    step: int
    digest: str
    planning_ms: float
    measured_ms: float | None
    ranks_measured: int


def add_plan(
    connection: Connection,
    job: str,
    plan: StoredPlan,
    planning_ms: float,
    state: SamplerState | None = None,
) -> None:
    """Keep a plan. Only after this may it be handed out.

    ``state``: of the sampler before the step.
    """
    values = {**asdict(plan), "job": key_of(job), "planning_ms": planning_ms}
    if state is not None:
        values |= {"epoch": state.epoch, "cursor": state.cursor}
    connection.execute(insert(schema.plans).values(values))
    notify(connection, job)


def get_plan(connection: Connection, job: str, step: int) -> StoredPlan | None:
    """Read the plan of a step, if it is planned."""
    table = schema.plans
    query = select(table.c.step, table.c.digest, table.c.line)
    row = connection.execute(query.where(table.c.job == key_of(job), table.c.step == step)).first()
    return None if row is None else StoredPlan(*row)


def digests(connection: Connection, job: str, steps: Iterable[int]) -> dict[int, str]:
    """Return the digest of each of these steps' plans, for those that have one."""
    return dict(_by_step(connection, job, steps, schema.plans.c.digest))


def plan_lines(connection: Connection, job: str, steps: Iterable[int]) -> dict[int, str]:
    """Return the JSON line of each of these steps' plans, for those that have one."""
    return dict(_by_step(connection, job, steps, schema.plans.c.line))


def last_planned(connection: Connection, job: str) -> int | None:
    """Return the last step that has a plan."""
    query = select(func.max(schema.plans.c.step)).where(schema.plans.c.job == key_of(job))
    return connection.execute(query).scalar()


def list_planned_steps(connection: Connection, job: str) -> list[int]:
    """Return the steps that have a plan, ascending."""
    table = schema.plans
    query = select(table.c.step).where(table.c.job == key_of(job))
    return list(connection.execute(query.order_by(table.c.step)).scalars())


def count_planned_beyond(connection: Connection, job: str, step: int) -> int:
    """Count the steps beyond ``step`` that have a plan."""
    table = schema.plans
    query = select(func.count()).where(table.c.job == key_of(job), table.c.step > step)
    return int(connection.execute(query).scalar_one())


def read_planned_page(
    connection: Connection, job: str, after: int, limit: int
) -> list[PlannedStep]:
    """Read the first ``limit`` planned steps beyond ``after``, ascending, without their plans."""
    table = schema.plans
    query = select(table.c.step, table.c.digest, table.c.planning_ms)
    here = query.where(table.c.job == key_of(job), table.c.step > after)
    rows = connection.execute(here.order_by(table.c.step).limit(limit)).all()
    if not rows:
        return []
    measured = slowest_ranks(connection, job, rows[0].step, rows[-1].step)
    return [
        PlannedStep(step, digest, planning_ms, *measured.get(step, (None, 0)))
        for step, digest, planning_ms in rows
    ]


def leave_out_idle_ranks(
    connection: Connection,
    job: str,
    steps: Sequence[PlannedStep],
    idle: Mapping[int, tuple[int, ...]],
) -> list[PlannedStep]:
    """Leave out times of ranks without work; ``idle``: these ranks by step."""
    by_ranks: dict[tuple[int, ...], list[int]] = {}
    for step in steps:
        if step.ranks_measured and idle[step.step]:
            by_ranks.setdefault(idle[step.step], []).append(step.step)
    busy: dict[int, tuple[float | None, int]] = {}
    for ranks, numbers in by_ranks.items():
        busy |= dict.fromkeys(numbers, (None, 0))
        for begin in range(0, len(numbers), _AT_ONCE):
            some = numbers[begin : begin + _AT_ONCE]
            busy |= slowest_busy_ranks(connection, job, some, ranks)
    measured = {step.step: (step.measured_ms, step.ranks_measured) for step in steps} | busy
    return [
        PlannedStep(step.step, step.digest, step.planning_ms, *measured[step.step])
        for step in steps
    ]


def iterate_planned(
    connection: Connection, job: str, after: int
) -> Iterator[tuple[PlannedStep, str]]:
    """Yield the planned steps beyond ``after``, ascending, each with its plan's JSON line."""
    while steps := read_planned_page(connection, job, after, _AT_ONCE):
        lines = plan_lines(connection, job, [step.step for step in steps])
        yield from ((step, lines[step.step]) for step in steps)
        after = steps[-1].step


def read_latest_state(connection: Connection, row: JobRow, step: int) -> SamplerState:
    """Return the sampler's latest state at or before ``step`` that is kept."""
    latest = SamplerState(row.first_step, row.first_epoch, row.first_cursor)
    for table in (schema.plans, schema.sampler_states):
        query = select(table.c.step, table.c.epoch, table.c.cursor)
        with_state = query.where(
            table.c.job == key_of(row.id), table.c.step <= step, table.c.epoch.is_not(None)
        )
        found = connection.execute(with_state.order_by(table.c.step.desc()).limit(1)).first()
        if found is not None and found.step > latest.step:
            latest = SamplerState(*found)
    return latest


def _by_step(
    connection: Connection, job: str, steps: Iterable[int], column: Any
) -> Iterable[tuple[int, str]]:
    table = schema.plans
    wanted = list(steps)
    for begin in range(0, len(wanted), _AT_ONCE):
        some = table.c.step.in_(wanted[begin : begin + _AT_ONCE])
        query = select(table.c.step, column).where(table.c.job == key_of(job), some)
        for step, value in connection.execute(query):
            yield int(step), str(value)
