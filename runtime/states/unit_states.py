"""Optimizer states in units, and a step's sync of parameters and gradients.

Optimization is separate from forward and backward (Hydraulis §5.2): fp32 master parameters and
optimizer states are split over all ranks and never move, in even slices or, if an optimizer needs
whole matrices, parameter by parameter. Before a step every rank gathers the parameters that its
pipelines compute with. After it every rank sends its gradients to their owners, who sum them.

Parameters and gradients travel in units, so that a layer computes as soon as its parameters
are there, and its gradients leave while earlier layers are still in backward. All ranks start these
syncs in one order, also on ranks without work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import record_function

from seqplan.plans.views.parameter_layout import ParameterLayout
from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.device_copy import copy_to_device
from seqplan.runtime.errors import communicating
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.states.gradient_reduction import (
    GradientReduction,
    Reduce,
    ReduceEachMicroBatch,
    ReduceOnce,
)
from seqplan.runtime.states.sync import Finish, ParameterSync
from seqplan.runtime.states.unit import Unit, flatten_to_storage, natural
from seqplan.runtime.stopwatch import Stopwatch


def _run_apart(finish: Finish, stopwatch: Stopwatch | None) -> None:
    with record_function("seqplan::wait_for_parameters"):
        if stopwatch is None:
            finish()
        else:
            stopwatch.run_apart(finish)


_disable: Any = torch._disable_dynamo  # type: ignore[attr-defined]
_finish_apart = _disable(_run_apart)
"""For compiled layers, which trace what they wait for."""


class UnitStates:
    """``units`` in the order of their first use; ``group`` carries nothing else.

    ``syncs``: how each unit travels in the step at hand; ``reduce``: after what gradients are
    summed at their owners; ``stopwatch``: of the step's micro-batches, which does not count waits
    for parameters.
    """

    def __init__(
        self, units: Sequence[Unit], group: dist.ProcessGroup, *, reduce: Reduce = "step"
    ) -> None:
        if reduce not in get_args(Reduce):
            raise ValueError(f"reduce must be {' or '.join(get_args(Reduce))}, not {reduce!r}")
        self.units = list(units)
        self.syncs: list[ParameterSync] = []
        self.stopwatch: Stopwatch | None = None
        self._masters: list[tuple[str, nn.Parameter]] = []
        self._group = group
        self._gathering: list[Finish | None] = [None] * len(self.units)
        self._reduction: GradientReduction
        if reduce == "step":
            self._reduction = ReduceOnce(self.units, self._start_reduce_scatter)
        else:
            self._reduction = ReduceEachMicroBatch(self.units, self._start_reduce_scatter, group)

    @property
    def device(self) -> torch.device:
        """Where the model computes; the CPU for a model without trained parameters."""
        return self.units[0].device if self.units else torch.device("cpu")

    @property
    def whole_owners(self) -> bool:
        """Whether owners hold whole parameters, not slices."""
        return any(unit.layout.owners is not None for unit in self.units)

    def master_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return what this rank owns by parameter name, for the optimizer.

        Slices of one axis, for an element-wise optimizer such as AdamW, whose names repeat over
        ranks that share a parameter; or whole parameters in the model's shapes. They have gradients
        from ``reduce_scatter`` to the next ``all_gather``.
        """
        if not self._masters:
            self._masters = [
                (layout.name, nn.Parameter(self.view_owned(layout, master)))
                for layout, master, _ in self._iterate_owned()
            ]
        return list(self._masters)

    def _iterate_owned(self) -> Iterator[tuple[ParameterLayout, Tensor, Tensor]]:
        """Yield what this rank owns: parameter, master and summed gradient, flat."""
        for unit in self.units:
            for layout, _, master, gradient in unit.iterate_owned():
                yield layout, master, gradient

    def check_non_blocking(self) -> None:
        """Raise ``ValueError`` if a step waits for the device on the host."""
        if isinstance(self._reduction, ReduceEachMicroBatch):
            raise ValueError(
                "reduce='micro-batch' waits for the ranks' counts of micro-batches: use "
                "reduce='step', or non_blocking=False"
            )

    def view_owned(self, layout: ParameterLayout, elements: Tensor) -> Tensor:
        """View elements that are owned here in the shape in which the optimizer has them."""
        return self.in_model(layout, elements) if self.whole_owners else elements

    def in_model(self, layout: ParameterLayout, elements: Tensor) -> Tensor:
        """View a parameter's elements, in storage order, as the model has them.

        All of them, or, of experts that are split, those of this rank.
        """
        return natural(layout, elements)

    def all_gather(self, view: RankView | None = None) -> None:
        """Start bringing every unit's parameters here; forward waits for each as it comes to it.

        Also clears the step's gradients. ``view``: of the step, needed if gradients are reduced
        after each micro-batch.
        """
        self.forget_gradients()
        with record_function("seqplan::all_gather"):
            self._reduction.begin(view)
            for at, unit in enumerate(self.units):
                unit.clear_gradients()
                self._gathering[at] = self.syncs[at].all_gather(unit)

    def finish_all_gather(self, at: int) -> None:
        """Wait for a unit's parameters, if its all-gather is under way."""
        finish = self._gathering[at]
        if finish is not None:
            self._gathering[at] = None
            _finish_apart(finish, self.stopwatch)

    def next_micro_batch(self) -> None:
        """Get ready for a micro-batch's forward; call it before each.

        Where gradients are reduced after each micro-batch this rank takes part here in what others
        sum while it has nothing to do; else nothing happens.
        """
        self._reduction.next_micro_batch()

    def backward(
        self, tensor: Tensor, gradient: Tensor | None = None, *, last: bool = False
    ) -> None:
        """Run a micro-batch's backward; in the ``last`` one, finished units are reduced meanwhile.

        ``last`` only if the plan allows it (``MicroBatchWork.last``); never setting it is safe.
        ``gradient``: of ``tensor``, if that is no scalar. Where gradients are reduced after each
        micro-batch, finished units are reduced in all of them.
        """
        self._reduction.begin_backward(last=last)
        torch.autograd.backward(tensor, gradient)
        self._reduction.end_backward()

    def reduce_scatter(self) -> None:
        """Sum every unit's gradients at their owners, those that backward has not begun included.

        Called once a step by every rank, also by those without work.
        """
        with record_function("seqplan::reduce_scatter"):
            self._reduction.finish()
        owned = zip(self.master_parameters(), self._iterate_owned(), strict=True)
        for (_, parameter), (layout, _, gradient) in owned:
            parameter.grad = self.view_owned(layout, gradient)

    def forget_gradients(self) -> None:
        """Free the summed gradients of what this rank owns, which the optimizer has read."""
        for _, parameter in self._masters:
            parameter.grad = None
        for unit in self.units:
            unit.forget_reduced()

    def start_norm_and_sum(self, value: Tensor | float = 0.0, labels: float = 0.0) -> Tensor:
        """Sum the squares of the whole gradient, ``value`` and ``labels`` over all ranks, together.

        float64 (3,), on the device, which the host does not wait for.
        """
        counts = torch.tensor([0.0, 0.0, labels], dtype=torch.float64)
        sums = copy_to_device(counts, self.device)
        for unit in self.units:
            sums[0] += unit.reduced.double().square().sum()
        sums[1] += value
        with communicating("summing the gradient's norm and the loss"):
            dist.all_reduce(sums, group=self._group)
        return sums

    def gradient_norm_and_sum(self, value: Tensor | float = 0.0) -> tuple[float, float]:
        """Return the norm of the whole gradient, and ``value`` summed over all ranks, together."""
        squares, total, _ = self.start_norm_and_sum(value).tolist()
        return squares**0.5, total

    def start_sums(self, values: Sequence[float]) -> Tensor:
        """Sum each of ``values`` over all ranks: float64, on the device, without waiting."""
        sums = copy_to_device(torch.tensor(values, dtype=torch.float64), self.device)
        with communicating("summing what the step counts"):
            dist.all_reduce(sums, group=self._group)
        return sums

    def scale_gradients(self, factor: float | Tensor) -> None:
        """Multiply the summed gradients, for clipping by their global norm.

        ``factor``: a number, or a scalar on the device.
        """
        for unit in self.units:
            unit.reduced.mul_(factor)

    def export(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every trained parameter by name, on the group's first rank; nothing on the others.

        From the master copies, in their dtype, on CPU, as the model has them. Collective: every
        rank goes through it, between steps. One unit at a time is whole, on the first rank only.
        """
        for unit in self.units:
            yield from self.gather_unit(unit, 0)

    def gather_unit(self, unit: Unit, destination: int) -> Iterator[tuple[str, Tensor]]:
        """Gather a unit's parameters, as of ``export``, on one rank of the group; collective."""
        rank = dist.get_rank(self._group)
        whole = torch.empty(unit.elements if rank == destination else 0, dtype=unit.exact)
        # Batches use the group's communicator; a single send on NCCL makes one for its pair.
        peers = Peers(self._group, f"exporting the parameters of {unit.name}")
        mine = unit.master[: unit.stop - unit.start]
        for owner, part in self._iterate_owners(unit):
            if owner == destination:
                if rank == owner:
                    whole[part] = mine
            elif rank == owner:
                peers.transfer([(mine, dist.get_global_rank(self._group, destination))], []).wait()
            elif rank == destination:
                received = unit.master.new_empty(part.stop - part.start)
                peers.transfer([], [(received, dist.get_global_rank(self._group, owner))]).wait()
                whole[part] = received
        if rank == destination:
            for name, value in self.view_unit(unit, whole):
                yield name, value.clone(memory_format=torch.contiguous_format)

    def scatter_unit(self, unit: Unit, source: int, values: Mapping[str, Tensor]) -> None:
        """Set a unit's masters from parameters by name on one rank of the group; collective."""
        rank = dist.get_rank(self._group)
        peers = Peers(self._group, f"importing the parameters of {unit.name}")
        mine = unit.master[: unit.stop - unit.start]
        whole = torch.empty(unit.elements if rank == source else 0, dtype=unit.exact)
        if rank == source:
            for layout, stored in unit.of_whole(whole):
                stored.copy_(flatten_to_storage(layout, values[layout.name]).view(stored.shape))
        for owner, part in self._iterate_owners(unit):
            if owner == source:
                if rank == owner:
                    mine.copy_(whole[part])
            elif rank == source:
                sent = whole[part].to(unit.device)
                peers.transfer([(sent, dist.get_global_rank(self._group, owner))], []).wait()
            elif rank == owner:
                peers.transfer([], [(mine, dist.get_global_rank(self._group, source))]).wait()

    def view_unit(self, unit: Unit, whole: Tensor) -> Iterator[tuple[str, Tensor]]:
        """View a whole unit's elements, in storage order, as the model's parameters by name."""
        for layout, stored in unit.of_whole(whole):
            yield layout.name, self.in_model(layout, stored.reshape(-1))

    def _iterate_owners(self, unit: Unit) -> Iterator[tuple[int, slice]]:
        """Yield each rank that owns elements of a unit, and their place in the whole."""
        for part in range(unit.parts):
            first = part * unit.layout.elements
            for owner in range(unit.layout.ranks):
                start, stop = unit.layout.iterate_owned(owner)
                if start < stop:
                    yield owner * unit.parts + part, slice(first + start, first + stop)

    def watch(self, unit: Unit, index: int) -> Callable[[Tensor], None]:
        """Return the hook that a held parameter calls when backward has added its gradient.

        Of unit and states it has weak references: Python does not collect what hooks of a tensor
        refer to, and these refer to the tensor. ``RuntimeError`` if forward used the parameter
        without waiting for it.
        """
        states, held = ref(self), ref(unit)
        at = next(place for place, other in enumerate(self.units) if other is unit)

        def accumulated(_: Tensor) -> None:
            of_states, of_unit = states(), held()
            if of_states is not None and of_unit is not None:
                if of_states._gathering[at] is not None:
                    raise RuntimeError(
                        f"parameters were used before they were there: {of_unit.name}. Call the "
                        "module that has them, or give them to the module whose forward uses them"
                    )
                of_unit.accumulate(index)
                of_states._reduction.on_accumulated(of_unit)

        return accumulated

    def _start_reduce_scatter(self, at: int, add: bool) -> Finish:
        self.finish_all_gather(at)  # of a unit that this rank only owns, or has not used
        self.units[at].reserve_reduced()
        with record_function("seqplan::start_reduce_scatter"):
            return self.syncs[at].reduce_scatter(self.units[at], add=add)
