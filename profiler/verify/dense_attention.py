"""Attention of whole documents written out in fp64: the reference for every kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqplan.runtime.sequence_parallel.masks import Mask


@dataclass(frozen=True, slots=True)
class AttentionTensors:
    """Attention's inputs, (tokens, heads, width) each, and optional sinks (heads,)."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    sinks: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionResults:
    """Output and gradients in their inputs' shapes, and log-sum-exp (tokens, heads)."""

    out: Tensor
    lse: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


def dense_attention(
    tensors: AttentionTensors,
    lengths: Sequence[int],
    mask: Mask,
    scale: float,
    softcap: float | None = None,
) -> AttentionResults:
    """Compute causal attention within each document of ``lengths`` tokens, score by score, in fp64.

    Needs 8 bytes for each head and pair of tokens of a document, a few times over.
    """
    sinks = None if tensors.sinks is None else tensors.sinks.double()
    parts = []
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        leaves = [
            tensor[rows].detach().double().requires_grad_()
            for tensor in (tensors.q, tensors.k, tensors.v)
        ]
        q, k, v = leaves
        out, lse = _document(q, k, v, mask, scale, softcap, sinks)
        gradients = torch.autograd.grad(out, leaves, tensors.dout[rows].double())
        parts.append((out.detach(), lse.detach(), *gradients))
        start += length
    return AttentionResults(*(torch.cat(rows) for rows in zip(*parts, strict=True)))


def _document(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Attend within one document; output (tokens, heads, d) and log-sum-exp (tokens, heads)."""
    group = q.shape[1] // k.shape[1]
    keys, values = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, keys) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    tokens = q.shape[0]
    at = torch.arange(tokens, device=q.device)
    first = torch.tensor([mask.first_seen(row) for row in range(tokens)], device=q.device)
    visible = (at[None, :] <= at[:, None]) & (at[None, :] >= first[:, None])
    scores = scores.masked_fill(~visible, float("-inf"))
    lse = torch.logsumexp(scores, -1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks[:, None].expand_as(lse))
    weights = torch.exp(scores - lse[..., None])
    return torch.einsum("hqk,khd->qhd", weights, values), lse.transpose(0, 1)
