"""The table of measured times: what a step took on a rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, func, select

from seqplan.api.store import schema
from seqplan.api.store.rows import upsert
from seqplan.api.store.tables.jobs import key_of, lasting


@dataclass(frozen=True)
class MeasurementRow:
    """A step took ``measured_ms`` on a rank."""

    job: str
    step: int
    rank: int
    measured_ms: float


def add_measurements(connection: Connection, measurements: Iterable[MeasurementRow]) -> None:
    """Keep measured times; later figures replace. Those of removed jobs are left out."""
    measurements = list(measurements)
    keys = lasting(connection, (measurement.job for measurement in measurements))
    rows = [
        {**asdict(measurement), "job": keys[measurement.job]}
        for measurement in measurements
        if measurement.job in keys
    ]
    if rows:
        upsert(connection, schema.measurements, rows)


def measurements_page(
    connection: Connection, job: str, after: tuple[int, int], limit: int
) -> list[tuple[int, int, float]]:
    """Read the first ``limit`` (step, rank, measured ms) beyond ``after``, a (step, rank)."""
    table = schema.measurements
    query = select(table.c.step, table.c.rank, table.c.measured_ms).where(
        table.c.job == key_of(job),
        table.c.step >= after[0],
        (table.c.step > after[0]) | (table.c.rank > after[1]),
    )
    ordered = query.order_by(table.c.step, table.c.rank).limit(limit)
    return [(int(s), int(r), float(ms)) for s, r, ms in connection.execute(ordered)]


def slowest_ranks(
    connection: Connection, job: str, first: int, last: int
) -> dict[int, tuple[float, int]]:
    """Return, of each measured step in ``first`` to ``last``, the longest time and the ranks.

    The time in ms, of the slowest of as many ranks as were measured.
    """
    table = schema.measurements
    query = select(table.c.step, func.max(table.c.measured_ms), func.count())
    between = (table.c.job == key_of(job), table.c.step >= first, table.c.step <= last)
    rows = connection.execute(query.where(*between).group_by(table.c.step))
    return {int(step): (float(ms), int(ranks)) for step, ms, ranks in rows}


def slowest_busy_ranks(
    connection: Connection, job: str, steps: Sequence[int], idle: Sequence[int]
) -> dict[int, tuple[float, int]]:
    """Return the same of each of some steps, their ``idle`` ranks left out."""
    table = schema.measurements
    query = select(table.c.step, func.max(table.c.measured_ms), func.count())
    busy = (table.c.job == key_of(job), table.c.step.in_(steps), table.c.rank.not_in(idle))
    rows = connection.execute(query.where(*busy).group_by(table.c.step))
    return {int(step): (float(ms), int(ranks)) for step, ms, ranks in rows}


def last_measured_step(connection: Connection, job: str) -> int | None:
    """Return the last step that any rank has measured."""
    table = schema.measurements
    last = select(func.max(table.c.step)).where(table.c.job == key_of(job))
    step = connection.execute(last).scalar()
    return None if step is None else int(step)


def latest_measured_steps(connection: Connection, job: str, steps: int) -> list[int]:
    """Return the last ``steps`` steps that any rank has measured, ascending."""
    table = schema.measurements
    latest = select(table.c.step).where(table.c.job == key_of(job)).distinct()
    newest_first = connection.execute(latest.order_by(table.c.step.desc()).limit(steps)).scalars()
    return sorted(int(step) for step in newest_first)


def measurements_state(connection: Connection, job: str, first: int) -> tuple[int, float]:
    """Return how many times were measured from step ``first`` on, and their sum (ms).

    Another value means new or repeated measurements since.
    """
    table = schema.measurements
    state = select(func.count(), func.coalesce(func.sum(table.c.measured_ms), 0.0))
    since = state.where(table.c.job == key_of(job), table.c.step >= first)
    count, total = connection.execute(since).one()
    return int(count), float(total)


def read_measurements_since(
    connection: Connection, job: str, first: int
) -> dict[int, dict[int, float]]:
    """Return milliseconds by step and rank from step ``first`` on, steps ascending."""
    table = schema.measurements
    query = select(table.c.step, table.c.rank, table.c.measured_ms)
    rows = connection.execute(query.where(table.c.job == key_of(job), table.c.step >= first))
    by_step: dict[int, dict[int, float]] = {}
    for step, rank, measured_ms in rows:
        by_step.setdefault(step, {})[rank] = measured_ms
    return dict(sorted(by_step.items()))
