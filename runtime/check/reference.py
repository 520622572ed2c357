"""What a plan must amount to: the same training in one process, one whole document at a time.

Nothing of the parallel runtime is used: dense attention of torch, an ordinary optimizer over
whole parameters, no sharding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqplan.plans.plan import Plan
from seqplan.runtime.data.tokens import NO_LABEL, TokenData
from seqplan.runtime.losses.token_losses import token_loss
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


def reference_step(
    plan: Plan,
    data: TokenData,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    clip_norm: float | None = None,
) -> tuple[float, float]:
    """Train ``model``, made with ``dense_attention``, on a plan's sequences; loss, gradient norm.

    The sequences in the order of the plan's list; its pipelines and micro-batches do not matter.
    """
    optimizer.zero_grad()
    total = 0.0
    for sample, length in zip(plan.ids, plan.lengths, strict=True):
        tokens = torch.from_numpy(data.tokens(sample, 0, length))
        labels = torch.cat((tokens[1:], torch.full((1,), NO_LABEL)))
        logits = model(tokens, local_context([length]))
        loss = token_loss(logits, labels) / max(plan.loss_tokens, 1)
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
