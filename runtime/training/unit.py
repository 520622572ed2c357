"""A unit: parameters that are pulled and pushed together, a layer's of one dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seqplan.runtime.dtypes import accumulation_dtype
from seqplan.runtime.errors import communicating

# Named so from torch 2.13 on, which warns of the names before.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Unit:
    """Parameters of one dtype that travel together, flattened one after the other.

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
        self.name = name or "the model itself"
        self.names = [key for key, _ in parameters]
        self.parameters = [parameter for _, parameter in parameters]
        first = self.parameters[0]
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
        self.gradients: list[Tensor] = []
        at = 0
        for parameter in self.parameters:
            self.offsets.append(at)
            end = at + parameter.numel()
            self.flat[at:end] = parameter.detach().reshape(-1)
            parameter.data = self.flat[at:end].view(parameter.shape)
            self.gradients.append(self.gradient[at:end].view(parameter.shape))
            at = end
        self.master[: self.stop - self.start] = self.flat[self.start : self.stop]
        self.awaited = len(self.parameters)
        self._pulling: dist.Work | None = None
        self._pushing: dist.Work | None = None

    def clear_gradients(self) -> None:
        """Set the step's sums to zero and let backward add to them, in place where it can."""
        self.gradient.zero_()
        self.awaited = len(self.parameters)
        if self.gradient.dtype == self.flat.dtype:
            for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
                parameter.grad = gradient

    def accumulate(self, index: int) -> None:
        """Move a parameter's gradient to the step's sum, unless backward has added it there."""
        parameter, total = self.parameters[index], self.gradients[index]
        if parameter.grad is not None and parameter.grad is not total:
            total += parameter.grad
            parameter.grad = total if total.dtype == parameter.dtype else None

    def owned(self) -> Iterator[tuple[str, int, Tensor, Tensor]]:
        """Yield what is owned here: parameter name, first element, master slice and gradient."""
        for name, parameter, at in zip(self.names, self.parameters, self.offsets, strict=True):
            start = max(at, self.start)
            stop = min(at + parameter.numel(), self.stop)
            if start < stop:
                part = slice(start - self.start, stop - self.start)
                yield name, start - at, self.master[part], self.reduced[part]

    def start_pull(self, group: dist.ProcessGroup) -> None:
        """Start bringing the parameters here from all owners."""
        with communicating(f"pulling the parameters of {self.name}"):
            self._pulling = _ALL_GATHER(
                self.flat, self.master.to(self.flat.dtype), group=group, async_op=True
            )

    def finish_pull(self) -> None:
        """Wait for the parameters, where a pull is under way."""
        if self._pulling is not None:
            with communicating(f"pulling the parameters of {self.name}"):
                self._pulling.wait()
            self._pulling = None

    def start_push(self, group: dist.ProcessGroup) -> None:
        """Start summing the gradients at their owners."""
        with communicating(f"pushing the gradients of {self.name}"):
            self._pushing = _REDUCE_SCATTER(self.reduced, self.gradient, group=group, async_op=True)

    def finish_push(self) -> None:
        """Wait for the summed gradients, where a push is under way."""
        if self._pushing is not None:
            with communicating(f"pushing the gradients of {self.name}"):
                self._pushing.wait()
            self._pushing = None
