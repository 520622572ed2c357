"""Models on the meta device: ranks that load no values take the first rank's."""

from __future__ import annotations

from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seqplan.runtime.errors import communicating
from seqplan.runtime.states.replicas import check_equal_tensors


def find_device(model: nn.Module, device: torch.device | None) -> torch.device:
    """Return where a model computes: ``device``, or that of its first tensor if None.

    ``ValueError`` for the meta device, which has no values.
    """
    if device is None:
        tensors = (*model.parameters(), *model.buffers())
        device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    if device.type == "meta":
        raise ValueError("the model is on the meta device: give the device that it computes on")
    return device


def materialize_model(model: nn.Module, group: dist.ProcessGroup, device: torch.device) -> None:
    """Give every rank's model the first rank's values, on ``device``, if any has none.

    Collective. Parameters, tied ones once, are then other objects than before. ``ValueError`` on
    every rank if the first rank's model is on the meta device too, or names or shapes differ.
    """
    named = [*model.named_parameters(), *model.named_buffers()]
    lacks = torch.tensor([any(tensor.is_meta for _, tensor in named)], device=device)
    everyone = [torch.empty_like(lacks) for _ in range(dist.get_world_size(group))]
    with communicating("comparing the ranks' models"):
        dist.all_gather(everyone, lacks, group=group)
    if not any(bool(flag) for flag in everyone):
        return
    if everyone[0]:
        raise ValueError("the model of the first rank is on the meta device: load its values there")
    check_equal_tensors([(name, tensor, True) for name, tensor in named], group, device)
    _move(model, device)
    first = dist.get_global_rank(group, 0)
    for tensor in (*model.parameters(), *model.buffers()):
        with communicating("taking over the first rank's model"), torch.no_grad():
            dist.broadcast(tensor.detach(), first, group=group)


def _move(model: nn.Module, device: torch.device) -> None:
    """Put all tensors on a device, without values those that had none."""
    moved: dict[int, Tensor] = {}

    def move(tensor: Tensor) -> Tensor:
        value = tensor.detach()
        return torch.empty_like(value, device=device) if value.is_meta else value.to(device)

    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in moved:
                moved[id(parameter)] = nn.Parameter(move(parameter), parameter.requires_grad)
            module._parameters[name] = cast(nn.Parameter, moved[id(parameter)])
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = moved.setdefault(id(buffer), move(buffer))
