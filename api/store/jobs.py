"""Jobs in the store: their batches, plans, acknowledgements and measured times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, insert, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite

from seqplan.api.store import schema
from seqplan.api.store.catalogue import forget_answers, held
from seqplan.api.store.notices import notify, notify_removed
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.batches_file import batch_from_json, batch_to_json
from seqplan.planner.batches.sampler import SamplerState

Row = dict[str, Any]


_PLANNED_BY = ("proposal", "lengths", "tokens", "seed", "steps", "first_step", "max_len")


@dataclass(frozen=True)
class StoredPlan:
    """A plan's JSON line as it was published, with its digest."""

    step: int
    digest: str
    line: str


def add_job(connection: Connection, row: Row) -> None:
    """Keep a new job."""
    connection.execute(insert(schema.jobs).values(row))
    notify(connection, row["id"])


def remove_job(connection: Connection, job: str) -> bool:
    """Remove a job with all that is kept of it; False where there is none."""
    # The job first: whoever writes of it holds its row, or finds it gone (see ``held``).
    gone = connection.execute(delete(schema.jobs).where(schema.jobs.c.id == job))
    if not gone.rowcount:
        return False
    for table in (schema.batches, schema.plans, schema.acks, schema.measurements):
        connection.execute(delete(table).where(table.c.job == job))
    below, path = f"/v1/jobs/{job}/", schema.answers.c.path
    connection.execute(delete(schema.answers).where(func.substr(path, 1, len(below)) == below))
    forget_answers(connection, ("/v1/jobs",), job)
    notify_removed(connection, job)
    return True


def copy_batches(connection: Connection, job: str, first_step: int, to: str) -> None:
    """Give the pushed batches of ``job`` from ``first_step`` on to another job."""
    table = schema.batches
    same = select(literal(to), table.c.step, table.c.document)
    wanted = same.where(table.c.job == job, table.c.step >= first_step)
    connection.execute(insert(table).from_select(["job", "step", "document"], wanted))


def unfinished(connection: Connection) -> list[Row]:
    """Jobs that have steps to plan, or may get some, in order of id."""
    query = select(schema.jobs).where(schema.jobs.c.state == "planning").order_by(schema.jobs.c.id)
    return [dict(row) for row in connection.execute(query).mappings()]


def settle_job(connection: Connection, job: str, **values: Any) -> None:
    """Change a job's state, last step or failure."""
    connection.execute(update(schema.jobs).where(schema.jobs.c.id == job).values(values))
    notify(connection, job)


def add_batches(connection: Connection, job: str, batches: Iterable[Batch]) -> None:
    """Keep batches that the trainer pushed."""
    rows = [{"job": job, "step": b.step, "document": batch_to_json(b)} for b in batches]
    if rows:
        connection.execute(insert(schema.batches), rows)
        notify(connection, job)


def batches_after(connection: Connection, job: str, step: int, limit: int) -> list[Batch]:
    """The first ``limit`` pushed batches beyond ``step``."""
    table = schema.batches
    query = select(table.c.document).where(table.c.job == job, table.c.step > step)
    found = connection.execute(query.order_by(table.c.step).limit(limit)).scalars()
    return [batch_from_json(text, f"job {job}") for text in found]


def last_pushed(connection: Connection, job: str) -> int:
    """The last step that was pushed; −1 when there is none."""
    query = select(func.max(schema.batches.c.step)).where(schema.batches.c.job == job)
    found = connection.execute(query).scalar()
    return -1 if found is None else int(found)


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
    values = {"job": job, "step": plan.step, "digest": plan.digest, "line": plan.line}
    values["planning_ms"] = planning_ms
    if state is not None:
        values |= {"epoch": state.epoch, "cursor": state.cursor}
    connection.execute(insert(schema.plans).values(values))
    notify(connection, job)


def still_wanted(connection: Connection, row: Row) -> bool:
    """Whether the job of ``row`` is there, to this transaction's end, and is no other of its name.

    Of plans by the same proposal and batches it does not matter which of the two they are for.
    """
    now = held(connection, schema.jobs, row["id"])
    return now is not None and all(now[name] == row[name] for name in _PLANNED_BY)


def first_state(row: Row) -> SamplerState:
    """The sampler of a job that draws its batches, before the job's first step."""
    return SamplerState(row["first_step"], row["first_epoch"], row["first_cursor"])


def known_state(connection: Connection, row: Row, step: int) -> SamplerState:
    """The sampler's latest state at or before ``step`` that is kept with a plan of the job."""
    table = schema.plans
    query = select(table.c.step, table.c.epoch, table.c.cursor)
    kept = query.where(table.c.job == row["id"], table.c.step <= step, table.c.epoch.is_not(None))
    found = connection.execute(kept.order_by(table.c.step.desc()).limit(1)).first()
    return first_state(row) if found is None else SamplerState(*found)


def get_plan(connection: Connection, job: str, step: int) -> StoredPlan | None:
    """The plan of a step, where it is planned."""
    table = schema.plans
    query = select(table.c.step, table.c.digest, table.c.line)
    found = connection.execute(query.where(table.c.job == job, table.c.step == step)).first()
    return None if found is None else StoredPlan(*found)


def plan_digest(connection: Connection, job: str, step: int) -> str | None:
    """The digest of a step's plan, where it is planned."""
    table = schema.plans
    query = select(table.c.digest).where(table.c.job == job, table.c.step == step)
    return connection.execute(query).scalar()


def last_planned(connection: Connection, job: str) -> int | None:
    """The last step that has a plan."""
    query = select(func.max(schema.plans.c.step)).where(schema.plans.c.job == job)
    return connection.execute(query).scalar()


def planned_steps(connection: Connection, job: str, after: int = -1) -> list[int]:
    """Steps beyond ``after`` that have a plan, ascending."""
    table = schema.plans
    query = select(table.c.step).where(table.c.job == job, table.c.step > after)
    return list(connection.execute(query.order_by(table.c.step)).scalars())


def acknowledge(connection: Connection, rows: list[Row]) -> None:
    """Keep which rank has done which step (job, rank, step, digest); again changes nothing."""
    rows = _of_jobs(connection, rows)
    if not rows:
        return
    made = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    connection.execute(made(schema.acks).on_conflict_do_nothing(), rows)
    for job in sorted({row["job"] for row in rows}):
        notify(connection, job)


def add_measurements(connection: Connection, rows: list[Row]) -> None:
    """Keep what a step took on a rank (job, step, rank, measured_ms); later figures replace."""
    rows = _of_jobs(connection, rows)
    if not rows:
        return
    key = ["job", "step", "rank"]
    if connection.dialect.name == "sqlite":
        query = sqlite.insert(schema.measurements)
        said = query.on_conflict_do_update(key, set_={"measured_ms": query.excluded.measured_ms})
        connection.execute(said, rows)
    else:
        asked = postgresql.insert(schema.measurements)
        told = asked.on_conflict_do_update(
            index_elements=key, set_={"measured_ms": asked.excluded.measured_ms}
        )
        connection.execute(told, rows)


def _of_jobs(connection: Connection, rows: list[Row]) -> list[Row]:
    """The rows whose jobs are there, and stay so to the end of this transaction."""
    # In one order, so that two transactions do not wait for each other.
    there = {
        job for job in sorted({row["job"] for row in rows}) if held(connection, schema.jobs, job)
    }
    return [row for row in rows if row["job"] in there]
