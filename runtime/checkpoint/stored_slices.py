"""What a checkpoint holds of parameters and optimizer states, written and read by ranges.

A key names a kind (the master, or what the optimizer calls a state), a parameter and the range of
its elements. States with a value for each element are flat, in storage order, and any rank takes
the overlap with its range. Others, such as the scales of blocks or a preconditioner, are of their
range as a whole, and read where a rank owns the same one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seqplan.plans.views.parameter_layout import ParameterLayout
from seqplan.runtime.states.optimizers import name_optimizer
from seqplan.runtime.states.unit import flatten_to_storage
from seqplan.runtime.states.unit_states import UnitStates

MASTER = "master"
_COUNTS = frozenset({"step", "mu_product", "mu", "eta"})
"""States of torch's optimizers that are one number for any parameter."""
_KINDS = {"amsgrad": "max_exp_avg_sq", "centered": "grad_avg", "momentum": "momentum_buffer"}
"""Options of torch's optimizers with the states that they add."""

_SLICE = re.compile(r"(?P<kind>[^/]+)/(?P<name>.+)\[(?P<start>\d+):(?P<stop>\d+)\]")


@dataclass(frozen=True, slots=True)
class OwnedPart:
    """What this rank owns of a parameter: elements from ``start`` on.

    ``master``: flat, in storage order; ``parameter``: the same memory as the optimizer has it.
    """

    layout: ParameterLayout
    start: int
    master: Tensor
    parameter: nn.Parameter

    @property
    def stop(self) -> int:
        """The element after the last."""
        return self.start + self.master.numel()


@dataclass(frozen=True, slots=True)
class StoredPart:
    """An entry of a checkpoint: ``whole_range`` unless it has one value per element."""

    key: str
    kind: str
    start: int
    stop: int
    whole_range: bool


def iterate_owned_parts(
    states: UnitStates, optimizer: torch.optim.Optimizer
) -> Iterator[OwnedPart]:
    """Yield all that this rank owns; ``ValueError`` if the optimizer lacks any of it."""
    known = {
        parameter.data_ptr(): parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.numel()
    }
    for unit in states.units:
        for layout, start, master, _ in unit.iterate_owned():
            parameter = known.get(master.data_ptr())
            if parameter is None:
                raise ValueError(f"the optimizer does not hold this rank's slice of {layout.name}")
            yield OwnedPart(layout, start, master, parameter)


def iterate_owned_entries(
    states: UnitStates, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[str, Tensor]]:
    """Yield what a checkpoint keeps of this rank, by key.

    ``ValueError`` for a state of the optimizer that is no number and no plain tensor.
    """
    for part in iterate_owned_parts(states, optimizer):
        where = f"{part.layout.name}[{part.start}:{part.stop}]"
        yield f"{MASTER}/{where}", part.master
        for kind, value in optimizer.state.get(part.parameter, {}).items():
            yield f"{kind}/{where}", _flat(kind, value, part, whole=states.whole_owners)


def _flat(kind: str, value: Any, part: OwnedPart, *, whole: bool) -> Tensor:
    if not isinstance(value, (int, float)) and type(value) not in (Tensor, nn.Parameter):
        raise ValueError(
            f"the optimizer keeps {kind!r} of {part.layout.name} as a {type(value).__name__}: "
            "checkpoints hold numbers and plain tensors"
        )
    tensor = torch.as_tensor(value).detach()
    if tensor.dim() == 0 or tensor.shape != part.parameter.shape:
        return tensor
    return flatten_to_storage(part.layout, tensor) if whole else tensor


def check_optimizer_state(
    stored: StoredSlices, saved_by: str | None, optimizer: torch.optim.Optimizer
) -> None:
    """Reject a checkpoint of another optimizer. ``ValueError``.

    ``saved_by``: its class, None if the checkpoint does not record it.
    """
    name, kinds = name_optimizer(optimizer), stored.kinds - {MASTER}
    expected = set(kinds)
    if kinds and saved_by in (None, name) and type(optimizer).__module__.startswith("torch.optim."):
        for option, kind in _KINDS.items():
            values = [group[option] for group in optimizer.param_groups if option in group]
            if any(values):
                expected.add(kind)
            else:
                expected.discard(kind)
    if saved_by not in (None, name) or expected != kinds:
        states, other = (", ".join(sorted(those)) or "no states" for those in (kinds, expected))
        raise ValueError(
            f"{stored.path}: has {states} of {saved_by or 'another optimizer'}, the job has {name}"
            f"{f' with {other}' if expected != kinds else ''}. "
            "Restore with the optimizer and options of the job that saved it"
        )


class StoredSlices:
    """A checkpoint's entries by parameter, without reading the tensors.

    ``transposed``: names of the parameters that are stored transposed; ``sharding``: of the
    states that wrote it. ``ValueError`` for anything else.
    """

    def __init__(self, path: Path, transposed: frozenset[str], sharding: str) -> None:
        self.path, self._transposed, self._sharding = path, transposed, sharding
        self._sizes: dict[str, tuple[torch.Size, torch.dtype]] = {}
        self._by_name: dict[str, list[StoredPart]] = {}
        from torch.distributed.checkpoint import filesystem
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        metadata = filesystem.FileSystemReader(path).read_metadata()
        for key, value in metadata.state_dict_metadata.items():
            match = _SLICE.fullmatch(key)
            if match is None or not isinstance(value, TensorStorageMetadata):
                raise ValueError(f"{path}: unknown entry {key!r}")
            self._sizes[key] = value.size, value.properties.dtype
            start, stop = int(match["start"]), int(match["stop"])
            whole_range = tuple(value.size) not in ((), (stop - start,))
            self._by_name.setdefault(match["name"], []).append(
                StoredPart(key, match["kind"], start, stop, whole_range)
            )

    @property
    def kinds(self) -> set[str]:
        """Kinds of entries, of all parameters and ranks."""
        return {entry.kind for entries in self._by_name.values() for entry in entries}

    def other_order(self, layout: ParameterLayout) -> bool:
        """Whether a parameter's elements are stored in another order than they are owned in."""
        return layout.transposed != (layout.name in self._transposed)

    def list_needed_keys(self, part: OwnedPart, sharding: str) -> list[str]:
        """Return the keys that hold an owned part, for states with ``sharding``.

        ``ValueError`` if elements are missing, or a state belongs to another range.
        """
        entries = self._overlapping(part)
        for entry in entries:
            same = (entry.start, entry.stop, self._sharding) == (part.start, part.stop, sharding)
            if entry.whole_range and (not same or self.other_order(part.layout)):
                raise ValueError(
                    f"{self.path} has {entry.kind!r} of elements {entry.start} to {entry.stop} of "
                    f"{part.layout.name} as one, from sharding={self._sharding!r}, and this rank "
                    f"owns {part.start} to {part.stop} with sharding={sharding!r}: go on with the "
                    "sharding and the number of ranks that wrote it"
                )
        return [entry.key for entry in entries]

    def buffer(self, key: str) -> Tensor:
        """Return a tensor to read ``key`` into."""
        size, dtype = self._sizes[key]
        return torch.empty(size, dtype=dtype)

    def fill(
        self,
        part: OwnedPart,
        states: UnitStates,
        optimizer: torch.optim.Optimizer,
        buffers: dict[str, Tensor],
    ) -> None:
        """Set a master and the optimizer's states of it from the stored values."""
        layout, other_order = part.layout, self.other_order(part.layout)
        first, last = (0, layout.numel) if other_order else (part.start, part.stop)
        flat: dict[str, Tensor] = {}
        state = optimizer.state[part.parameter]
        for entry in self._overlapping(part):
            value = buffers[entry.key]
            if value.dim() == 0 and not self._is_scalar(entry):
                # A count of steps, the same for every slice.
                state[entry.kind] = value.to(_count_device(part, optimizer), copy=True)
            elif entry.whole_range:
                state[entry.kind] = value.to(part.master.device, copy=True)
            else:
                elements = flat.setdefault(entry.kind, value.new_zeros(last - first))
                low, high = max(first, entry.start), min(last, entry.stop)
                values = value.reshape(-1)[low - entry.start : high - entry.start]
                elements[low - first : high - first] = values
        exact = flat[MASTER].dtype
        for kind, elements in flat.items():
            if other_order:
                other = elements.view(layout.columns, layout.rows)
                elements = other.t().reshape(-1)[part.start : part.stop]
            if kind == MASTER:
                part.master.copy_(elements)
            else:
                dtype = part.master.dtype if elements.dtype == exact else elements.dtype
                values = elements.to(part.master.device, dtype, copy=True)
                state[kind] = states.view_owned(layout, values)

    def _is_scalar(self, entry: StoredPart) -> bool:
        """Return whether an entry is the value of a parameter without axes, and no count."""
        one = entry.stop - entry.start == 1
        return one and entry.kind not in _COUNTS and self._sharding == "by_parameter"

    def _overlapping(self, part: OwnedPart) -> list[StoredPart]:
        """List the entries that share elements of an owned part."""
        start, stop = part.start, part.stop
        if self.other_order(part.layout):  # a range of one order lies all over the other
            start, stop = 0, part.layout.numel
        entries = [
            entry
            for entry in self._by_name.get(part.layout.name, ())
            if entry.start < stop and start < entry.stop
        ]
        masters = [entry for entry in entries if entry.kind == MASTER]
        held = sum(min(stop, entry.stop) - max(start, entry.start) for entry in masters)
        if held != stop - start:
            raise ValueError(
                f"{self.path} does not hold elements {start} to {stop} of {part.layout.name}: "
                "it is a checkpoint of another model"
            )
        return entries


def _count_device(part: OwnedPart, optimizer: torch.optim.Optimizer) -> torch.device:
    """Return the device of an optimizer's count of steps, as ``Optimizer.load_state_dict`` has it.

    That of the parameter if its group is fused or capturable, and the host's if not.
    """
    for group in optimizer.param_groups:
        if any(parameter is part.parameter for parameter in group["params"]):
            on_device = group.get("fused") or group.get("capturable")
            return part.master.device if on_device else torch.device("cpu")
    return torch.device("cpu")
