"""The sampler of a job that draws its batches, and where it is before a step."""

from __future__ import annotations

from typing import Any

import numpy as np
from sqlalchemy import Connection

from seqplan.api.store import jobs
from seqplan.api.store.catalogue import lengths_path
from seqplan.api.store.store import Store
from seqplan.planner.batches.sampler import Sampler, SamplerState


def job_sampler(store: Store, row: dict[str, Any], max_len: int) -> Sampler:
    """What the job of ``row`` draws from; ``max_len``: of its proposal.

    A job that continues another truncates as that one does. ``ValueError`` for lengths that are
    damaged on the disk, ``OSError`` where they cannot be read.
    """
    lengths = np.load(lengths_path(store, row["lengths"]), mmap_mode="r")
    return Sampler(lengths, row["tokens"], row["max_len"] or max_len, row["seed"])


def state_before(
    store: Store, connection: Connection, row: dict[str, Any], max_len: int, step: int
) -> SamplerState:
    """Where the job's sampler is before ``step``; ``max_len``, errors: as for ``job_sampler``.

    From the nearest state that is kept with a plan: the lengths are needed for other steps only.
    """
    known = jobs.known_state(connection, row, step)
    if known.step == step:
        return known
    return job_sampler(store, row, max_len).state_before(step, known)
