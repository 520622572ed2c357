"""Checkpoints of sharded states and of where in the plans a job is.

Every rank writes what it owns, each part under its parameter's name and range of elements
(``stored_slices``), with ``torch.distributed.checkpoint``. A checkpoint appears under its name only
when all of it is on disk, so that a job killed at any moment finds whole ones only. It can be read
by any number of ranks: each takes the stored slices that overlap its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from seqplan.runtime.communicators import refuse_together
from seqplan.runtime.errors import communicating
from seqplan.runtime.states.stored_slices import StoredSlices, owned_entries, owned_parts
from seqplan.runtime.states.unit_states import UnitStates

FORMAT = 3
"""2 did not say what owners hold, which were slices; 1 had no list of transposed parameters, as
there were none. Both are read as such."""

_CURSOR = "cursor.json"
_SAVING, _RESTORING = "saving a checkpoint", "restoring a checkpoint"
_NAME = re.compile(r"step-(\d{8})")


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a job is: the next step to run, and the digest of the plan of the last one.

    ``extra``: what this rank gave ``save`` beside it, on a rank that there was not what the first
    one did; None where nothing was given.
    """

    next_step: int
    last_digest: str | None
    extra: Mapping[str, Any] | None = None


def save(
    folder: str | os.PathLike[str],
    cursor: Cursor,
    states: UnitStates,
    optimizer: torch.optim.Optimizer,
    group: dist.ProcessGroup,
    *,
    keep: int = 2,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint into ``folder``, which all ranks share; returns its path.

    Every rank calls it between two steps, with the same cursor. The newest ``keep`` checkpoints
    remain. ``extra``: what else to keep of this rank, of tensors, numbers, texts, lists and
    mappings; every rank gives some or none. ``OSError`` where the folder cannot be written,
    ``ValueError`` where the optimizer lacks what a rank owns, or keeps what cannot be stored;
    ``group`` is any CPU group.
    """
    entries, refusal = {}, None
    try:
        entries = dict(owned_entries(states, optimizer))
    except ValueError as error:
        refusal = str(error)
    refuse_together(refusal, group, _SAVING)
    root = Path(folder)
    final = root / f"step-{cursor.next_step:08d}"
    partial = root / f"{final.name}.partial"
    # Imported where there is a checkpoint only, as it takes more than a second.
    from torch.distributed.checkpoint import state_dict_saver

    first = dist.get_rank(group) == 0
    if first:
        root.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
    with communicating(_SAVING):
        dist.barrier(group=group)
        state_dict_saver.save(entries, checkpoint_id=partial, process_group=group)
    if extra is not None:
        with _extra_path(partial, dist.get_rank(group)).open("wb") as file:
            torch.save(dict(extra), file)
            file.flush()
            os.fsync(file.fileno())
    with communicating(_SAVING):
        dist.barrier(group=group)
    if first:
        document = {
            "format": FORMAT,
            "transposed": sorted(_transposed(states)),
            "owners": _owners(states),
            "next_step": cursor.next_step,
            "last_digest": cursor.last_digest,
        }
        with (partial / _CURSOR).open("w", encoding="utf-8") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        for _, older in _complete(root)[:-keep]:
            shutil.rmtree(older, ignore_errors=True)
    with communicating(_SAVING):
        dist.barrier(group=group)
    return final


def restore(
    folder: str | os.PathLike[str],
    states: UnitStates,
    optimizer: torch.optim.Optimizer,
    group: dist.ProcessGroup,
) -> Cursor | None:
    """Bring back the newest whole checkpoint in ``folder``; None where there is none.

    Every rank calls it, before the first step, with the model and optimizer as they were made at
    the first start; the number of ranks, and what owners hold, may be other ones. ``ValueError``
    where the checkpoint is of another model or optimizer, of a newer format, or has states of the
    optimizer that are no value for each element and belong to other ranges than this job's.
    """
    newest: list[tuple[int, Path] | None] = [None]
    if dist.get_rank(group) == 0:
        complete = _complete(Path(folder))
        newest = [complete[-1] if complete else None]
    with communicating(_RESTORING):
        dist.broadcast_object_list(newest, dist.get_global_rank(group, 0), group=group)
    if newest[0] is None:
        return None
    path = newest[0][1]
    from torch.distributed.checkpoint import state_dict_loader

    wanted = list(owned_parts(states, optimizer))
    refusal, buffers = None, {}
    try:
        cursor, transposed, owners = _read_cursor(path, dist.get_rank(group))
        stored = StoredSlices(path, transposed, owners)
        buffers = {
            key: stored.buffer(key)
            for part in wanted
            for key in stored.needed(part, _owners(states))
        }
    except ValueError as error:
        refusal = str(error)
    refuse_together(refusal, group, _RESTORING)
    with communicating(_RESTORING):
        state_dict_loader.load(buffers, checkpoint_id=path, process_group=group)
    for part in wanted:
        stored.fill(part, states, optimizer, buffers)
    return cursor


def _read_cursor(path: Path, rank: int) -> tuple[Cursor, frozenset[str], str]:
    """Read where the job is, the parameters that are stored transposed, and what owners held."""
    document = json.loads((path / _CURSOR).read_text(encoding="utf-8"))
    if document.get("format") not in range(1, FORMAT + 1):
        raise ValueError(
            f"{path}: format {document.get('format')}, this version reads 1 to {FORMAT}"
        )
    cursor = Cursor(document["next_step"], document["last_digest"], _read_extra(path, rank))
    transposed = frozenset(document.get("transposed", ()))
    return cursor, transposed, document.get("owners", "slices")


def _extra_path(path: Path, rank: int) -> Path:
    return path / f"extra-{rank:05}.pt"


def _read_extra(path: Path, rank: int) -> Mapping[str, Any] | None:
    for file in (_extra_path(path, rank), _extra_path(path, 0)):
        if file.is_file():
            extra: Mapping[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
            return extra
    return None


def _owners(states: UnitStates) -> str:
    return "matrices" if states.whole_owners else "slices"


def _transposed(states: UnitStates) -> frozenset[str]:
    return frozenset(
        layout.name
        for unit in states.units
        for layout in unit.layout.parameters
        if layout.transposed
    )


def _complete(root: Path) -> list[tuple[int, Path]]:
    """Return the whole checkpoints, the oldest first."""
    if not root.is_dir():
        return []
    checkpoints = []
    for path in root.iterdir():
        match = _NAME.fullmatch(path.name)
        if match is not None and (path / _CURSOR).is_file():
            checkpoints.append((int(match[1]), path))
    return sorted(checkpoints)
