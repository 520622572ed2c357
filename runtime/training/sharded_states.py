"""Optimizer states that stay where they are while the parallel strategy changes.

Optimization is apart from propagation (Hydraulis §5.2): fp32 master parameters and optimizer states
are split evenly over all ranks and never move. Before a step every rank pulls the parameters that
its pipelines compute with; after it every rank pushes its gradients to their owners, who sum them.
With tp = pp = 1 every rank computes with all parameters, so that the pull is an all-gather and the
push a reduce-scatter (``resharding`` has the general transfer list).

Parameters are pulled and pushed in *units*, a layer's parameters of one dtype each, so that a layer
computes as soon as its own parameters are there, and its gradients leave while earlier layers are
still in backward. All ranks start these collectives in one order, whatever work a rank has: also
with none.

A rank holds, in bytes for each parameter of the model: its dtype's 2 or 4 in ``flat``, 4 of
gradients in ``gradient``, and (4 master + 4 summed gradient + the optimizer's) / ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seqplan.runtime.errors import communicating
from seqplan.runtime.training.replicas import refuse_differing_models
from seqplan.runtime.training.unit import Unit


class ShardedStates:
    """The parameters of ``model`` as units over ``group``, which carries nothing else.

    Takes over the model: its parameters become views of flat buffers, in their own dtype; the
    master copies are fp32, or fp64 for fp64 parameters. The values of the group's first rank are
    taken. Frozen parameters and buffers are left alone; ``ValueError`` where they, or shapes or
    dtypes, differ between ranks.

    After a step the model holds the parameters that the step computed with; ``materialize``
    brings it up to date.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        refuse_differing_models(model, group)
        self._group = group
        self.units: list[Unit] = []
        owner: dict[int, Unit] = {}
        for name, module in _unit_modules(model):
            owned = [
                (f"{name}.{key}" if name else key, parameter)
                for key, parameter in module.named_parameters()
                if parameter.requires_grad and id(parameter) not in owner
            ]
            for dtype in dict.fromkeys(parameter.dtype for _, parameter in owned):
                alike = [entry for entry in owned if entry[1].dtype == dtype]
                unit = Unit(name, alike, group)
                self.units.append(unit)
                owner.update((id(parameter), unit) for _, parameter in alike)
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
            with communicating("taking over the first rank's parameters"):
                dist.broadcast(unit.flat, dist.get_global_rank(group, 0), group=group)
            unit.master[: unit.stop - unit.start] = unit.flat[unit.start : unit.stop]
            for index, parameter in enumerate(unit.parameters):
                hook = self._hook(unit, index)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        self._pushed = 0
        self._last = False

    @property
    def device(self) -> torch.device:
        """Where the model computes; the CPU for a model without trained parameters."""
        return self.units[0].flat.device if self.units else torch.device("cpu")

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
            unit.clear_gradients()
            unit.start_pull(self._group)

    def materialize(self) -> None:
        """Bring the model's own parameters up to date, to evaluate, generate or save with it.

        Collective, between steps. A step pulls for itself, whether this was called or not.
        """
        self.pull()
        for unit in self.units:
            unit.finish_pull()

    def backward(self, loss: Tensor, *, last: bool = False) -> None:
        """Run a micro-batch's backward; in the ``last`` one, finished units are pushed meanwhile.

        ``last`` only where the plan allows it (``MicroBatchWork.last``); never setting it is safe.
        """
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
            unit.finish_pull()
            unit.finish_push()

    def gradient_norm_and_sum(self, value: Tensor | float = 0.0) -> tuple[float, float]:
        """Return the norm of the whole gradient, and ``value`` summed over all ranks, together."""
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for unit in self.units:
            sums[0] += unit.reduced.double().square().sum()
        sums[1] += value
        with communicating("summing the gradient's norm and the loss"):
            dist.all_reduce(sums, group=self._group)
        squares, total = sums.tolist()
        return squares**0.5, total

    def scale_gradients(self, factor: float) -> None:
        """Multiply the summed gradients, for clipping by their global norm."""
        for unit in self.units:
            unit.reduced.mul_(factor)

    def export(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every trained parameter by name, on the group's first rank; nothing on the others.

        From the master copies, in their dtype, on CPU. Collective: every rank goes through it,
        between steps. One unit at a time is whole, on the first rank only.
        """
        first = dist.get_rank(self._group) == 0
        for unit in self.units:
            parts = [torch.empty_like(unit.master) for _ in range(self._group.size() * first)]
            with communicating(f"exporting the parameters of {unit.name}"):
                dist.gather(
                    unit.master,
                    parts if first else None,
                    dst=dist.get_global_rank(self._group, 0),
                    group=self._group,
                )
            if first:
                whole = torch.cat([part.cpu() for part in parts])
                for name, parameter, at in zip(
                    unit.names, unit.parameters, unit.offsets, strict=True
                ):
                    yield name, whole[at : at + parameter.numel()].view(parameter.shape).clone()

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
        self._next_to_push.start_push(self._group)
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
            unit.finish_pull()

    return wait
