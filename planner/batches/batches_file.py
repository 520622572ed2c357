"""Batches that the caller has drawn itself: JSON Lines of step, ids and lengths."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from seqplan.costs.lengths.sources.batches import BatchReader, iterate_batches
from seqplan.planner.batches.batch import Batch
from seqplan.plans.format.fields import MAX_INTEGER, shown
from seqplan.plans.load import PhaseLoad


def read_batches(path: Path, max_len: int) -> Iterator[Batch]:
    """Read batches from ``{"step":0,"ids":[…],"lengths":[…]}`` lines.

    Optionally with "loss_tokens" and "loads", as a plan's sequences have them. ``ids`` may be left
    out (positions then count on through the file). Raises ``ValueError`` with file and line for
    malformed batches, steps that do not ascend and lengths above ``max_len``.
    """
    last, counted = -1, 0
    for reader, raw in iterate_batches(path, strict=True):
        batch = _make_batch(reader, raw, last, counted)
        if batch.longest > max_len:
            sample = batch.ids[batch.lengths.index(batch.longest)]
            reader.fail(
                "",
                f"sequence {sample} has {batch.longest} tokens, above the proposal's --max-len "
                f"{max_len}; truncate it or propose with --max-len {batch.longest}",
            )
        last, counted = batch.step, counted + len(batch.ids)
        yield batch
    if last < 0:
        raise ValueError(f"{path}: no batches. Write at least one batch")


def batch_to_json(batch: Batch) -> str:
    """Write a batch as one line of a batches file, without its end."""
    fields: dict[str, object] = {
        "step": batch.step,
        "ids": list(batch.ids),
        "lengths": list(batch.lengths),
    }
    if batch.loss_tokens is not None:
        fields["loss_tokens"] = batch.loss_tokens
    if batch.loads:
        stated = [asdict(load) for load in batch.loads]
        fields["loads"] = [{k: v for k, v in load.items() if v is not None} for load in stated]
    return json.dumps(fields, separators=(",", ":"))


def batch_from_json(line: str, where: str) -> Batch:
    """Read one line of a batches file; ``ValueError`` that begins with ``where``."""
    reader = BatchReader(where, strict=True)
    return _make_batch(reader, reader.parse(line.encode(errors="replace")), -1, 0)


def _make_batch(reader: BatchReader, raw: dict[str, Any], last: int, counted: int) -> Batch:
    step = raw.get("step", last + 1)
    if type(step) is not int or not last < step <= MAX_INTEGER:
        reader.fail("step", f"must be an integer above {last}: {shown(step)}")
    lengths = reader.integers(raw, "lengths", "", 1)
    ids = tuple(range(counted, counted + len(lengths)))
    if "ids" in raw:
        ids = reader.integers(raw, "ids", "")
    loss = reader.integer(raw, "loss_tokens", "") if raw.get("loss_tokens") is not None else None
    loads = _read_loads(reader, raw, len(lengths))
    try:
        return Batch(step, ids, lengths, loss, loads)
    except ValueError as error:
        raise ValueError(f"{reader.origin}: {error}") from None


def _read_loads(reader: BatchReader, raw: dict[str, Any], number: int) -> tuple[PhaseLoad, ...]:
    # In a plan times are whole microseconds.
    return tuple(
        replace(
            load,
            work_ms=tuple(round(ms, 3) for ms in load.work_ms),
            overhead_ms=round(load.overhead_ms, 3),
        )
        for load in reader.loads(raw, number)
    )
