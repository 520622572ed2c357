"""All ranks agree on a step before any begins it: one small all-gather of what each has."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist

from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.data.comparison import find_other_tokens
from seqplan.runtime.errors import EndOfPlans, PlanError, RankLost, communicating

_RECORD = struct.Struct("<Bq80s400s")
"""State, step, digest and message, UTF-8, cut to their fields: the same size on every rank."""

RECORD_BYTES = _RECORD.size


class State(IntEnum):
    """What a rank has for the step."""

    READY = 0
    END = 1
    FAILED = 2


@dataclass(frozen=True)
class Record:
    """State of one rank; ``message``: why it has failed."""

    state: State
    step: int
    digest: str = ""
    message: str = ""

    def to_bytes(self) -> bytes:
        """Return ``RECORD_BYTES`` bytes; texts that do not fit are cut, between characters."""
        digest, message = (
            text.encode(errors="replace")[:size].decode(errors="ignore").encode()
            for text, size in ((self.digest, 80), (self.message, 400))
        )
        return _RECORD.pack(self.state, self.step, digest, message)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Record:
        """Read what ``to_bytes`` wrote."""
        state, step, digest, message = _RECORD.unpack(raw)
        return cls(
            State(state), step, digest.rstrip(b"\0").decode(), message.rstrip(b"\0").decode()
        )


def all_gather_records(record: Record, group: dist.ProcessGroup | None) -> list[Record]:
    """Return the record of every rank of ``group`` (gloo), in its order; this one alone for None.

    ``RankLost`` when a rank is gone or does not come within the group's time-out.
    """
    if group is None:
        return [record]
    size = group.size()
    mine = torch.frombuffer(bytearray(record.to_bytes()), dtype=torch.uint8)
    everyone = torch.empty((size, RECORD_BYTES), dtype=torch.uint8)
    try:
        with communicating("agreeing on the plan"):
            dist.all_gather(list(everyone.unbind()), mine, group=group)
    except RankLost as loss:
        raise loss.in_step(record.step) from None
    return [Record.from_bytes(row.numpy().tobytes()) for row in everyone]


def find_fault(
    record: Record,
    group: dist.ProcessGroup | None,
    prepare: Callable[[RankView], Any],
    view: RankView | None,
) -> str | None:
    """Return why the ranks cannot run a step together, or None. Collective; ``RankLost``.

    ``view``: of this rank's step if the ranks' data are to be compared.
    """
    fault = disagreement(all_gather_records(record, group))
    return find_other_tokens(prepare, view, group) if fault is None and view else fault


def disagreement(records: Sequence[Record]) -> str | None:
    """Return why the ranks cannot continue, naming the first that differs, or None."""
    for rank, record in enumerate(records):
        if record.state is State.FAILED:
            return f"rank {rank}: {record.message}"
    first = records[0]
    for rank, record in enumerate(records):
        if record.step != first.step:
            return f"rank {rank} is at step {record.step}, rank 0 at step {first.step}"
        if record.state is not first.state:
            ended, other = (rank, 0) if record.state is State.END else (0, rank)
            return f"step {first.step}: plans end on rank {ended} but not on rank {other}"
        if record.digest != first.digest:
            return (
                f"step {first.step}: rank {rank} has the plan {record.digest or 'without digest'}, "
                f"rank 0 {first.digest or 'without digest'}"
            )
    return None


def one_line(error: Exception) -> str:
    """Return an error's text in one line; its type too if the message is not for people."""
    text = " ".join(str(error).split()) or type(error).__name__
    known = isinstance(error, (PlanError, ValueError, OSError, EndOfPlans))
    return text if known else f"{type(error).__name__}: {text}"
