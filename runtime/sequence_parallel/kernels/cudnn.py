"""Attention on CUDA by cuDNN, through torch's operators."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from seqplan.runtime.sequence_parallel.kernels.base import (
    Attended,
    Partial,
    PartialGradients,
    Pieces,
    Scores,
    view_batched,
)
from seqplan.runtime.sequence_parallel.kernels.requirements import Requirements, RequiringKernel


class CudnnKernel(RequiringKernel):
    """cuDNN's attention, one call for each piece.

    Torch has it for variable lengths in one call as well, but leaves it off
    (``torch.nn.attention.varlen``): many short documents are faster elsewhere. It aligns a
    causal mask at the top left, so that windows and chunks are not supported.
    """

    name = "cudnn"
    requirements = Requirements(masks=False, multiple=8, widest=128)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, pieces: Pieces, scores: Scores
    ) -> Iterator[Partial]:
        """Yield the partial result of each piece."""
        for q0, q1, k0, k1 in pieces:
            out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
                view_batched(q, q0, q1),
                view_batched(k, k0, k1),
                view_batched(v, k0, k1),
                None,
                True,
                0.0,
                scores.causal,
                False,
                scale=scores.scale,
            )
            # (1, heads, tokens, 1), in some versions without the last.
            lse = lse.reshape(q.shape[1], q1 - q0).t()
            yield Partial(slice(q0, q1), out[0].transpose(0, 1), lse)

    def backward(
        self, dout: Tensor, attended: Attended, pieces: Pieces, scores: Scores
    ) -> Iterator[PartialGradients]:
        """Yield the gradients of each piece."""
        unused = torch.empty(1, dtype=torch.int64, device=dout.device)  # of dropout
        for q0, q1, k0, k1 in pieces:
            dq, dk, dv = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
                view_batched(dout, q0, q1),
                view_batched(attended.q, q0, q1),
                view_batched(attended.k, k0, k1),
                view_batched(attended.v, k0, k1),
                view_batched(attended.out, q0, q1),
                attended.lse[q0:q1].t().contiguous()[None, :, :, None],
                unused,
                unused,
                None,
                None,
                None,
                q1 - q0,
                k1 - k0,
                0.0,
                scores.causal,
                scale=scores.scale,
            )
            yield PartialGradients(
                slice(q0, q1),
                slice(k0, k1),
                *(gradient[0].transpose(0, 1) for gradient in (dq, dk, dv)),
            )
