"""Attention on a CPU: the fused kernel that ships with torch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from seqplan.runtime.sequence_parallel.kernels.base import (
    Attended,
    Partial,
    PartialGradients,
    Pieces,
)


class CpuKernel:
    """The fused CPU kernel that ships with torch, one call for each piece.

    Its bf16 backward is slow on small pieces (0.65 ms against 0.1 ms in fp32 for 32 × 32 tokens
    and 8 heads), so that these are computed in fp32, which is also more exact.
    """

    SMALL = 512

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, pieces: Pieces, *, causal: bool, scale: float
    ) -> Iterator[Partial]:
        """Yield the partial result of each piece by a call of its own."""
        for q0, q1, k0, k1 in pieces:
            out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                _batched(q, q0, q1),
                _batched(k, k0, k1),
                _batched(v, k0, k1),
                0.0,
                causal,
                attn_mask=None,
                scale=scale,
            )
            yield Partial(slice(q0, q1), _packed(out), _packed(lse))

    def backward(
        self, dout: Tensor, attended: Attended, pieces: Pieces, *, causal: bool, scale: float
    ) -> Iterator[PartialGradients]:
        """Yield the gradients of each piece by a call of its own."""
        for q0, q1, k0, k1 in pieces:
            operands = (
                _batched(dout, q0, q1),
                _batched(attended.q, q0, q1),
                _batched(attended.k, k0, k1),
                _batched(attended.v, k0, k1),
                _batched(attended.out, q0, q1),
            )
            small = min(q1 - q0, k1 - k0) < self.SMALL
            if small and attended.q.dtype != attended.lse.dtype:
                operands = tuple(operand.to(attended.lse.dtype) for operand in operands)  # type: ignore[assignment]
            dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *operands,
                _batched(attended.lse, q0, q1),
                0.0,
                causal,
                attn_mask=None,
                scale=scale,
            )
            yield PartialGradients(
                slice(q0, q1), slice(k0, k1), _packed(dq), _packed(dk), _packed(dv)
            )


def _batched(tensor: Tensor, start: int, stop: int) -> Tensor:
    """View rows ``[start, stop)`` as (1, heads, tokens, head_dim)."""
    return tensor[start:stop].transpose(0, 1).unsqueeze(0)


def _packed(tensor: Tensor) -> Tensor:
    """View (1, heads, tokens, …) as (tokens, heads, …)."""
    return tensor.squeeze(0).transpose(0, 1)
