"""Checkpoints of sharded states and of where in the plans a job is.

Every rank writes the slices that it owns, each under its parameter's name and range of elements,
with ``torch.distributed.checkpoint``. A checkpoint appears under its name only when all of it is on
disk, so that a job killed at any moment finds whole ones only. It can be read by any number of
ranks: each takes the stored slices that overlap its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seqplan.plans.views.parameter_layout import ParameterLayout
from seqplan.runtime.errors import communicating
from seqplan.runtime.states.unit_states import UnitStates

FORMAT = 2
"""1 had no list of transposed parameters, as there were none; it is read as such."""

MASTER = "master"
_CURSOR = "cursor.json"
_SAVING, _RESTORING = "saving a checkpoint", "restoring a checkpoint"
_NAME = re.compile(r"step-(\d{8})")
_SLICE = re.compile(r"(?P<kind>[^/]+)/(?P<name>.+)\[(?P<start>\d+):(?P<stop>\d+)\]")


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
    mappings; every rank gives some or none. ``OSError`` where the folder cannot be written;
    ``group`` is any CPU group.
    """
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
        slices = dict(_slices(states, optimizer))
        state_dict_saver.save(slices, checkpoint_id=partial, process_group=group)
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
    the first start; the number of ranks may be another. ``ValueError`` where the checkpoint is of
    another model or optimizer, or of a newer format.
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
    wanted = list(_owned(states, optimizer))
    from torch.distributed.checkpoint import state_dict_loader

    refusal, buffers = None, {}
    try:
        cursor, transposed = _read_cursor(path, dist.get_rank(group))
        stored = _Stored(path, transposed)
        buffers = {
            key: stored.buffer(key)
            for layout, start, parameter in wanted
            for key in stored.needed(layout, start, start + parameter.numel())
        }
    except ValueError as error:
        refusal = str(error)
    _raise_together(refusal, group)
    with communicating(_RESTORING):
        state_dict_loader.load(buffers, checkpoint_id=path, process_group=group)
    for layout, start, parameter in wanted:
        if stored.other_order(layout):
            _fill_reordered(parameter, layout, start, optimizer, stored, buffers)
        else:
            _fill(parameter, layout.name, start, optimizer, stored, buffers)
    return cursor


def _read_cursor(path: Path, rank: int) -> tuple[Cursor, frozenset[str]]:
    """Read where the job is, and the names of the parameters that are stored transposed."""
    document = json.loads((path / _CURSOR).read_text(encoding="utf-8"))
    if document.get("format") not in (1, FORMAT):
        raise ValueError(
            f"{path}: format {document.get('format')}, this version reads 1 to {FORMAT}"
        )
    cursor = Cursor(document["next_step"], document["last_digest"], _read_extra(path, rank))
    return cursor, frozenset(document.get("transposed", ()))


def _extra_path(path: Path, rank: int) -> Path:
    return path / f"extra-{rank:05}.pt"


def _read_extra(path: Path, rank: int) -> Mapping[str, Any] | None:
    for file in (_extra_path(path, rank), _extra_path(path, 0)):
        if file.is_file():
            extra: Mapping[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
            return extra
    return None


def _transposed(states: UnitStates) -> frozenset[str]:
    return frozenset(
        layout.name
        for unit in states.units
        for layout in unit.layout.parameters
        if layout.transposed
    )


def _raise_together(refusal: str | None, group: dist.ProcessGroup) -> None:
    """Raise ``ValueError`` on every rank where any refuses, so that none waits for another."""
    refusals: list[str | None] = [None] * dist.get_world_size(group)
    with communicating(_RESTORING):
        dist.all_gather_object(refusals, refusal, group=group)
    for text in refusals:
        if text is not None:
            raise ValueError(text)


def _owned(
    states: UnitStates, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[ParameterLayout, int, nn.Parameter]]:
    """Yield parameter, first element and master slice of all that this rank owns."""
    known = {
        parameter.data_ptr(): parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.numel()
    }
    for unit in states.units:
        for layout, start, master, _ in unit.owned():
            parameter = known.get(master.data_ptr())
            if parameter is None:
                raise ValueError(f"the optimizer does not hold this rank's slice of {layout.name}")
            yield layout, start, parameter


def _slices(states: UnitStates, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for layout, start, parameter in _owned(states, optimizer):
        where = f"{layout.name}[{start}:{start + parameter.numel()}]"
        yield f"{MASTER}/{where}", parameter.detach()
        for kind, value in optimizer.state.get(parameter, {}).items():
            yield f"{kind}/{where}", torch.as_tensor(value)


class _Stored:
    """What a checkpoint holds: its keys by parameter, without reading the tensors."""

    def __init__(self, path: Path, transposed: frozenset[str]) -> None:
        from torch.distributed.checkpoint import filesystem
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        self.path, self._transposed = path, transposed
        self.sizes: dict[str, tuple[torch.Size, torch.dtype]] = {}
        self.by_name: dict[str, list[tuple[str, int, int, str]]] = {}
        metadata = filesystem.FileSystemReader(path).read_metadata()
        for key, value in metadata.state_dict_metadata.items():
            match = _SLICE.fullmatch(key)
            if match is None or not isinstance(value, TensorStorageMetadata):
                raise ValueError(f"{path}: unknown entry {key!r}")
            self.sizes[key] = value.size, value.properties.dtype
            self.by_name.setdefault(match["name"], []).append(
                (match["kind"], int(match["start"]), int(match["stop"]), key)
            )

    def other_order(self, layout: ParameterLayout) -> bool:
        """Whether a parameter's elements are stored in another order than they are owned in."""
        return layout.transposed != (layout.name in self._transposed)

    def needed(self, layout: ParameterLayout, start: int, stop: int) -> list[str]:
        """Return keys of the slices that elements ``[start, stop)`` of a parameter are made of."""
        if self.other_order(layout):  # a range of one order lies all over the other
            return self.overlapping(layout.name, 0, layout.numel)
        return self.overlapping(layout.name, start, stop)

    def overlapping(self, name: str, start: int, stop: int) -> list[str]:
        """Return keys of all stored slices that share elements ``[start, stop)`` of a parameter."""
        parts = [
            (kind, key, min(stop, high) - max(start, low))
            for kind, low, high, key in self.by_name.get(name, ())
            if low < stop and start < high
        ]
        if sum(elements for kind, _, elements in parts if kind == MASTER) != stop - start:
            raise ValueError(
                f"{self.path} does not hold elements {start} to {stop} of {name}: "
                "it is a checkpoint of another model"
            )
        return [key for _, key, _ in parts]

    def buffer(self, key: str) -> Tensor:
        """Return a tensor to read ``key`` into."""
        size, dtype = self.sizes[key]
        return torch.empty(size, dtype=dtype)


def _fill(
    parameter: nn.Parameter,
    name: str,
    start: int,
    optimizer: torch.optim.Optimizer,
    stored: _Stored,
    buffers: dict[str, Tensor],
) -> None:
    """Copy the overlapping parts of stored slices into one master slice and its states."""
    stop = start + parameter.numel()
    state = optimizer.state[parameter]
    for key in stored.overlapping(name, start, stop):
        match = _SLICE.fullmatch(key)
        assert match is not None
        kind, low, high = match["kind"], int(match["start"]), int(match["stop"])
        value = buffers[key]
        if value.dim() == 0:  # a count of steps, the same for every slice
            state[kind] = value.clone()
            continue
        if kind == MASTER:
            target = parameter.detach()
        else:
            target = state.setdefault(kind, torch.zeros_like(parameter.detach()))
        first, last = max(start, low), min(stop, high)
        target[first - start : last - start] = value[first - low : last - low].to(target.device)


def _fill_reordered(
    parameter: nn.Parameter,
    layout: ParameterLayout,
    start: int,
    optimizer: torch.optim.Optimizer,
    stored: _Stored,
    buffers: dict[str, Tensor],
) -> None:
    """Copy the part of a parameter that was stored transposed, or is now, from the whole of it."""
    whole: dict[str, Tensor] = {}
    state = optimizer.state[parameter]
    for key in stored.overlapping(layout.name, 0, layout.numel):
        match = _SLICE.fullmatch(key)
        assert match is not None
        kind, value = match["kind"], buffers[key]
        if value.dim() == 0:
            state[kind] = value.clone()
            continue
        elements = whole.setdefault(kind, value.new_zeros(layout.numel))
        elements[int(match["start"]) : int(match["stop"])] = value
    for kind, elements in whole.items():
        other = elements.view(layout.columns, layout.rows)
        ordered = other.t().reshape(-1)[start : start + parameter.numel()]
        if kind == MASTER:
            parameter.detach().copy_(ordered)
        else:
            state[kind] = ordered.to(parameter.device, copy=True)


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
