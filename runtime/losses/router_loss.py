"""The load-balancing loss of a model's routers, over the global batch of a step.

Switch Transformer (arXiv 2101.03961) Eq. 4–6 as transformers computes it: with experts e, over all
layers and tokens, coefficient · E · Σₑ (share of tokens sent to e) · (mean probability of e). It is
a product of two means over the whole batch, so it does not split over ranks. But only
the probabilities have gradients: where the shares are known before, the loss is a sum over tokens.
So the tokens of each expert are counted first, in a forward of all micro-batches without gradients,
and added over the ranks. That forward is the price: about a third more computing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.data.micro_batch import MicroBatchWork
from seqplan.runtime.errors import communicating
from seqplan.runtime.losses.token_losses import LossOf
from seqplan.runtime.sequence_parallel.context import AttentionContext


@dataclass(frozen=True, slots=True)
class RouterLoss:
    """The loss of routers that send each token to ``top_k`` of ``experts`` experts."""

    experts: int
    top_k: int
    coefficient: float

    def counts(self, router_logits: Sequence[Tensor]) -> Tensor:
        """Count the tokens sent to each expert, (experts,) float64, of every layer's logits."""
        total = router_logits[0].new_zeros(self.experts, dtype=torch.float64)
        for logits in router_logits:
            chosen = logits.softmax(-1).topk(self.top_k, -1).indices.reshape(-1)
            total += torch.bincount(chosen, minlength=self.experts)
        return total

    def probabilities(self, router_logits: Sequence[Tensor]) -> Tensor:
        """Sum each expert's probability over tokens and layers: (experts,), with gradients."""
        exact = torch.promote_types(router_logits[0].dtype, torch.float32)
        sums = [logits.softmax(-1).to(exact).sum(0) for logits in router_logits]
        return torch.stack(sums).sum(0)

    def weights(self, counts: Tensor, rows: int) -> Tensor:
        """Return what a probability of each expert adds to the loss, (experts,).

        ``rows``: tokens of the whole batch times layers with routers.
        """
        return self.coefficient * self.experts * counts / rows**2


class RouterCounts:
    """Tokens of each expert in a step; ``weights`` once all ranks have counted theirs."""

    def __init__(self, loss: RouterLoss) -> None:
        self.loss = loss
        self.weights = torch.empty(0)
        self._counts = torch.zeros(loss.experts, dtype=torch.float64)
        self._layers = 0

    def add(self, router_logits: Sequence[Tensor]) -> None:
        """Count the tokens of a micro-batch here."""
        if router_logits:
            self._layers = len(router_logits)
            self._counts += self.loss.counts(router_logits).cpu()

    def add_up(
        self,
        tokens: int,
        group: dist.ProcessGroup,
        *,
        layers: int | None = None,
        scale: float = 1.0,
    ) -> None:
        """Sum the counts of all ranks, of ``tokens`` tokens; collective over a CPU group.

        ``layers``: with routers, the most that a rank has counted at once if None; ``scale``: of
        the loss.
        """
        most = torch.tensor([float(layers or self._layers)], dtype=torch.float64)
        with communicating("counting the tokens of each expert"):
            dist.all_reduce(self._counts, group=group)
            dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
        self.weights = scale * self.loss.weights(self._counts, int(most) * tokens)

    def term(self, router_logits: Sequence[Tensor]) -> Tensor:
        """Compute the part of the loss of some tokens and layers, a scalar with gradients."""
        probabilities = self.loss.probabilities(router_logits)
        return (self.weights.to(probabilities) * probabilities).sum()


class RoutedModel(Protocol):
    """A model that keeps the routers' logits of its last forward, by layer."""

    @property
    def router_logits(self) -> tuple[Tensor, ...]: ...

    def __call__(self, tokens: Tensor, context: AttentionContext) -> Any: ...


class RoutedLoss:
    """``loss_of`` with the routers' loss of the global batch; ``count`` comes before each step."""

    def __init__(
        self,
        router_loss: RouterLoss,
        model: RoutedModel,
        loss_of: LossOf,
        group: dist.ProcessGroup,
    ) -> None:
        self._router_loss = router_loss
        self._model = model
        self._loss_of = self.__wrapped__ = loss_of
        self._group = group
        self._counts = RouterCounts(router_loss)

    def count(self, view: RankView, work: Sequence[MicroBatchWork], divisor: float) -> None:
        """Count the tokens of each expert in the whole batch, by a forward without gradients.

        ``divisor``: what the losses of the step are divided by. Collective, also without work.
        """
        self._counts = RouterCounts(self._router_loss)
        with torch.no_grad(), torch.random.fork_rng(_devices(work)):
            # With the random numbers of training itself: dropout sends no token elsewhere then.
            for micro_batch in work:
                self._model(micro_batch.tokens, micro_batch.context)
                self._counts.add(self._model.router_logits)
        self._counts.add_up(view.tokens, self._group, scale=divisor)

    def __call__(self, hidden: Tensor, micro_batch: MicroBatchWork) -> Tensor:
        """Return the micro-batch's sum, and its part of the routers' loss times the divisor."""
        term = self._counts.term(self._model.router_logits)
        return self._loss_of(hidden, micro_batch) + term


def _devices(work: Sequence[MicroBatchWork]) -> list[torch.device]:
    """List the CUDA devices whose random numbers a forward takes."""
    return [batch.tokens.device for batch in work[:1] if batch.tokens.device.type == "cuda"]


class AddedTerm(torch.autograd.Function):
    """Adds a scalar term of the loss to a tensor's backward, on any stage."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, term: Tensor) -> Tensor:
        ctx.save_for_backward(term.new_ones(()))
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (one,) = ctx.saved_tensors
        return gradients[0], one
