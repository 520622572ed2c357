"""What a plan must amount to: the same training in one process, one whole document at a time.

Nothing of the parallel runtime is used: dense attention of torch, an ordinary optimizer over
whole parameters, no sharding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from seqplan.plans.plan import Plan
from seqplan.runtime.data.tokens import NO_LABEL, TokenData
from seqplan.runtime.experts.blocks import ExpertBlocks
from seqplan.runtime.losses.token_losses import token_loss
from seqplan.runtime.models.llama import ModelConfig
from seqplan.runtime.models.moe import ExpertWeights
from seqplan.runtime.sequence_parallel.context import AttentionContext, local_context


def dense_attention(q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
    """Compute causal attention of one whole document by torch's public function."""
    group = q.shape[1] // k.shape[1]
    # Without a batch axis torch takes a kernel that holds all scores: 17 GB for 32,768 tokens.
    out = nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.repeat_interleave(group, 1).transpose(0, 1)[None],
        v.repeat_interleave(group, 1).transpose(0, 1)[None],
        is_causal=True,
    )
    return out[0].transpose(0, 1)


def dense_experts(
    tokens: Tensor,
    index: Tensor,
    weights: Tensor,
    parameters: ExpertWeights,
    blocks: ExpertBlocks | None,
) -> Tensor:
    """Compute the experts of one document's tokens, one after another: all of them are here."""
    out = torch.zeros_like(tokens)
    for expert, (gate_up, down) in enumerate(zip(parameters.gate_up, parameters.down, strict=True)):
        token, slot = (index == expert).nonzero(as_tuple=True)
        gate, up = (tokens[token] @ gate_up.t()).chunk(2, -1)
        result = (nn.functional.silu(gate) * up) @ down.t()
        out = out.index_add(0, token, (result * weights[token, slot, None]).to(out.dtype))
    return out


def reference_step(
    plan: Plan,
    data: TokenData,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    clip_norm: float | None = None,
) -> tuple[float, float]:
    """Train ``model``, made with ``dense_attention``, on a plan's sequences; loss, gradient norm.

    The sequences in the order of the plan's list; its pipelines and micro-batches do not matter. A
    router loss is of the whole batch: the tokens of each expert are counted in a first pass.
    """
    optimizer.zero_grad()
    total = 0.0
    balance = _balance_routers(plan, data, model)
    for sample, length in zip(plan.ids, plan.lengths, strict=True):
        tokens = torch.from_numpy(data.tokens(sample, 0, length))
        labels = torch.cat((tokens[1:], torch.full((1,), NO_LABEL)))
        logits = model(tokens, local_context([length]))
        loss = token_loss(logits, labels) / max(plan.tokens - len(plan.lengths), 1)
        if balance is not None:
            routed: Any = model
            for layer in routed.router_logits:
                loss = loss + (balance * layer.softmax(-1).sum(0)).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = float(torch.stack([gradient.double().square().sum() for gradient in gradients]).sum())
    norm **= 0.5
    if clip_norm is not None and norm + 1e-6 > clip_norm:
        for gradient in gradients:
            gradient.mul_(clip_norm / (norm + 1e-6))
    optimizer.step()
    return total, norm


def _balance_routers(plan: Plan, data: TokenData, model: nn.Module) -> Tensor | None:
    """Return what a token's probability of each expert adds to the loss; None without.

    coefficient · experts · (share of the batch sent to the expert) / (tokens · layers), as Switch
    Transformer has it (Eq. 4-6).
    """
    config = getattr(model, "config", None)
    if not isinstance(config, ModelConfig) or not config.router_loss:
        return None
    chosen = torch.zeros(config.experts, dtype=torch.float64)
    routed: Any = model
    with torch.no_grad():
        for sample, length in zip(plan.ids, plan.lengths, strict=True):
            model(torch.from_numpy(data.tokens(sample, 0, length)), local_context([length]))
            for layer in routed.router_logits:
                best = layer.softmax(-1).topk(config.experts_per_token, -1).indices
                chosen += torch.zeros_like(layer).scatter_(1, best, 1.0).double().sum(0)
    rows = plan.tokens * config.layers
    dtype = next(model.parameters()).dtype
    return (config.router_loss * config.experts * (chosen / rows) / rows).to(dtype)
