"""A unit on a rank: the part that it owns for ever, and what it holds of it in a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from seqplan.plans.views.parameter_layout import ParameterLayout
from seqplan.plans.views.unit_layout import UnitLayout
from seqplan.runtime.dtypes import accumulation_dtype


class Unit:
    """Parameters of one dtype that travel together, see ``UnitLayout``.

    ``master`` and ``reduced``: the owned part and its summed gradient, in fp32 (fp64 for fp64
    parameters), the latter from its reduction on, until ``forget_reduced``. ``flat`` and
    ``gradient``: the buffers of the parts held in the step, in the parameters' dtype and in the
    master's; ``parameters``: the parts of ``flat`` that autograd knows as leaves, whose gradients
    ``accumulate`` adds to ``gradient``. Without ``keeps_gradient`` that is there from the first of
    them on, until ``forget_gradient``.

    Of experts that are split over ``parts`` ranks, the layout is of part ``part`` of each parameter
    along its first axis, and its ranks are those that hold it.
    """

    def __init__(
        self,
        layout: UnitLayout,
        rank: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        keeps_gradient: bool = True,
        part: int = 0,
        parts: int = 1,
    ) -> None:
        self.layout = layout
        self.part, self.parts = part, parts
        self.dtype, self.device = dtype, device
        self.exact = accumulation_dtype(dtype)
        self.start, self.stop = layout.iterate_owned(rank)
        self.master = torch.zeros(layout.room(rank), dtype=self.exact, device=device)
        self.reduced = torch.empty(0, dtype=self.exact, device=device)
        self.flat = torch.empty(0, dtype=dtype, device=device)
        self.gradient = torch.empty(0, dtype=self.exact, device=device)
        self.parameters: list[Tensor] = []
        self.places: list[slice] = []
        self.keeps_gradient = keeps_gradient
        self.awaited, self.reduction_started = 0, False

    @property
    def name(self) -> str:
        """What the unit is called in messages."""
        return self.layout.name

    @property
    def elements(self) -> int:
        """Elements of the whole unit, all parts of it."""
        return self.layout.elements * self.parts

    @property
    def padded(self) -> int:
        """Elements of this part with what makes all ranks' slices equally long."""
        return self.layout.padded

    def reserve(self, elements: int) -> None:
        """Allocate the step's parts; the previous ones are freed before."""
        self.parameters, self.places = [], []
        if self.flat.numel() != elements:
            self.flat = torch.empty(0, dtype=self.dtype, device=self.device)
            self.gradient = torch.empty(0, dtype=self.exact, device=self.device)
            self.flat = torch.zeros(elements, dtype=self.dtype, device=self.device)
            if self.keeps_gradient:
                self.reserve_gradient()

    def reserve_gradient(self) -> None:
        """Allocate zero gradients of the held parts, unless present."""
        if self.gradient.numel() != self.flat.numel():
            self.gradient = torch.zeros_like(self.flat, dtype=self.exact)

    def forget_gradient(self) -> None:
        """Free the held parts' gradient, unless it is kept."""
        if not self.keeps_gradient:
            self.gradient = torch.empty(0, dtype=self.exact, device=self.device)

    def reserve_reduced(self) -> None:
        """Allocate the owned part's summed gradient, without values, unless present."""
        if self.reduced.numel() != self.master.numel():
            self.reduced = torch.empty_like(self.master)

    def forget_reduced(self) -> None:
        """Free the owned part's summed gradient."""
        self.reduced = torch.empty(0, dtype=self.exact, device=self.device)

    def hold(self, parameter: Tensor, local: int) -> None:
        """Let autograd's leaf ``parameter``, a view of ``flat`` from ``local`` on, be held."""
        self.parameters.append(parameter)
        self.places.append(slice(local, local + parameter.numel()))

    def clear_gradients(self) -> None:
        """Zero the step's sums; backward adds to them, in place if it can."""
        self.gradient.zero_()
        self.awaited = len(self.parameters)
        if self.keeps_gradient and self.exact == self.dtype:
            for parameter, place in zip(self.parameters, self.places, strict=True):
                parameter.grad = self.gradient[place].view(parameter.shape)

    def accumulate(self, index: int) -> None:
        """Move a parameter's gradient to the sum, unless backward has added it there."""
        parameter = self.parameters[index]
        if parameter.grad is None:
            return
        self.reserve_gradient()
        total = self.gradient[self.places[index]].view(parameter.shape)
        if parameter.grad.data_ptr() != total.data_ptr():
            total += parameter.grad
            in_place = self.keeps_gradient and self.exact == self.dtype
            parameter.grad = total if in_place else None

    def iterate_owned(self) -> Iterator[tuple[ParameterLayout, int, Tensor, Tensor]]:
        """Yield the owned parts: parameter, first element, flat master and its gradient.

        The first element counts in the whole parameter.
        """
        for parameter, at in zip(self.layout.parameters, self.layout.offsets, strict=True):
            start = max(at, self.start)
            stop = min(at + parameter.numel, self.stop)
            if start < stop:
                part = slice(start - self.start, stop - self.start)
                first = self.part * parameter.numel + start - at
                yield parameter, first, self.master[part], self.reduced[part]

    def of_whole(self, whole: Tensor) -> Iterator[tuple[ParameterLayout, Tensor]]:
        """View each parameter in a flat tensor of the whole unit, in storage order.

        (elements,), or (parts, elements of each) if the unit is split: its parts follow each other.
        """
        of_parts = whole.view(self.parts, -1)
        for parameter, at in zip(self.layout.parameters, self.layout.offsets, strict=True):
            stored = of_parts[:, at : at + parameter.numel]
            yield parameter, stored if self.parts > 1 else stored[0]


def natural(parameter: ParameterLayout, stored: Tensor) -> Tensor:
    """View a whole parameter's or part's elements in storage order as the model has them.

    (rows,) or (rows, columns), the latter transposed if it is stored so.
    """
    if parameter.vector:
        return stored
    matrix = stored.view(-1, parameter.columns)
    return matrix.t() if parameter.transposed else matrix


def flatten_to_storage(parameter: ParameterLayout, value: Tensor) -> Tensor:
    """Flatten a whole parameter as the model has it to storage order."""
    return (value.t() if parameter.transposed else value).reshape(-1)


def concatenate_flat(parts: Sequence[Tensor]) -> Tensor:
    """Join one-dimensional tensors; one alone is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
