"""Batches that the caller has drawn itself: JSON Lines of step, ids and lengths."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from seqplan.costs.lengths.sources.batches import ENCODING
from seqplan.planner.batches.batch import Batch
from seqplan.plans.format.canonical import parse_json
from seqplan.plans.format.decode import PlanReader
from seqplan.plans.format.fields import MAX_INTEGER
from seqplan.plans.load import PhaseLoad


def read_batches(path: Path, max_len: int) -> Iterator[Batch]:
    """Read batches from ``{"step":0,"ids":[…],"lengths":[…]}`` lines.

    Optionally with "loss_tokens" and "loads", as a plan's sequences have them. ``ids`` may be left
    out (positions then count on through the file). Raises ``ValueError`` with file and line for
    malformed batches, steps that do not ascend and lengths above ``max_len``.
    """
    last, counted = -1, 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            where = f"{path}:{number}"
            if not line.strip():
                continue
            batch = _batch(line, where, last, counted)
            if batch.longest > max_len:
                sample = batch.ids[batch.lengths.index(batch.longest)]
                raise ValueError(
                    f"{where}: sequence {sample} has {batch.longest} tokens, above the proposal's "
                    f"--max-len {max_len}; truncate it or propose with --max-len {batch.longest}"
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


def batch_from_json(line: str, where: str, last: int = -1) -> Batch:
    """Read one line of a batches file; ``ValueError`` that begins with ``where``."""
    return _batch(line.encode(errors="replace"), where, last, 0)


def _batch(line: bytes, where: str, last: int, counted: int) -> Batch:
    try:
        raw = parse_json(line.decode(ENCODING), finite=False)
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 ({error.reason})") from None
    except ValueError as error:
        raise ValueError(f"{where}: not a whole JSON object ({error}). Repair the line") from None
    if not isinstance(raw, dict):
        raise ValueError(f"{where}: must be an object with step, ids and lengths")
    if foreign := set(raw) - {"step", "ids", "lengths", "loss_tokens", "loads"}:
        raise ValueError(f"{where}: unknown field {sorted(foreign)[0]!r}. Remove it")
    step = raw.get("step", last + 1)
    if type(step) is not int or not last < step <= MAX_INTEGER:
        raise ValueError(f"{where}: step must be an integer above {last}, not {step!r}")
    lengths = _integers(raw, "lengths", where, 1)
    ids = _integers(raw, "ids", where, 0) if "ids" in raw else None
    loss = raw.get("loss_tokens")
    if loss is not None and (type(loss) is not int or not 0 <= loss <= sum(lengths)):
        raise ValueError(
            f"{where}: loss_tokens must be an integer from 0 to the step's "
            f"{sum(lengths)} tokens, not {loss!r}"
        )
    if ids is None:
        ids = tuple(range(counted, counted + len(lengths)))
    loads = _loads(raw, where, len(lengths))
    try:
        return Batch(step, ids, lengths, loss, loads)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _loads(raw: dict[str, object], where: str, number: int) -> tuple[PhaseLoad, ...]:
    if "loads" not in raw:
        return ()
    # In a plan times are whole microseconds.
    return tuple(
        replace(
            load,
            work_ms=tuple(round(ms, 3) for ms in load.work_ms),
            overhead_ms=round(load.overhead_ms, 3),
        )
        for load in PlanReader(where, strict=True).loads(raw, number)
    )


def _integers(raw: dict[str, object], name: str, where: str, least: int) -> tuple[int, ...]:
    values = raw.get(name)
    if not isinstance(values, list):
        raise ValueError(f"{where}: {name} must be a list of integers")
    for place, value in enumerate(values):
        if type(value) is not int or not least <= value <= MAX_INTEGER:
            raise ValueError(
                f"{where}: {name}[{place}] must be an integer of {least} or more, not {value!r}"
            )
    return tuple(values)
