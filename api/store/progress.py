"""What the steps of a job were planned as, how far they are and what they took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, literal, select

from seqplan.api.store import schema

_AT_ONCE = 500
"""Steps named in one query: databases bound the parameters of a statement."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step that has a plan; ``measured_ms``: of its slowest rank, None before any is measured."""

    step: int
    digest: str
    planning_ms: float
    measured_ms: float | None
    ranks_measured: int


def planned_page(connection: Connection, job: str, after: int, limit: int) -> list[PlannedStep]:
    """The first ``limit`` planned steps beyond ``after``, ascending, without their plans."""
    table, times = schema.plans, schema.measurements
    query = select(table.c.step, table.c.digest, table.c.planning_ms)
    here = query.where(table.c.job == job, table.c.step > after)
    rows = connection.execute(here.order_by(table.c.step).limit(limit)).all()
    if not rows:
        return []
    slowest = select(times.c.step, func.max(times.c.measured_ms), func.count())
    between = (times.c.job == job, times.c.step >= rows[0].step, times.c.step <= rows[-1].step)
    found = connection.execute(slowest.where(*between).group_by(times.c.step))
    measured = {int(step): (float(ms), int(ranks)) for step, ms, ranks in found}
    return [
        PlannedStep(step, digest, planning_ms, *measured.get(step, (None, 0)))
        for step, digest, planning_ms in rows
    ]


def digests(connection: Connection, job: str, steps: Iterable[int]) -> dict[int, str]:
    """The digest of each of these steps' plans, for those that have one."""
    return dict(_by_step(connection, job, steps, schema.plans.c.digest))


def plan_lines(connection: Connection, job: str, steps: Iterable[int]) -> dict[int, str]:
    """The JSON line of each of these steps' plans, for those that have one."""
    return dict(_by_step(connection, job, steps, schema.plans.c.line))


def measurements_page(
    connection: Connection, job: str, after: tuple[int, int], limit: int
) -> list[tuple[int, int, float]]:
    """The first ``limit`` (step, rank, measured ms) beyond ``after``, a (step, rank)."""
    table = schema.measurements
    query = select(table.c.step, table.c.rank, table.c.measured_ms).where(
        table.c.job == job,
        table.c.step >= after[0],
        (table.c.step > after[0]) | (table.c.rank > after[1]),
    )
    ordered = query.order_by(table.c.step, table.c.rank).limit(limit)
    return [(int(s), int(r), float(ms)) for s, r, ms in connection.execute(ordered)]


def last_acknowledged(connection: Connection, job: str, world_size: int) -> list[int]:
    """The last step that each rank has acknowledged, −1 where it has said nothing.

    One look into the index for each rank, however many steps it has acknowledged.
    """
    every = select(literal(0).label("rank")).cte(recursive=True)
    every = every.union_all(select(every.c.rank + 1).where(every.c.rank < world_size - 1))
    table = schema.acks
    last = select(func.max(table.c.step)).where(table.c.job == job, table.c.rank == every.c.rank)
    query = select(func.coalesce(last.scalar_subquery(), -1)).select_from(every)
    return [int(step) for step in connection.execute(query.order_by(every.c.rank)).scalars()]


def planned_beyond(connection: Connection, job: str, step: int) -> int:
    """How many steps beyond ``step`` have a plan."""
    table = schema.plans
    query = select(func.count()).where(table.c.job == job, table.c.step > step)
    return int(connection.execute(query).scalar_one())


def last_measured_step(connection: Connection, job: str) -> int | None:
    """The last step that any rank has measured."""
    table = schema.measurements
    found = connection.execute(select(func.max(table.c.step)).where(table.c.job == job)).scalar()
    return None if found is None else int(found)


def latest_measured_steps(connection: Connection, job: str, steps: int) -> list[int]:
    """The last ``steps`` steps that any rank has measured, ascending."""
    table = schema.measurements
    latest = select(table.c.step).where(table.c.job == job).distinct()
    found = connection.execute(latest.order_by(table.c.step.desc()).limit(steps)).scalars()
    return sorted(int(step) for step in found)


def measurements_state(connection: Connection, job: str, first: int) -> tuple[int, float]:
    """How many times were measured from step ``first`` on, and their sum (ms).

    Another answer says that something was measured since, again or for the first time.
    """
    table = schema.measurements
    state = select(func.count(), func.coalesce(func.sum(table.c.measured_ms), 0.0))
    count, total = connection.execute(state.where(table.c.job == job, table.c.step >= first)).one()
    return int(count), float(total)


def measured_since(connection: Connection, job: str, first: int) -> dict[int, dict[int, float]]:
    """Milliseconds by step and rank from step ``first`` on, steps ascending."""
    table = schema.measurements
    query = select(table.c.step, table.c.rank, table.c.measured_ms)
    rows = connection.execute(query.where(table.c.job == job, table.c.step >= first))
    found: dict[int, dict[int, float]] = {}
    for step, rank, measured_ms in rows:
        found.setdefault(step, {})[rank] = measured_ms
    return dict(sorted(found.items()))


def _by_step(
    connection: Connection, job: str, steps: Iterable[int], column: Any
) -> Iterable[tuple[int, str]]:
    table = schema.plans
    wanted = list(steps)
    for at in range(0, len(wanted), _AT_ONCE):
        some = table.c.step.in_(wanted[at : at + _AT_ONCE])
        query = select(table.c.step, column).where(table.c.job == job, some)
        for step, value in connection.execute(query):
            yield int(step), str(value)
