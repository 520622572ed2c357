"""Optimizer states that stay where they are while the parallel strategy changes.

Optimization is apart from propagation (Hydraulis §5.2): fp32 master parameters and optimizer states
are split evenly over all ranks and never move. Before a step every rank pulls the parameters that
its pipelines compute with; after it every rank pushes its gradients to their owners, who sum them.
With tp = pp = 1 every rank computes with all parameters, so that the pull is an all-gather and the
push a reduce-scatter (``resharding`` has the general transfer list).

Parameters are pulled and pushed in *units*, a layer each, so that a layer computes as soon as its
own parameters are there, and its gradients leave while earlier layers are still in backward.
All ranks start these collectives in one order, whatever work a rank has: also with none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seqplan.runtime.dtypes import accumulation_dtype

# Named so from torch 2.13 on, which warns of the names before.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Unit:
    """Parameters that travel together, flattened one after the other.

    Rank r owns elements ``[r·s, (r+1)·s)`` of them, s = ⌈elements / ranks⌉; the last owners may
    have fewer or none. ``master`` and ``reduced`` are the owned slice and its gradient, in fp32
    (fp64 for an fp64 model).
    """

    def __init__(
        self,
        name: str,
        parameters: Sequence[tuple[str, nn.Parameter]],
        group: dist.ProcessGroup,
    ) -> None:
        self.name = name
        self.names = [key for key, _ in parameters]
        self.parameters = [parameter for _, parameter in parameters]
        first = self.parameters[0]
        if len({parameter.dtype for parameter in self.parameters}) > 1:
            raise ValueError(
                f"unit {name or 'of the model itself'!r} mixes dtypes "
                f"{sorted({str(parameter.dtype) for parameter in self.parameters})}: "
                "convert the model to one dtype first"
            )
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        self.elements = sum(parameter.numel() for parameter in self.parameters)
        self.shard_elements = -(-self.elements // ranks)
        padded = self.shard_elements * ranks
        self.start = min(rank * self.shard_elements, self.elements)
        self.stop = min(self.start + self.shard_elements, self.elements)
        exact = accumulation_dtype(first.dtype)
        self.flat = torch.zeros(padded, dtype=first.dtype, device=first.device)
        self.gradient = torch.zeros(padded, dtype=exact, device=first.device)
        self.master = torch.zeros(self.shard_elements, dtype=exact, device=first.device)
        self.reduced = torch.zeros_like(self.master)
        self.offsets: list[int] = []
        at = 0
        for parameter in self.parameters:
            self.offsets.append(at)
            end = at + parameter.numel()
            self.flat[at:end] = parameter.detach().reshape(-1)
            parameter.data = self.flat[at:end].view(parameter.shape)
            at = end
        self.master[: self.stop - self.start] = self.flat[self.start : self.stop]
        self.awaited = len(self.parameters)
        self.pulling: dist.Work | None = None
        self.pushing: dist.Work | None = None

    def accumulate(self, index: int) -> None:
        """Move a parameter's gradient to the step's sum."""
        parameter = self.parameters[index]
        if parameter.grad is not None:
            at = self.offsets[index]
            self.gradient[at : at + parameter.numel()] += parameter.grad.reshape(-1)
            parameter.grad = None

    def owned(self) -> Iterator[tuple[str, int, Tensor, Tensor]]:
        """Yield what is owned here: parameter name, first element, master slice and gradient."""
        for name, parameter, at in zip(self.names, self.parameters, self.offsets, strict=True):
            start = max(at, self.start)
            stop = min(at + parameter.numel(), self.stop)
            if start < stop:
                part = slice(start - self.start, stop - self.start)
                yield name, start - at, self.master[part], self.reduced[part]


class ShardedStates:
    """The parameters of ``model`` as units over ``group``, which carries nothing else.

    Takes over the model: its parameters become views of flat buffers, in their own dtype; the
    master copies are fp32, or fp64 for fp64 parameters. The values of the group's first rank are
    taken. Frozen parameters are left alone. ``ValueError`` for a unit of several dtypes.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        self._group = group
        self.units: list[Unit] = []
        owner: dict[int, Unit] = {}
        for name, module in _unit_modules(model):
            owned = [
                (f"{name}.{key}" if name else key, parameter)
                for key, parameter in module.named_parameters()
                if parameter.requires_grad and id(parameter) not in owner
            ]
            if not owned:
                continue
            unit = Unit(name, owned, group)
            self.units.append(unit)
            owner.update((id(parameter), unit) for _, parameter in owned)
        for name, module in _unit_modules(model):
            # Shared parameters belong to an earlier unit; the root waits for what only it has.
            parameters = module.parameters() if name else module.parameters(recurse=False)
            needed = {
                id(owner[id(parameter)]): owner[id(parameter)]
                for parameter in parameters
                if id(parameter) in owner
            }
            if needed:
                module.register_forward_pre_hook(_waits_for(list(needed.values())))
        for unit in self.units:
            dist.broadcast(unit.flat, dist.get_global_rank(group, 0), group=group)
            unit.master[: unit.stop - unit.start] = unit.flat[unit.start : unit.stop]
            for index, parameter in enumerate(unit.parameters):
                hook = self._hook(unit, index)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        self._pushed = 0
        self._last = False

    def master_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return the owned slices by parameter name, for an element-wise optimizer such as AdamW.

        A slice is one-dimensional; names repeat over ranks that share a parameter.
        """
        masters = []
        for unit in self.units:
            for name, _, master, gradient in unit.owned():
                parameter = nn.Parameter(master)
                parameter.grad = gradient
                masters.append((name, parameter))
        return masters

    def pull(self) -> None:
        """Start bringing every unit's parameters here; forward waits for each as it comes to it.

        Also clears the step's gradients.
        """
        self._pushed = 0
        for unit in self.units:
            unit.gradient.zero_()
            unit.awaited = len(unit.parameters)
            unit.pulling = _ALL_GATHER(
                unit.flat, unit.master.to(unit.flat.dtype), group=self._group, async_op=True
            )

    def backward(self, loss: Tensor, *, last: bool = False) -> None:
        """Run a micro-batch's backward; in the rank's ``last`` one, finished units are pushed."""
        self._last = last
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        finally:
            self._last = False

    def push(self) -> None:
        """Sum every unit's gradients at their owners, those that backward has not begun included.

        Called once a step by every rank, also by those without work.
        """
        while self._pushed < len(self.units):
            self._push_next()
        for unit in self.units:
            _finish(unit.pulling)
            _finish(unit.pushing)
            unit.pulling = unit.pushing = None

    def gradient_norm_and_sum(self, value: Tensor | float = 0.0) -> tuple[float, float]:
        """Return the norm of the whole gradient, and ``value`` summed over all ranks, together."""
        sums = torch.zeros(2, dtype=torch.float64, device=self.units[0].flat.device)
        for unit in self.units:
            sums[0] += unit.reduced.double().square().sum()
        sums[1] += value
        dist.all_reduce(sums, group=self._group)
        squares, total = sums.tolist()
        return squares**0.5, total

    def scale_gradients(self, factor: float) -> None:
        """Multiply the summed gradients, for clipping by their global norm."""
        for unit in self.units:
            unit.reduced.mul_(factor)

    def full_parameters(self) -> dict[str, Tensor]:
        """Gather every parameter from the master copies, whole, on every rank."""
        by_name = {}
        for unit in self.units:
            whole = unit.gradient.new_empty(unit.gradient.shape)
            _ALL_GATHER(whole, unit.master, group=self._group)
            for name, parameter, at in zip(unit.names, unit.parameters, unit.offsets, strict=True):
                by_name[name] = whole[at : at + parameter.numel()].view(parameter.shape).clone()
        return by_name

    def _hook(self, unit: Unit, index: int) -> Any:
        def accumulated(_: Tensor) -> None:
            unit.accumulate(index)
            if self._last:
                unit.awaited -= 1
                while self._pushed < len(self.units) and not self._next_to_push.awaited:
                    self._push_next()

        return accumulated

    @property
    def _next_to_push(self) -> Unit:
        """Backward comes to the last units first."""
        return self.units[-1 - self._pushed]

    def _push_next(self) -> None:
        unit = self._next_to_push
        unit.pushing = _REDUCE_SCATTER(
            unit.reduced, unit.gradient, group=self._group, async_op=True
        )
        self._pushed += 1


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


def _waits_for(units: list[Unit]) -> Any:
    def wait(module: nn.Module, arguments: Any) -> None:
        for unit in units:
            _finish(unit.pulling)
            unit.pulling = None

    return wait


def _finish(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()
