"""The table of acknowledgements: which rank has done which step, by which plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, func, literal, select
from sqlalchemy.dialects import postgresql, sqlite

from seqplan.api.store import schema
from seqplan.api.store.notices import notify
from seqplan.api.store.tables.jobs import lasting
from seqplan.planner.cluster import MOST_GPUS


@dataclass(frozen=True)
class AckRow:
    """A rank has done a step by the plan with this digest."""

    job: str
    step: int
    rank: int
    digest: str


def acknowledge(connection: Connection, acks: Iterable[AckRow]) -> None:
    """Keep acknowledgements; again changes nothing. Those of removed jobs are left out."""
    acks = list(acks)
    jobs = lasting(connection, (ack.job for ack in acks))
    rows = [asdict(ack) for ack in acks if ack.job in jobs]
    if not rows:
        return
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    connection.execute(dialect.insert(schema.acks).on_conflict_do_nothing(), rows)
    for job in sorted(jobs):
        notify(connection, job)


def last_acknowledged(connection: Connection, job: str, world_size: int) -> list[int]:
    """Return the last step that each rank has acknowledged, −1 where it has said nothing.

    One look into the index for each rank, however many steps it has acknowledged. Of a job with
    more than ``MOST_GPUS`` ranks, which an older release took and no release plans, the first ones.
    """
    ranks = min(world_size, MOST_GPUS)
    every = select(literal(0).label("rank")).cte(recursive=True)
    every = every.union_all(select(every.c.rank + 1).where(every.c.rank < ranks - 1))
    table = schema.acks
    last = select(func.max(table.c.step)).where(table.c.job == job, table.c.rank == every.c.rank)
    query = select(func.coalesce(last.scalar_subquery(), -1)).select_from(every)
    return [int(step) for step in connection.execute(query.order_by(every.c.rank)).scalars()]
