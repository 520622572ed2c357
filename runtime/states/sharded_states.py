"""The states of a module whose pipelines compute with whole parameters: tp = pp = 1.

Every rank computes with all parameters, so that the pull is an all-gather and the push a
reduce-scatter. A rank holds, in bytes for each parameter of the model: its dtype's 2 or 4, 4 of
gradients, and (4 master + 4 summed gradient + the optimizer's) / ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from seqplan.plans.views.parameter_layout import Block, ParameterLayout
from seqplan.plans.views.resharding import UnitLayout
from seqplan.runtime.errors import communicating
from seqplan.runtime.states.exchange import CollectiveExchange
from seqplan.runtime.states.replicas import refuse_differing_models
from seqplan.runtime.states.unit import Unit
from seqplan.runtime.states.unit_states import UnitStates


class ShardedStates(UnitStates):
    """The parameters of ``model`` as units over ``group``, which carries nothing else.

    A unit has a layer's parameters of one dtype. Takes over the model: its parameters become views
    of flat buffers, in their own dtype; the master copies are fp32, or fp64 for fp64 parameters.
    The values of the group's first rank are taken. Frozen parameters and buffers are left alone;
    ``ValueError`` where they, or shapes or dtypes, differ between ranks.

    After a step the model holds the parameters that the step computed with; ``materialize``
    brings it up to date.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        refuse_differing_models(model, group)
        modules = _unit_modules(model)
        units: list[Unit] = []
        owner: dict[int, int] = {}
        for name, module in modules:
            owned = [
                (f"{name}.{key}" if name else key, parameter)
                for key, parameter in module.named_parameters()
                if parameter.requires_grad and id(parameter) not in owner
            ]
            for dtype in dict.fromkeys(parameter.dtype for _, parameter in owned):
                alike = [entry for entry in owned if entry[1].dtype == dtype]
                owner.update((id(parameter), len(units)) for _, parameter in alike)
                units.append(_unit(name or "the model itself", alike, group))
        super().__init__(units, group)
        self._shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        self.exchanges = [CollectiveExchange(group)] * len(units)
        for name, module in modules:
            # Shared parameters belong to an earlier unit; the root waits for what only it has.
            parameters = module.parameters() if name else module.parameters(recurse=False)
            needed = {owner[id(parameter)] for parameter in parameters if id(parameter) in owner}
            if needed:
                module.register_forward_pre_hook(self._waits_for(sorted(needed)))
        for unit in units:
            with communicating("taking over the first rank's parameters"):
                dist.broadcast(unit.flat, dist.get_global_rank(group, 0), group=group)
            unit.master[: unit.stop - unit.start] = unit.flat[unit.start : unit.stop]
            for index, parameter in enumerate(unit.parameters):
                hook = self.watch(unit, index)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def materialize(self) -> None:
        """Bring the model's own parameters up to date, to evaluate, generate or save with it.

        Collective, between steps. A step pulls for itself, whether this was called or not.
        """
        self.pull()
        for at in range(len(self.units)):
            self.finish_pull(at)

    def export(self) -> Iterator[tuple[str, Tensor]]:
        """As ``UnitStates.export``."""
        for name, value in super().export():
            yield name, value.view(self._shapes[name])

    def _waits_for(self, units: list[int]) -> Any:
        def wait(module: nn.Module, arguments: Any) -> None:
            for at in units:
                self.finish_pull(at)

        return wait


def _unit(name: str, owned: list[tuple[str, nn.Parameter]], group: dist.ProcessGroup) -> Unit:
    """Make a unit that holds whole parameters, as views of its buffer from now on."""
    layouts = [
        ParameterLayout(key, (Block(rows),), parameter.numel() // max(rows, 1), (0,), vector=True)
        for key, parameter in owned
        for rows in (parameter.shape[0] if parameter.dim() else 1,)
    ]
    first = owned[0][1]
    layout = UnitLayout(name, layouts, 1, dist.get_world_size(group))
    unit = Unit(layout, dist.get_rank(group), first.dtype, first.device)
    unit.reserve(unit.padded)
    for (_, parameter), at in zip(owned, layout.offsets, strict=True):
        end = at + parameter.numel()
        unit.flat[at:end] = parameter.detach().reshape(-1)
        parameter.data = unit.flat[at:end].view(parameter.shape)
        unit.hold(parameter, at)
    return unit


def _unit_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """List every element of a list of modules, then its siblings, in registration order.

    The root comes last and takes the parameters that no other unit has.
    """
    modules: list[tuple[str, nn.Module]] = []

    def visit(prefix: str, module: nn.Module) -> None:
        for name, child in module.named_children():
            path = f"{prefix}.{name}" if prefix else name
            if isinstance(child, nn.ModuleList):
                modules.extend((f"{path}.{index}", layer) for index, layer in enumerate(child))
            elif any(isinstance(inner, nn.ModuleList) for inner in child.modules()):
                visit(path, child)
            else:
                modules.append((path, child))

    visit("", model)
    modules.append(("", model))
    return modules
