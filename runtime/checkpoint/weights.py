"""A model's weights as ``torch.distributed.checkpoint`` files that other tools read and write.

Whole tensors by parameter name, as the model has them. Each rank gathers and writes, or reads and
scatters, its share of the units, so that none holds the whole model. Optimizer states are in
checkpoints of ``save_restore`` only.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from seqplan.runtime.checkpoint.checkpoint_files import attempt_together
from seqplan.runtime.communicators import raise_on_all_ranks
from seqplan.runtime.errors import communicating
from seqplan.runtime.states.unit_states import UnitStates

_WRITING, _READING = "writing weights", "reading weights"


def save_weights(
    folder: str | os.PathLike[str],
    states: UnitStates,
    group: dist.ProcessGroup,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    """Write the weights into ``folder``, which all ranks share and which must not exist.

    Every rank calls it, between two steps; ``group`` is any CPU group. ``dtype``: of the files, the
    master copies' if None. ``CheckpointError`` on every rank if any cannot write.
    """
    # Imported on use, as it takes more than a second.
    from torch.distributed.checkpoint import state_dict_saver

    final = Path(folder)
    partial = final.with_name(f"{final.name}.partial")
    ranks, first = dist.get_world_size(group), dist.get_rank(group) == 0

    def begin() -> None:
        if first:
            if final.exists():
                raise FileExistsError(17, "exists already: use another folder")
            final.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(partial, ignore_errors=True)

    def write() -> None:
        with communicating(_WRITING):
            state_dict_saver.save(weights, checkpoint_id=partial, process_group=group)

    def finish() -> None:
        if first:
            partial.rename(final)

    problem = f"{final}: cannot be written"
    attempt_together(begin, problem, group, _WRITING)
    weights: dict[str, Tensor] = {}
    for at, unit in enumerate(states.units):
        for name, value in states.gather_unit(unit, at % ranks):
            weights[name] = value.to(dtype or value.dtype)
    for part in (write, finish):
        attempt_together(part, problem, group, _WRITING)


def load_weights(
    folder: str | os.PathLike[str], states: UnitStates, group: dist.ProcessGroup
) -> None:
    """Take the weights from ``folder``; other entries there are left out.

    Every rank calls it, between two steps; ``group`` is any CPU group. Stored weights may be of
    another dtype, and DTensors. ``CheckpointError`` on every rank if files are missing or damaged;
    ``ValueError`` if a parameter is missing or of another shape.
    """
    from torch.distributed.checkpoint import filesystem, state_dict_loader

    path = Path(folder)
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    weights: dict[str, Tensor] = {}

    def check() -> str | None:
        stored = filesystem.FileSystemReader(path).read_metadata().state_dict_metadata
        for at, unit in enumerate(states.units):
            if at % ranks == rank:
                whole = torch.empty(unit.elements, dtype=unit.exact)
                weights.update(states.view_unit(unit, whole))
        for name, value in weights.items():
            size = getattr(stored.get(name), "size", None)
            if size is None:
                return f"{path}: has no parameter {name}"
            if size != value.shape:
                return f"{path}: {name} is {tuple(size)}, the model's {tuple(value.shape)}"
        return None

    def read() -> None:
        with communicating(_READING):
            state_dict_loader.load(weights, checkpoint_id=path, process_group=group)

    problem = f"{path}: cannot be read"
    raise_on_all_ranks(attempt_together(check, problem, group, _READING), group, _READING)
    attempt_together(read, problem, group, _READING)
    for at, unit in enumerate(states.units):
        states.scatter_unit(unit, at % ranks, weights)
