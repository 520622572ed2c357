"""The states of a module whose pipelines compute with whole parameters: tp = pp = 1.

Every rank computes with all parameters, so that parameters are all-gathered and gradients
reduce-scattered, or broadcast from each owner of whole parameters and reduced to it. A rank
holds, in bytes for each parameter of the model: its dtype's 2 or 4, 4 of gradients, and (4 master +
the optimizer's) / ranks; with 4 / ranks of summed gradients from the last backward to the update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from seqplan.plans.views.optimizer_sharding import Sharding, unit_layouts
from seqplan.plans.views.parameter_layout import Block, ParameterLayout
from seqplan.plans.views.unit_layout import UnitLayout
from seqplan.runtime.errors import communicating
from seqplan.runtime.experts.blocks import SplitExperts
from seqplan.runtime.states.gradient_reduction import Reduce
from seqplan.runtime.states.materialize import find_device, materialize_model
from seqplan.runtime.states.replicas import check_equal_models, check_no_batch_norm
from seqplan.runtime.states.sync import collective_sync
from seqplan.runtime.states.unit import Unit
from seqplan.runtime.states.unit_states import UnitStates

ALIGNED_BYTES = 16
"""Of a vectorized load on CUDA."""


@dataclass(frozen=True, slots=True)
class UnitContent:
    """The parameters of a unit by name, of one dtype; ``split``: whether ranks hold parts."""

    label: str
    parameters: dict[str, nn.Parameter]
    split: bool


class ShardedStates(UnitStates):
    """The parameters of ``model`` as units over ``group``, which carries nothing else.

    A unit has a layer's parameters of one dtype; ``sharding``: how ranks share it. Takes over the
    model: its parameters become views of flat buffers, in their dtype; the master copies are
    fp32, or fp64 for fp64 parameters. The values of the group's first rank are taken. Frozen
    parameters and buffers are left alone; ``ValueError`` if they, or shapes or dtypes, differ
    between ranks, or a module normalizes over the tokens of a batch.
    ``reduce``: whether gradients are summed at their owners once a step, or after
    each ``micro-batch``, so that no rank keeps all of them and all go through the step in lockstep.

    ``device``: where ranks compute, by default that of the model. Ranks but the first may have the
    model on the meta device, and take all of its values, frozen ones and buffers too. ``experts``:
    those that are split, whose units are synchronized between the ranks that hold the same part.

    After a step the model holds the parameters that the step computed with; ``materialize``
    brings it up to date.
    """

    def __init__(
        self,
        model: nn.Module,
        group: dist.ProcessGroup,
        *,
        sharding: Sharding = "flat",
        reduce: Reduce = "step",
        device: torch.device | None = None,
        experts: SplitExperts | None = None,
    ) -> None:
        check_no_batch_norm(model)
        split = frozenset[str]() if experts is None else experts.names
        materialize_model(model, group, find_device(model, device), split)
        check_equal_models(model, group, split)
        modules = _unit_modules(model)
        contents = _divide_into_units(modules, split)
        unit_of = {id(p): at for at, unit in enumerate(contents) for p in unit.parameters.values()}
        groups = [
            experts.blocks.replicas if experts is not None and unit.split else group
            for unit in contents
        ]
        layouts = _lay_out(contents, groups, sharding)
        units = [
            _unit(
                layout,
                content.parameters,
                dist.get_rank(over),
                keeps_gradient=reduce == "step",
                part=(0, 1) if over is group or experts is None else experts.blocks.part,
            )
            for layout, content, over in zip(layouts, contents, groups, strict=True)
        ]
        super().__init__(units, group, reduce=reduce)
        self._hooks: list[RemovableHandle] = []
        self._shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        self.syncs = [
            collective_sync(over, layout) for over, layout in zip(groups, layouts, strict=True)
        ]
        for module, parameters, is_inside in _iterate_users(model, modules):
            needed = {unit_of[id(p)] for p in parameters if id(p) in unit_of}
            if needed:
                hook = self._waits_for(sorted(needed), is_inside)
                self._hooks.append(module.register_forward_pre_hook(hook))
        for unit, over in zip(units, groups, strict=True):
            with communicating("taking over the first rank's parameters"):
                dist.broadcast(unit.flat, dist.get_global_rank(over, 0), group=over)
            unit.master[: unit.stop - unit.start] = unit.flat[unit.start : unit.stop]
            for index, parameter in enumerate(unit.parameters):
                watched: Any = parameter
                hook = watched.register_post_accumulate_grad_hook(self.watch(unit, index))
                self._hooks.append(hook)

    def close(self) -> None:
        """Let the model run by itself again, with the values after the last step; collective.

        Its parameters stay parts of flat buffers.
        """
        self.materialize()
        for hook in self._hooks:
            hook.remove()

    def materialize(self) -> None:
        """Update the model's parameters, to evaluate, generate or save with it.

        Collective, between steps. A step gathers parameters itself, with or without this call.
        """
        self.all_gather()
        for at in range(len(self.units)):
            self.finish_all_gather(at)

    def in_model(self, layout: ParameterLayout, elements: Tensor) -> Tensor:
        """As ``UnitStates.in_model``, of any number of axes."""
        shape = self._shapes[layout.name]
        # Of split experts all parts, of which the shape is one.
        whole = elements.numel() > layout.numel
        return elements.view(-1, *shape[1:]) if whole else elements.view(shape)

    def _waits_for(self, units: list[int], is_inside: bool) -> Any:
        def wait(module: nn.Module, arguments: Any) -> None:
            # A compiled layer has waited. Its graph, which layers share, would depend on units.
            if is_inside and torch.compiler.is_compiling():
                return
            for at in units:
                self.finish_all_gather(at)

        return wait


def _divide_into_units(
    modules: Sequence[tuple[str, nn.Module]], split: frozenset[str]
) -> list[UnitContent]:
    """Divide trained parameters by module, dtype and whether they are of ``split`` experts.

    A parameter of several modules belongs to the first.
    """
    contents: list[UnitContent] = []
    taken: set[int] = set()
    for name, module in modules:
        by_kind: dict[tuple[torch.dtype, bool], list[tuple[str, nn.Parameter]]] = {}
        for key, parameter in module.named_parameters():
            if parameter.requires_grad and id(parameter) not in taken:
                named = f"{name}.{key}" if name else key, parameter
                by_kind.setdefault((parameter.dtype, named[0] in split), []).append(named)
                taken.add(id(parameter))
        label = name or "the model itself"
        for (_, is_split), same in by_kind.items():
            parameters = dict(sorted(same, key=_is_odd))
            contents.append(
                UnitContent(f"{label} (experts)" if is_split else label, parameters, is_split)
            )
    return contents


def _is_odd(named: tuple[str, nn.Parameter]) -> bool:
    """Whether the next parameter in a buffer would be off a boundary of ``ALIGNED_BYTES``.

    Such parameters are last in their unit: kernels of grouped products reject others that are off.
    """
    return bool(named[1].numel() * named[1].element_size() % ALIGNED_BYTES)


def _lay_out(
    contents: Sequence[UnitContent],
    groups: Sequence[dist.ProcessGroup],
    sharding: Sharding,
) -> list[UnitLayout]:
    """Lay out units over the ranks of their groups, those of one group together."""
    layouts: dict[int, UnitLayout] = {}
    for group in dict.fromkeys(groups):
        places = [at for at, over in enumerate(groups) if over is group]
        named = [(contents[at].label, _layouts(contents[at].parameters)) for at in places]
        laid_out = unit_layouts(named, 1, dist.get_world_size(group), sharding)
        layouts.update(zip(places, laid_out, strict=True))
    return [layouts[at] for at in range(len(contents))]


def _layouts(parameters: Mapping[str, nn.Parameter]) -> list[ParameterLayout]:
    return [
        ParameterLayout(
            name,
            (Block(rows),),
            parameter.numel() // max(rows, 1),
            (0,),
            vector=parameter.dim() < 2,
        )
        for name, parameter in parameters.items()
        for rows in (parameter.shape[0] if parameter.dim() else 1,)
    ]


def _unit(
    layout: UnitLayout,
    parameters: Mapping[str, nn.Parameter],
    rank: int,
    *,
    keeps_gradient: bool,
    part: tuple[int, int],
) -> Unit:
    """Make a unit that holds whole parameters, as views of its buffer from now on."""
    first = next(iter(parameters.values()))
    unit = Unit(
        layout,
        rank,
        first.dtype,
        first.device,
        keeps_gradient=keeps_gradient,
        part=part[0],
        parts=part[1],
    )
    unit.reserve(unit.padded)
    for of_parameter, at in zip(layout.parameters, layout.offsets, strict=True):
        parameter = parameters[of_parameter.name]
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
            if _is_list(child):
                modules.extend((f"{path}.{key}", layer) for key, layer in child.named_children())
            elif _contains_list(child) or _is_container(child, nn.ModuleDict):
                visit(path, child)
            else:
                modules.append((path, child))

    visit("", model)
    modules.append(("", model))
    return modules


def _is_list(module: nn.Module) -> bool:
    """Return whether each element is a unit; elements of a ``ModuleDict`` may be lists."""
    if isinstance(module, nn.ModuleList):
        return True
    return _is_container(module, nn.Sequential) and not _contains_list(module)


def _is_container(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether ``module`` is of ``kind``, and all parameters are of its elements."""
    return isinstance(module, kind) and not list(module.parameters(recurse=False))


def _contains_list(module: nn.Module) -> bool:
    return any(isinstance(inner, nn.ModuleList) for inner in module.modules())


def _iterate_users(
    model: nn.Module, units: Sequence[tuple[str, nn.Module]]
) -> Iterator[tuple[nn.Module, list[nn.Parameter], bool]]:
    """Yield modules with parameters to wait for, and whether a unit's module is around them.

    First the modules of units with all parameters inside them, so that the wait is early. Then each
    module with its direct parameters; a list of parameters has no forward, so the next module
    around it that has one waits for them.
    """
    called = [module for name, module in units if name and _has_forward(module)]
    inside = {id(inner) for module in called for inner in module.modules()}
    for module in called:
        yield module, list(module.parameters()), False

    def visit(module: nn.Module, caller: nn.Module) -> Iterator[Any]:
        caller = module if _has_forward(module) else caller
        yield caller, list(module.parameters(recurse=False)), id(caller) in inside
        for child in module.children():
            yield from visit(child, caller)

    yield from visit(model, model)


def _has_forward(module: nn.Module) -> bool:
    forward: Any = module.forward
    return getattr(forward, "__func__", None) is not nn.Module.forward
