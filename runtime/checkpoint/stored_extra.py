"""Values of a rank in a checkpoint: files that are read without running any code."""

from __future__ import annotations

import io
import os
import pickle
from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

EXTRA, GROUPS = "extra", "groups"
"""Kinds of values: of the caller, and options of the optimizer's groups."""

_STORABLE = (type(None), bool, int, float, str, Tensor)
"""Types that need no trial, which are most values."""


def make_storable(value: Any, key: str = "extra") -> Any:
    """Replace numbers and arrays of numpy; other values remain.

    ``ValueError`` with the value's key if a checkpoint cannot restore it.
    """
    if isinstance(value, np.generic):
        value = value.item()
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        with suppress(TypeError):  # of types that torch lacks
            value = torch.from_numpy(value.astype(value.dtype.newbyteorder("=")))
    if type(value) in (list, tuple):
        parts = [make_storable(part, f"{key}[{at}]") for at, part in enumerate(value)]
        return type(value)(parts)
    if isinstance(value, Mapping):
        storable = {
            make_storable(name, f"{key}: key {name!r}"): make_storable(part, f"{key}[{name!r}]")
            for name, part in value.items()
        }
        kind: Any = type(value)
        if kind not in (OrderedDict, Counter):
            return storable
        kept = kind(storable)
        vars(kept).update(vars(value))  # versions of a module's state
        return kept
    if type(value) not in _STORABLE and not _can_restore(value):
        raise ValueError(
            f"{key}: {type(value).__name__}, which a checkpoint cannot restore. "
            "Store tensors, numbers, texts, lists and mappings of them"
        )
    return value


def _can_restore(value: object) -> bool:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, map_location="cpu", weights_only=True)
    except Exception:  # whatever the pickling of a class raises
        return False
    return True


def write_values(path: Path, rank: int, kind: str, values: Mapping[str, Any]) -> None:
    """Write a rank's values of a kind, which ``make_storable`` returned."""
    with _path_of(path, rank, kind).open("wb") as file:
        torch.save(values, file)
        file.flush()
        os.fsync(file.fileno())


def read_values(path: Path, rank: int, kind: str) -> Mapping[str, Any] | None:
    """Read a rank's values of a kind, or the first rank's; None without.

    ``ValueError`` for classes that are not loaded, of checkpoints written before they were checked.
    """
    for file in (_path_of(path, rank, kind), _path_of(path, 0, kind)):
        if file.is_file():
            try:
                values: Mapping[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
            except pickle.UnpicklingError:
                unknown = _list_unknown_classes(file)
                if not unknown:
                    raise
                raise ValueError(
                    f"{path}: {kind} holds {', '.join(unknown)}. "
                    "Allow it with torch.serialization.add_safe_globals"
                ) from None
            return values
    return None


def _list_unknown_classes(file: Path) -> list[str]:
    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    except Exception:  # the file is damaged
        return []


def _path_of(path: Path, rank: int, kind: str) -> Path:
    return path / f"{kind}-{rank:05}.pt"
