"""The tables of the store, as the newest migration leaves them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, MetaData, String, Table, Text

metadata = MetaData()

version = Table("seqplan_schema", metadata, Column("version", BigInteger, primary_key=True))
"""One row: the number of the tables' schema."""

store = Table(
    "seqplan_store",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("checks", BigInteger, nullable=False, default=0),  # changed to see whether that works
)
"""One row: the store's id, which its folder of arrays is marked with."""

profiles = Table(
    "profiles",
    metadata,
    Column("id", String(64), primary_key=True),  # hex of the document's sha256
    Column("name", Text, nullable=False),
    Column("document", Text, nullable=False),
)
lengths = Table(
    "lengths",
    metadata,
    Column("id", String(64), primary_key=True),  # hex of a sha256; names the array's file
    # sequences; or histogram: the array only represents it
    Column("kind", String(16), nullable=False, default="sequences"),
    Column("sequences", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("longest", BigInteger, nullable=False),
    Column("histogram", Text, nullable=False),  # JSON: [[over, up to, sequences, tokens], …]
)
proposals = Table(
    "proposals",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("state", String(16), nullable=False),  # running, ready, failed
    Column("error", Text),
    Column("request", Text, nullable=False),
    Column("document", Text),
)
jobs = Table(
    "jobs",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("proposal", String(64), nullable=False),
    Column("lengths", String(64)),  # null: the trainer pushes its batches
    Column("tokens", BigInteger),
    Column("seed", BigInteger, nullable=False),
    Column("steps", BigInteger),  # of a sampled job
    Column("look_ahead", BigInteger, nullable=False),
    Column("world_size", BigInteger, nullable=False),
    # planning, planned, failed, abandoned, stopped
    Column("state", String(16), nullable=False),
    Column("last_step", BigInteger),  # null while batches may still come
    Column("failed_step", BigInteger),
    Column("error", Text),
    # A job that continues another has its step numbers and batches, drawn as that one drew them.
    Column("continues", String(128)),  # null: begins a run
    Column("first_step", BigInteger, nullable=False, default=0),
    # What rows of other tables have in ``job``: a later job of the same id has another key.
    Column("key", String(128), nullable=False, default="", index=True),
    Column("max_len", BigInteger),  # what drawn sequences are truncated to; null: the proposal's
    Column("first_epoch", BigInteger, nullable=False, default=0),  # the sampler before first_step
    Column("first_cursor", BigInteger, nullable=False, default=0),
    Column("kept_from", BigInteger, nullable=False, default=0),  # earlier steps have expired
    Column("expired_steps", BigInteger, nullable=False, default=0),  # how many of them had a plan
    Column("asked_at", BigInteger, nullable=False, default=0),  # last request of a rank, Unix time
    Column("refit", Boolean, nullable=False, default=False),  # correct its costs by measured times
    Column("slowdown", Text),  # JSON: [[rank, factor], …] of slow ranks; null: none
    Column("robust", Float, nullable=False, default=0.0),  # share by which costs may be off
)
revisions = Table(
    "revisions",  # of the proposal and the slow ranks of a job; the newest is in its row, too
    metadata,
    Column("job", String(128), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),  # 0: as it began
    Column("step", BigInteger, nullable=False),  # the first that is planned by it
    Column("proposal", String(64), nullable=False),
    Column("slowdown", Text),
    Column("kind", String(16), nullable=False),  # begin, request, refit, rollback
    Column("reason", Text, nullable=False),
    Column("at", BigInteger, nullable=False),  # Unix time
)
batches = Table(
    "batches",
    metadata,
    Column("job", String(128), primary_key=True),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("document", Text, nullable=False),
)
plans = Table(
    "plans",
    metadata,
    Column("job", String(128), primary_key=True),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("digest", String(80), nullable=False),
    Column("line", Text, nullable=False),
    Column("planning_ms", Float, nullable=False),
    Column("epoch", BigInteger),  # the sampler before the step; null: pushed, or not noted
    Column("cursor", BigInteger),
)
ranks = Table(
    "ranks",
    metadata,
    Column("job", String(128), primary_key=True),
    Column("rank", BigInteger, primary_key=True, autoincrement=False),
    Column("step", BigInteger, nullable=False),  # the last that the rank has acknowledged
    Column("acknowledged_at", Float, nullable=False),  # Unix time
)
sampler_states = Table(
    "sampler_states",  # some of those of plans that have expired
    metadata,
    Column("job", String(128), primary_key=True),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("cursor", BigInteger, nullable=False),
)
removals = Table(
    "removals",  # keys of removed jobs whose rows are still to be deleted
    metadata,
    Column("job", String(128), primary_key=True),
)
measurements = Table(
    "measurements",
    metadata,
    Column("job", String(128), primary_key=True),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("rank", BigInteger, primary_key=True, autoincrement=False),
    Column("measured_ms", Float, nullable=False),
)
answers = Table(
    "answers",
    metadata,
    Column("path", String(512), primary_key=True),
    Column("key", String(255), primary_key=True),  # the Idempotency-Key
    Column("request", String(64), nullable=False),  # hex of the body's sha256
    Column("status", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
    Column("at", BigInteger, nullable=False, default=0),  # Unix time
)
tokens = Table(
    "tokens",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("hash", String(64), nullable=False),
    Column("scope", String(16), nullable=False),  # read, write
    Column("job", String(128)),  # the only job that it opens; null: every one
    Column("expires_at", BigInteger),  # Unix time; null: never
)
Index("answers_by_time", answers.c.at)
