"""The load-balancing loss of a model's routers, over the global batch of a step.

Switch Transformer (arXiv 2101.03961) Eq. 4–6 as transformers computes it: with experts e, over all
layers and tokens, coefficient · E · Σₑ (share of tokens sent to e) · (mean probability of e). It is
a product of two means over the whole batch, so it does not split over ranks. But only
the probabilities have gradients: where the shares are known before, the loss is a sum over tokens.
So the tokens of each expert are counted first, in a forward of all micro-batches without gradients,
and added over the ranks. That forward is the price: about a third more computing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.data.micro_batch import MicroBatchWork
from seqplan.runtime.errors import UnsupportedModel, communicating
from seqplan.runtime.huggingface.attached import AttachedModel
from seqplan.runtime.losses.token_losses import LossOf

ATTRIBUTES = ("router_aux_loss_coef", "num_experts", "num_experts_per_tok")
"""Of a model of transformers that adds this loss."""

FUNCTION = "load_balancing_loss_func"
"""By which such a model's module computes it."""

TOLERANCE = 1e-3
"""Relative, between the model's loss of a few tokens and this one: routers round in bf16."""


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
        return torch.stack([logits.softmax(-1).float().sum(0) for logits in router_logits]).sum(0)

    def weights(self, counts: Tensor, rows: int) -> Tensor:
        """Return what a probability of each expert adds to the loss, (experts,).

        ``rows``: tokens of the whole batch times layers with routers.
        """
        return self.coefficient * self.experts * counts / rows**2


def router_loss(model: AttachedModel, tokens: Tensor, positions: Tensor) -> RouterLoss | None:
    """Return the routers' loss if the configuration enables it, checked on a few tokens.

    ``UnsupportedModel`` if the model computes another one.
    """
    lm = model.lm
    if not getattr(lm.config.get_text_config(), "output_router_logits", False):
        return None
    name = type(lm).__name__
    if not (all(hasattr(lm, attribute) for attribute in ATTRIBUTES) and _has_function(lm)):
        raise UnsupportedModel(
            f"{name}: adds an auxiliary loss of its routers (config.output_router_logits) in a way "
            "that is not known: set it to False"
        )
    coefficient, experts, top_k = (getattr(lm, attribute) for attribute in ATTRIBUTES)
    loss = RouterLoss(int(experts), int(top_k), float(coefficient))
    model.with_routers = True
    model.hidden(tokens, positions)
    reference = lm(
        input_ids=tokens[None],
        position_ids=positions[None],
        use_cache=False,
        output_router_logits=True,
    ).aux_loss
    logits = model.router_logits
    if logits and all(layer_logits.shape == (len(tokens), loss.experts) for layer_logits in logits):
        weights = loss.weights(loss.counts(logits), len(logits) * len(tokens))
        ours = float((weights * loss.probabilities(logits)).sum())
        if abs(ours - loss.coefficient * float(reference)) <= TOLERANCE * abs(ours):
            return loss
    raise UnsupportedModel(
        f"{name}: its routers' auxiliary loss (config.output_router_logits) is not that of Switch "
        "Transformers: set it to False"
    )


def _has_function(lm: PreTrainedModel) -> bool:
    return hasattr(sys.modules[type(lm).__module__], FUNCTION)


class RoutedLoss:
    """``loss_of`` with the routers' loss of the global batch; ``count`` comes before each step."""

    def __init__(
        self,
        router_loss: RouterLoss,
        model: AttachedModel,
        loss_of: LossOf,
        group: dist.ProcessGroup,
    ) -> None:
        self._router_loss = router_loss
        self._model = model
        self._loss_of = loss_of
        self._group = group
        self._weights = torch.empty(0)

    def count(self, view: RankView, work: Sequence[MicroBatchWork], divisor: float) -> None:
        """Count the tokens of each expert in the whole batch, by a forward without gradients.

        ``divisor``: what the losses of the step are divided by. Collective, also without work.
        """
        counts = torch.zeros(self._router_loss.experts, dtype=torch.float64)
        layers = 0
        with torch.no_grad(), torch.random.fork_rng(_devices(work)):
            # With the random numbers of training itself: dropout sends no token elsewhere then.
            for micro_batch in work:
                self._model(micro_batch.tokens, micro_batch.context)
                layers = len(self._model.router_logits)
                counts += self._router_loss.counts(self._model.router_logits).cpu()
        sums = torch.cat([counts, torch.tensor([float(layers)], dtype=torch.float64)])
        with communicating("counting the tokens of each expert"):
            dist.all_reduce(sums[:-1], group=self._group)
            dist.all_reduce(sums[-1:], dist.ReduceOp.MAX, group=self._group)
        rows = int(sums[-1]) * view.tokens
        self._weights = divisor * self._router_loss.weights(sums[:-1], rows)

    def __call__(self, hidden: Tensor, micro_batch: MicroBatchWork) -> Tensor:
        """Return the micro-batch's sum, and its part of the routers' loss times the divisor."""
        probabilities = self._router_loss.probabilities(self._model.router_logits)
        weights = self._weights.to(probabilities)
        return self._loss_of(hidden, micro_batch) + (weights * probabilities).sum()


def _devices(work: Sequence[MicroBatchWork]) -> list[torch.device]:
    """List the CUDA devices whose random numbers a forward takes."""
    return [batch.tokens.device for batch in work[:1] if batch.tokens.device.type == "cuda"]
