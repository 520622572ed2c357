"""The routed feed-forward of the built-in model: a router, and experts of SwiGLU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from seqplan.runtime.experts.blocks import ExpertBlocks
from seqplan.runtime.experts.dispatch import dispatch_tokens
from seqplan.runtime.models.fused import swiglu


class ExpertWeights(NamedTuple):
    """A layer's routed weights on a rank, whose experts may be a part of all.

    ``router`` (experts, hidden), ``gate_up`` (experts here, 2 · width, hidden), ``down`` (experts
    here, hidden, width).
    """

    router: Tensor
    gate_up: Tensor
    down: Tensor


RunExperts = Callable[[Tensor, Tensor, Tensor, ExpertWeights, ExpertBlocks | None], Tensor]
"""From tokens (tokens, hidden), experts and weights of each (tokens, k) to Σₖ weight · expert."""


def run_experts(
    tokens: Tensor,
    index: Tensor,
    weights: Tensor,
    parameters: ExpertWeights,
    blocks: ExpertBlocks | None,
) -> Tensor:
    """Compute the experts of a block's tokens, each on its rank."""

    def compute_products(rows: Tensor, counts: Sequence[int]) -> Tensor:
        # Experts without rows too: every parameter then has a gradient, in one order on all ranks.
        parts = zip(
            torch.split(rows, list(counts)),
            parameters.gate_up.unbind(0),
            parameters.down.unbind(0),
            strict=True,
        )
        return torch.cat([_run_expert(*part) for part in parts])

    experts = len(parameters.router)
    return dispatch_tokens(tokens, index, weights, experts, compute_products, blocks)


def _run_expert(rows: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    return nn.functional.linear(swiglu(nn.functional.linear(rows, gate_up)), down)


class RoutedFeedForward(NamedTuple):
    """A layer's routed feed-forward; each token goes to ``top_k`` experts."""

    weights: ExpertWeights
    top_k: int
    run: RunExperts
    blocks: ExpertBlocks | None

    def forward(self, hidden: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Return results (all rows, hidden) and the router's logits (``rows``, experts).

        ``hidden``: (all rows, hidden), of which those from ``rows`` on are padding, whose results
        are 0. The weights of a token's experts are their probabilities, divided by their sum.
        """
        tokens = hidden[:rows]
        logits = nn.functional.linear(tokens, self.weights.router)
        exact = torch.promote_types(logits.dtype, torch.float32)
        chosen, index = logits.to(exact).softmax(-1).topk(self.top_k, -1)
        chosen = chosen / chosen.sum(-1, keepdim=True)
        out = self.run(tokens, index, chosen, self.weights, self.blocks)
        padding = len(hidden) - rows
        return (nn.functional.pad(out, (0, 0, 0, padding)) if padding else out), logits

    def run_empty(self, hidden: Tensor) -> Tensor:
        """Return (0, hidden) of no tokens, and take part in what other ranks exchange.

        Depends on all of the weights, and on ``hidden``, (0, hidden).
        """
        return self.forward(hidden, 0)[0]


class Experts(nn.Module):
    """A layer's experts, as parameters that expert parallelism splits along their first axis."""

    def __init__(self, experts: int, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(experts, 2 * width, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))
