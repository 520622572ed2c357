"""A pipeline's passes on one rank, in 1F1B order, with what goes to and comes from its neighbors.

Shapes need no handshake: both sides of a transfer know the rows from their view, as the same
place of two stages holds the same tokens. In the steady state activations go out and a gradient
comes in together, or the other way round, in one batch that meets exactly one batch of the
neighbor's; in warm-up and cool-down each goes alone. The order is that of
``plans.views.collectives``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from seqplan.plans.one_f_one_b import stage_order
from seqplan.plans.views.rank_view import PipelineView
from seqplan.runtime.losses.router_loss import AddedTerm, RouterCounts
from seqplan.runtime.pipeline.stage import Stage, StageInput
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.training.run_step import SavedBytesCounter

Backward = Callable[[Tensor, Tensor | None, bool], None]
"""Runs a backward pass: of a tensor, its gradient if it is no scalar, and whether it is the
pipeline's last pass here."""


class PipelinePasses:
    """One pipeline's micro-batches ``works`` on this rank; ``peers``: over all ranks.

    ``scale``: what losses are multiplied by before backward; ``counter``: of bytes that forwards
    keep; ``dtype``: of hidden states; ``routers``: of the step's routers, if they have a loss.
    """

    def __init__(
        self,
        view: PipelineView,
        works: Sequence[StageInput],
        stage: Stage,
        peers: Peers,
        *,
        scale: float,
        counter: SavedBytesCounter,
        dtype: torch.dtype,
        device: torch.device,
        routers: RouterCounts | None = None,
    ) -> None:
        self._view, self._works, self._stage = view, works, stage
        self._peers, self._scale, self._counter = peers, scale, counter
        self._dtype, self._device, self._routers = dtype, device, routers
        self._arrived: dict[int, Tensor] = {}
        self._gradients: dict[int, Tensor] = {}
        self._kept: dict[int, tuple[Tensor | None, Tensor]] = {}
        self.loss: Tensor | float = 0.0

    def run(self, backward: Backward) -> None:
        """Run all passes; ``loss`` is then what this rank counts of the scaled loss.

        Every tp rank of the last stage has computed it, the first of them counts it.
        """
        pp, at = self._view.scheme.pp, self._view.at.pp
        order = stage_order(pp, at, len(self._works))
        warm_up = min(pp - 1 - at, len(self._works))
        for place, (kind, index) in enumerate(order):
            last = place + 1 == len(order)
            following = (None, None) if last else order[place + 1]
            if kind == "F":
                # Batched with what comes: the next stage is in its steady state then, too.
                steady = index >= warm_up and following[0] == "B"
                self._forward(index, following[1] if steady else None)
            else:
                after = following[1] if following[0] == "F" else None
                self._backward(index, after, backward, last)

    def count_routed(self, routers: RouterCounts) -> None:
        """Count the tokens of each expert, by a forward of all micro-batches without gradients."""
        previous, following = self._view.pp_previous, self._view.pp_next
        for index, work in enumerate(self._works):
            hidden = None
            if previous is not None:
                hidden = self._empty(index)
                self._peers.transfer([], [(hidden, previous)]).wait()
            out = self._stage.forward(hidden, work)
            routers.add(self._stage.router_logits)
            if following is not None:
                self._peers.transfer([(out.contiguous(), following)], []).wait()

    def _forward(self, index: int, gradient_of: int | None) -> None:
        previous, following = self._view.pp_previous, self._view.pp_next
        hidden = leaf = None
        if previous is not None:
            if index not in self._arrived:
                self._arrived[index] = self._empty(index)
                self._peers.transfer([], [(self._arrived[index], previous)]).wait()
            hidden, leaf = _join_graph(self._arrived.pop(index))
        work = self._works[index]
        with self._counter.count(work.context.recompute):
            out = self._stage.forward(hidden, work)
            if self._stage.last:
                out = out * self._scale
        if self._stage.last and self._view.at.tp == 0:
            self.loss = self.loss + out.detach().double()
        if self._routers is not None:
            # On every stage and tp rank: of its layers and rows.
            term = self._routers.term(self._stage.router_logits)
            self.loss = self.loss + term.detach().double()
            out = AddedTerm.apply(out, term)  # type: ignore[no-untyped-call]
        self._kept[index] = leaf, out
        if following is not None:
            receives = []
            if gradient_of is not None:
                self._gradients[gradient_of] = self._empty(gradient_of)
                receives.append((self._gradients[gradient_of], following))
            self._peers.transfer([(out.detach().contiguous(), following)], receives).wait()

    def _backward(
        self, index: int, activations_of: int | None, backward: Backward, last: bool
    ) -> None:
        previous, following = self._view.pp_previous, self._view.pp_next
        leaf, out = self._kept.pop(index)
        if following is not None and index not in self._gradients:
            self._gradients[index] = self._empty(index)
            self._peers.transfer([], [(self._gradients[index], following)]).wait()
        backward(out, self._gradients.pop(index, None), last)
        if previous is not None and leaf is not None:
            assert leaf.grad is not None
            receives = []
            if activations_of is not None:
                self._arrived[activations_of] = self._empty(activations_of)
                receives.append((self._arrived[activations_of], previous))
            self._peers.transfer([(leaf.grad.contiguous(), previous)], receives).wait()

    def _empty(self, index: int) -> Tensor:
        """Make room for hidden states of a micro-batch, or their gradients."""
        shape = self._works[index].split.rows, self._stage.config.hidden
        return torch.empty(shape, dtype=self._dtype, device=self._device)


class _ReceivedStates(torch.autograd.Function):
    """Hidden states of the stage before, whose gradient a leaf of the same shape gets."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, received: list[Tensor]) -> Tensor:
        return received.pop()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _join_graph(received: Tensor) -> tuple[Tensor, Tensor]:
    """Return received states in a graph, and a leaf that does not hold them.

    Layers then may move them to the host, as they may those of an embedding.
    """
    leaf = received.new_empty(1).expand(received.shape).requires_grad_()
    hidden: Tensor = _ReceivedStates.apply(leaf, [received])  # type: ignore[no-untyped-call]
    return hidden, leaf
