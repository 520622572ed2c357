"""The optimizer's state of experts over ranks, in checkpoints of ``transformers.Trainer``.

``optimizer.pt`` is the trainer's: the state of all parameters as the first rank has it, so the
first part of every expert parameter's. Each other rank of the first block writes its part into a
separate file. A rank that resumes joins the rows that it needs, so that the number of parts may
be another one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

_PART = re.compile(r"optimizer_experts_(\d+)_of_(\d+)\.pt")
"""Number of a part, from 1 on, and of all parts."""

State = Mapping[str, Any]
"""Values of an optimizer for a parameter, by name."""


def save_part(
    folder: Path, optimizer: Any, parameters: Mapping[str, nn.Parameter], part: tuple[int, int]
) -> None:
    """Write the optimizer's state of this rank's part of experts. ``OSError``.

    ``part``: its number, from 0 on, and that of all parts.
    """
    state = {name: dict(optimizer.state[p]) for name, p in parameters.items()}
    final = folder / f"optimizer_experts_{part[0]}_of_{part[1]}.pt"
    partial = final.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(final)


def remove_parts(folder: Path) -> None:
    """Remove the parts of an earlier checkpoint, and files that were not written whole."""
    for path in folder.glob("optimizer_experts_*"):
        path.unlink()


def load_parts(
    folder: Path,
    optimizer: Any,
    parameters: Mapping[str, nn.Parameter],
    part: tuple[int, int],
) -> None:
    """Replace the first part of each state, which the optimizer has read, by this rank's.

    ``parameters``: of experts, by name; ``part``: that is here, and the number of parts.
    ``ValueError`` if a part is missing, or is of another model; ``OSError``.
    """
    paths = _find_parts(folder)
    others: list[Mapping[str, State]] = [
        torch.load(path, map_location="cpu", mmap=True, weights_only=True) for path in paths
    ]
    for name, parameter in parameters.items():
        first = optimizer.state.get(parameter)
        if not first:
            continue
        lacking = [
            path.name for path, other in zip(paths, others, strict=True) if name not in other
        ]
        if lacking:
            raise ValueError(f"{lacking[0]} has no {name}. Resume the same model")
        states = [first, *(other[name] for other in others)]
        optimizer.state[parameter] = {
            key: _join(f"{name}: {key}", [state[key] for state in states], parameter, part)
            for key in first
        }


def _find_parts(folder: Path) -> list[Path]:
    """List the files of all parts but the first."""
    found = {path: _PART.fullmatch(path.name) for path in folder.glob("optimizer_experts_*")}
    numbers = {(int(m[1]), int(m[2])): path for path, m in found.items() if m is not None}
    counts = {count for _, count in numbers}
    expected = [(number, count) for count in counts for number in range(1, count)]
    missing = [place for place in expected if place not in numbers]
    if missing or len(counts) > 1:
        number, count = missing[0] if missing else expected[-1]
        raise ValueError(
            f"optimizer_experts_{number}_of_{count}.pt is missing, or is of another run. Resume "
            "from another checkpoint"
        )
    return [numbers[place] for place in expected]


def _join(where: str, parts: Sequence[Any], parameter: Tensor, part: tuple[int, int]) -> Any:
    """Take this rank's rows of a value that is stored in parts; a number is of all rows."""
    first = parts[0]
    if not isinstance(first, Tensor) or not first.ndim:
        return first
    index, degree = part
    local = parameter.shape[0]
    rows, left = divmod(local * degree, len(parts))
    if first.shape[1:] != parameter.shape[1:]:  # a value of a rank's part as a whole
        if len(parts) != degree:
            raise ValueError(
                f"{where} is of {len(parts)} parts, not of {degree}. Resume with expert_parallel "
                f"{len(parts)}"
            )
        return parts[index].to(first.device)
    if left or len(first) != rows:
        raise ValueError(
            f"{where} is of {len(first) * len(parts)} experts, not of {local * degree}. Resume the "
            "same model, from all files of the checkpoint"
        )
    begin, end = index * local, (index + 1) * local
    pieces = [
        stored[max(0, begin - place * rows) : max(0, end - place * rows)]
        for place, stored in enumerate(parts)
    ]
    return torch.cat([piece.to(first.device, first.dtype) for piece in pieces])
