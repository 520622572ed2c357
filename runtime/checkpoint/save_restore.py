"""Checkpoints of sharded states and of where in the plans a job is.

Every rank writes what it owns, each part under its parameter's name and range of elements
(``stored_slices``), with ``torch.distributed.checkpoint``. A checkpoint appears under its name only
when all of it is on disk, so that a job killed at any moment finds whole ones only. It can be read
by any number of ranks: each takes the stored slices that overlap its range.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from seqplan.runtime.checkpoint.checkpoint_files import (
    attempt_together,
    check_sizes,
    list_sizes,
    lock_folder,
)
from seqplan.runtime.checkpoint.parameter_groups import (
    copy_options,
    match_groups,
    name_groups,
    record_groups,
)
from seqplan.runtime.checkpoint.stored_extra import (
    EXTRA,
    GROUPS,
    make_storable,
    read_values,
    write_values,
)
from seqplan.runtime.checkpoint.stored_slices import (
    StoredSlices,
    check_optimizer_state,
    iterate_owned_entries,
    iterate_owned_parts,
)
from seqplan.runtime.communicators import gather_objects, raise_on_all_ranks
from seqplan.runtime.errors import CheckpointError, communicating
from seqplan.runtime.states.optimizers import name_optimizer
from seqplan.runtime.states.unit_states import UnitStates

FORMAT = 4
"""3 recorded the sharding as ``owners``, ``slices`` or ``matrices``; 2 did not record it, as it was
flat; 1 had no list of transposed parameters, as there were none. All are read as such."""

_SHARDING_BEFORE_4 = {"slices": "flat", "matrices": "by_parameter"}
_CURSOR = "cursor.json"
_SAVING, _RESTORING = "saving a checkpoint", "restoring a checkpoint"
_NAME = re.compile(r"step-(\d{8})")


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a job is: the next step to run, and the digest of the plan of the last one.

    ``extra``: the value that this rank passed to ``save``; a new rank gets the first one's; None
     without.
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
    remain; one of a later step, which a restart would go on from in place of this one, is an error.
    ``extra``: what else to keep of this rank, of tensors, numbers, texts, lists and
    mappings; arrays of numpy come back as tensors; every rank gives some or none.
    ``CheckpointError``, on every rank, if any cannot
    write or another job writes into the folder; the checkpoints there remain. ``ValueError`` if the
    optimizer lacks what a rank owns, or has states or options that cannot be stored, as ``extra``
    may, if ``keep`` is below 1, and if cursors differ; ``group`` is any CPU group.
    """
    entries, error_message = {}, None
    try:
        _check_arguments(cursor, keep)
        entries = dict(iterate_owned_entries(states, optimizer))
        extra = None if extra is None else make_storable(dict(extra))
    except (ValueError, TypeError, RecursionError) as error:  # on all ranks, as others wait
        error_message = str(error)
    _check_together(error_message, cursor, group)
    record = record_groups(optimizer, None, _name_parameters(states, optimizer), group)
    root = Path(folder)
    final = root / f"step-{cursor.next_step:08d}"
    partial = root / f"{final.name}.partial"
    # Imported for checkpoints only, as it takes more than a second.
    from torch.distributed.checkpoint import state_dict_saver

    first = dist.get_rank(group) == 0

    def begin() -> None:
        if first:
            root.mkdir(parents=True, exist_ok=True)
            lock_folder(root)
            _check_latest(root, cursor.next_step)
            shutil.rmtree(partial, ignore_errors=True)

    def write_states() -> None:
        with communicating(_SAVING):
            state_dict_saver.save(entries, checkpoint_id=partial, process_group=group)

    def write_of_rank() -> None:
        for kind, values in ((GROUPS, record), (EXTRA, extra)):
            if values is not None:
                write_values(partial, dist.get_rank(group), kind, values)

    def finish() -> None:
        if not first:
            return
        document = {
            "format": FORMAT,
            "transposed": sorted(_transpose(states)),
            "sharding": _sharding(states),
            "optimizer": name_optimizer(optimizer),
            "next_step": cursor.next_step,
            "last_digest": cursor.last_digest,
            "sizes": list_sizes(partial),
        }
        with (partial / _CURSOR).open("w", encoding="utf-8") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        for _, older in _complete(root)[:-keep]:
            shutil.rmtree(older, ignore_errors=True)

    try:
        for part in (begin, write_states, write_of_rank, finish):
            attempt_together(part, f"{final}: cannot be written", group, _SAVING)
    except CheckpointError:
        if first:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def restore(
    folder: str | os.PathLike[str],
    states: UnitStates,
    optimizer: torch.optim.Optimizer,
    group: dist.ProcessGroup,
) -> Cursor | None:
    """Bring back the newest whole checkpoint in ``folder``; None if there is none.

    Every rank calls it, before the first step, with the model and optimizer as they were made at
    the first start; the number of ranks, and the sharding, may be other ones. Options of the
    optimizer's groups come back by the names of their parameters. ``ValueError``
    if the checkpoint is of another model or optimizer, of a newer format, or has states of the
    optimizer that are no value for each element and belong to other ranges than this job's. If the
    newest is damaged, the one before is restored, with a warning; ``CheckpointError`` if all are,
    and if ``folder`` is a file, or itself a checkpoint.
    """

    def list_newest_first() -> list[Path]:
        if dist.get_rank(group):
            return []
        return [path for _, path in reversed(_complete(Path(folder)))]

    checkpoints = [attempt_together(list_newest_first, f"{folder}", group, _RESTORING)]
    with communicating(_RESTORING):
        dist.broadcast_object_list(checkpoints, dist.get_global_rank(group, 0), group=group)
    for path, older in zip(checkpoints[0], [*checkpoints[0][1:], None], strict=False):
        try:
            return _restore_one(path, states, optimizer, group)
        except CheckpointError as damage:
            if older is None:
                raise
            warnings.warn(f"{damage}; going back to {older.name}", stacklevel=2)
    return None


def _restore_one(
    path: Path,
    states: UnitStates,
    optimizer: torch.optim.Optimizer,
    group: dist.ProcessGroup,
) -> Cursor:
    """Restore a checkpoint; ``CheckpointError`` on every rank if it is damaged for any."""
    from torch.distributed.checkpoint import state_dict_loader

    wanted = list(iterate_owned_parts(states, optimizer))
    error_message, buffers = None, {}
    options: list[dict[str, Any]] = []

    def read() -> tuple[Cursor, StoredSlices | None]:
        nonlocal error_message, buffers, options
        try:
            cursor, transposed, sharding, saved_by = _read_cursor(path, dist.get_rank(group))
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise
        except ValueError as error:
            error_message = str(error)
            return Cursor(0, None), None
        stored = StoredSlices(path, transposed, sharding)
        record = read_values(path, dist.get_rank(group), GROUPS)
        try:
            check_optimizer_state(stored, saved_by, optimizer)
            buffers = {
                key: stored.buffer(key)
                for part in wanted
                for key in stored.list_needed_keys(part, _sharding(states))
            }
            if record is not None:  # of a version that stored options
                names = name_groups(optimizer, _name_parameters(states, optimizer))
                matched = match_groups(record, names, dist.get_world_size(group))
                options = copy_options(record, matched)
        except ValueError as error:  # it is whole, and of another job
            error_message = str(error)
        return cursor, stored

    def load() -> None:
        with communicating(_RESTORING):
            state_dict_loader.load(buffers, checkpoint_id=path, process_group=group)

    damaged = f"{path}: is damaged"
    cursor, stored = attempt_together(read, damaged, group, _RESTORING)
    raise_on_all_ranks(error_message, group, _RESTORING)
    attempt_together(load, damaged, group, _RESTORING)
    assert stored is not None
    for of_group, before in zip(optimizer.param_groups, options, strict=False):
        of_group.update(before)
    for part in wanted:
        stored.fill(part, states, optimizer, buffers)
    return cursor


def _name_parameters(
    states: UnitStates, optimizer: torch.optim.Optimizer
) -> list[tuple[str, torch.Tensor]]:
    parts = iterate_owned_parts(states, optimizer)
    return [(part.layout.name, part.parameter) for part in parts]


def count_extra(folder: str | os.PathLike[str], next_step: int) -> int:
    """Count the ranks that stored ``extra`` in a checkpoint."""
    return len(list((Path(folder) / f"step-{next_step:08d}").glob(f"{EXTRA}-*.pt")))


def _check_arguments(cursor: Cursor, keep: int) -> None:
    for name, value, least in (("keep", keep, 1), ("next_step", cursor.next_step, 0)):
        if value < least:
            raise ValueError(f"{name}: {value}. Give {least} or more")


def _check_together(error_message: str | None, cursor: Cursor, group: dist.ProcessGroup) -> None:
    """``ValueError`` on all ranks if one has an error message, or cursors differ."""
    where = cursor.next_step, cursor.last_digest
    gathered = gather_objects((error_message, where), group, _SAVING)
    for message, _ in gathered:
        if message is not None:
            raise ValueError(message)
    for rank, (_, other) in enumerate(gathered):
        if other != gathered[0][1]:
            raise ValueError(
                f"cursor: rank 0 has {gathered[0][1]}, rank {rank} {other}. "
                "Save after the same step on all ranks"
            )


def _check_latest(root: Path, step: int) -> None:
    """``OSError`` if the folder has a checkpoint of a later step than ``step``."""
    for later, path in _complete(root):
        if later > step:
            raise FileExistsError(
                errno.EEXIST,
                f"there is {path.name}, which a restart would go on from: another run's, or a "
                "damaged one. Resume from it, name another folder, or move it away",
            )


def _read_cursor(path: Path, rank: int) -> tuple[Cursor, frozenset[str], str, str | None]:
    """Read where the job is, parameters that are stored transposed, sharding and optimizer.

    The optimizer is None in checkpoints that do not record it.
    """
    document = json.loads((path / _CURSOR).read_text(encoding="utf-8"))
    if document.get("format") not in range(1, FORMAT + 1):
        raise ValueError(
            f"{path}: format {document.get('format')}, this version reads 1 to {FORMAT}"
        )
    check_sizes(path, document.get("sizes", {}))
    cursor = Cursor(document["next_step"], document["last_digest"], read_values(path, rank, EXTRA))
    transposed = frozenset(document.get("transposed", ()))
    before = _SHARDING_BEFORE_4[document.get("owners", "slices")]
    return cursor, transposed, document.get("sharding", before), document.get("optimizer")


def _sharding(states: UnitStates) -> str:
    return "by_parameter" if states.whole_owners else "flat"


def _transpose(states: UnitStates) -> frozenset[str]:
    return frozenset(
        layout.name
        for unit in states.units
        for layout in unit.layout.parameters
        if layout.transposed
    )


def _complete(root: Path) -> list[tuple[int, Path]]:
    """Return the whole checkpoints, the oldest first. ``OSError`` if ``root`` cannot have any."""
    if not root.exists():
        return []
    if not root.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is a file. Give the folder of the checkpoints")
    if (root / _CURSOR).is_file():
        raise OSError(errno.EINVAL, f"is one checkpoint. Give its folder, {root.resolve().parent}")
    checkpoints = []
    for path in root.iterdir():
        match = _NAME.fullmatch(path.name)
        if match is not None and (path / _CURSOR).is_file():
            checkpoints.append((int(match[1]), path))
    return sorted(checkpoints)
