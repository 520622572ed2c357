"""The table of ranks: the last step that each has acknowledged."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import Connection, func, select

from seqplan.api.store import schema
from seqplan.api.store.rows import upsert
from seqplan.api.store.store import notify
from seqplan.api.store.tables.jobs import key_of, lasting
from seqplan.planner.workload import MOST_GPUS


@dataclass(frozen=True)
class AckRow:
    """A rank has done a step, and all steps before it."""

    job: str
    step: int
    rank: int


def acknowledge(connection: Connection, acks: Iterable[AckRow]) -> None:
    """Keep acknowledgements; again changes nothing. Those of removed jobs are left out."""
    acks = list(acks)
    keys = lasting(connection, (ack.job for ack in acks))
    latest: dict[tuple[str, int], int] = {}
    for ack in acks:
        if ack.job in keys:
            rank = (keys[ack.job], ack.rank)
            latest[rank] = max(ack.step, latest.get(rank, -1))
    if not latest:
        return
    now = time.time()
    rows = [
        {"job": job, "rank": rank, "step": step, "acknowledged_at": now}
        for (job, rank), step in sorted(latest.items())
    ]
    upsert(connection, schema.ranks, rows, growing="step")
    for job in sorted(keys):
        notify(connection, job)


def last_acknowledged(connection: Connection, job: str, world_size: int) -> list[int]:
    """Return the last step that each rank has acknowledged, −1 for none.

    Of a job with more than ``MOST_GPUS`` ranks, which none plans, the first ones.
    """
    last = [-1] * min(world_size, MOST_GPUS)
    table = schema.ranks
    query = select(table.c.rank, table.c.step).where(table.c.job == key_of(job))
    for rank, step in connection.execute(query):
        if rank < len(last):
            last[rank] = step
    return last


@dataclass(frozen=True)
class RankProgress:
    """How far the ranks of a job are; steps are −1 if nothing is acknowledged."""

    slowest: int
    fastest: int
    slowest_ranks: tuple[int, ...]
    """Some of the ranks that are at step ``slowest``, at most ``MOST_NAMED``."""

    count_slowest: int
    acknowledged_at: float | None
    """Time of the last acknowledgement of any rank (Unix time)."""


MOST_NAMED = 8


def rank_progress(
    connection: Connection, job: str, world_size: int, lost: Sequence[int] = ()
) -> RankProgress:
    """Return the progress of all ranks but lost ones, without a row for each."""
    table, key = schema.ranks, key_of(job)
    query = select(
        func.count(),
        func.min(table.c.step),
        func.max(table.c.step),
        func.max(table.c.acknowledged_at),
    ).where(table.c.job == key, table.c.rank < world_size)
    count, slowest, fastest, at = connection.execute(query).one()
    if count < world_size - len(lost):  # some have acknowledged nothing
        there = select(table.c.rank).where(table.c.job == key)
        known = {*lost, *connection.execute(there).scalars()}
        missing = (rank for rank in range(world_size) if rank not in known)
        named = tuple(islice(missing, MOST_NAMED))
        last = -1 if fastest is None else int(fastest)
        return RankProgress(-1, last, named, world_size - len(lost) - int(count), at)
    behind = (table.c.job == key, table.c.step == slowest)
    some = select(table.c.rank).where(*behind).order_by(table.c.rank).limit(MOST_NAMED)
    named = tuple(connection.execute(some).scalars())
    how_many = int(connection.execute(select(func.count()).where(*behind)).scalar_one())
    return RankProgress(int(slowest), int(fastest), named, how_many, at)
