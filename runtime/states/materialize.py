"""Models on the meta device: ranks that load no values take the first rank's."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seqplan.runtime.errors import communicating
from seqplan.runtime.states.replicas import check_equal_tensors, gather_equal_shapes


def find_device(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Return where a model computes: ``device``, or that of its first tensor if None.

    ``ValueError`` for the meta device, which has no values.
    """
    if device is None:
        tensors = (*model.parameters(), *model.buffers())
        device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    device = torch.device(device)
    if device.type == "meta":
        raise ValueError("the model is on the meta device: give the device that it computes on")
    return device


def materialize_model(
    model: nn.Module,
    group: dist.ProcessGroup,
    device: torch.device,
    split: Collection[str] = (),
) -> None:
    """Give every rank's model the first rank's values, on ``device``, if any has none.

    Collective. Parameters, tied ones once, are then other objects than before. ``split``: names of
    parameters of which each rank has its part already, which stay. ``ValueError`` on
    every rank if the first rank's model is on the meta device too, or names or shapes differ.
    """
    parameters = [entry for entry in model.named_parameters() if entry[0] not in split]
    named = [*parameters, *model.named_buffers()]
    lacks = torch.tensor([any(tensor.is_meta for _, tensor in named)], device=device)
    everyone = gather_equal_shapes(lacks, group)
    if not any(bool(flag) for flag in everyone):
        return
    if everyone[0]:
        raise ValueError("the model of the first rank is on the meta device: load its values there")
    check_equal_tensors([(name, tensor, True) for name, tensor in named], group, device)
    kept = {id(parameter) for name, parameter in model.named_parameters() if name in split}
    _move(model, device, kept)
    first = dist.get_global_rank(group, 0)
    moved = (parameter for parameter in model.parameters() if id(parameter) not in kept)
    for tensor in (*moved, *model.buffers()):
        with communicating("taking over the first rank's model"), torch.no_grad():
            dist.broadcast(tensor.detach(), first, group=group)


def _move(model: nn.Module, device: torch.device, kept: Collection[int]) -> None:
    """Put all tensors on a device but those ``kept``, by id.

    Those on the meta device have no values then either.
    """
    moved: dict[int, Tensor] = {}

    def move(tensor: Tensor) -> Tensor:
        value = tensor.detach()
        return torch.empty_like(value, device=device) if value.is_meta else value.to(device)

    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or id(parameter) in kept:
                continue
            if id(parameter) not in moved:
                moved[id(parameter)] = nn.Parameter(move(parameter), parameter.requires_grad)
            module._parameters[name] = cast(nn.Parameter, moved[id(parameter)])
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = moved.setdefault(id(buffer), move(buffer))
