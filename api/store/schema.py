"""The tables of the store, as the newest migration leaves them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, MetaData, String, Table, Text

metadata = MetaData()

version = Table("seqplan_schema", metadata, Column("version", BigInteger, primary_key=True))
"""One row: how many migrations this store has been through."""

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
    Column("sequences", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("longest", BigInteger, nullable=False),
    Column("histogram", Text, nullable=False),  # JSON: [[over, up to, sequences, tokens], …]
    # sequences; or histogram: the array only represents what is known
    Column("kind", String(16), nullable=False, default="sequences"),
)
proposals = Table(
    "proposals",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("request", Text, nullable=False),
    Column("state", String(16), nullable=False),  # running, ready, failed
    Column("document", Text),
    Column("error", Text),
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
    Column("state", String(16), nullable=False),  # planning, planned, failed
    Column("last_step", BigInteger),  # null while batches may still come
    Column("failed_step", BigInteger),
    Column("error", Text),
    # A job that continues another has its step numbers and batches, drawn as that one drew them.
    Column("continues", String(128)),  # null: begins a run
    Column("first_step", BigInteger, nullable=False, default=0),
    Column("max_len", BigInteger),  # what drawn sequences are truncated to; null: the proposal's
    Column("first_epoch", BigInteger, nullable=False, default=0),  # the sampler before first_step
    Column("first_cursor", BigInteger, nullable=False, default=0),
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
acks = Table(
    "acks",
    metadata,
    Column("job", String(128), primary_key=True),
    Column("rank", BigInteger, primary_key=True, autoincrement=False),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("digest", String(80), nullable=False),
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
)
tokens = Table(
    "tokens",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("hash", String(64), nullable=False),
    Column("scope", String(16), nullable=False),  # read, write
)
Index("acks_of_a_rank", acks.c.job, acks.c.rank, acks.c.step)
