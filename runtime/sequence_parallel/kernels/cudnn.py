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
    check_no_capping,
)


class CudnnKernel:
    """cuDNN's attention, one call for each piece.

    Torch has it for variable lengths in one call as well, but leaves it off
    (``torch.nn.attention.varlen``): many short documents are faster elsewhere. Causal pieces have
    as many keys as queries, so that windows and chunks are not supported.
    """

    name = "cudnn"

    def find_unsupported(self, q: Tensor, v: Tensor, scores: Scores) -> str | None:
        """Return a reason but for 16-bit heads of compute capability 8.0 and later."""
        width = max(q.shape[-1], v.shape[-1])
        if scores.softcap is not None:
            return "scores are capped"
        if scores.window is not None:
            return "the mask has a window or chunks"
        if q.device.type != "cuda":
            return f"the device is {q.device.type}"
        if q.dtype not in (torch.bfloat16, torch.float16):
            return f"the dtype is {q.dtype}"
        if width % 8 or width > 128:
            return f"heads have {width} elements"
        if torch.cuda.get_device_capability(q.device) < (8, 0):
            return "the compute capability is below 8.0"
        return None

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, pieces: Pieces, scores: Scores
    ) -> Iterator[Partial]:
        """Yield the partial result of each piece."""
        check_no_capping(scores)
        for q0, q1, k0, k1 in pieces:
            out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
                _view_batched(q, q0, q1),
                _view_batched(k, k0, k1),
                _view_batched(v, k0, k1),
                None,
                True,
                0.0,
                _is_square(scores, q1 - q0, k1 - k0),
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
                _view_batched(dout, q0, q1),
                _view_batched(attended.q, q0, q1),
                _view_batched(attended.k, k0, k1),
                _view_batched(attended.v, k0, k1),
                _view_batched(attended.out, q0, q1),
                attended.lse[q0:q1].t().contiguous()[None, :, :, None],
                unused,
                unused,
                None,
                None,
                None,
                q1 - q0,
                k1 - k0,
                0.0,
                _is_square(scores, q1 - q0, k1 - k0),
                scale=scores.scale,
            )
            yield PartialGradients(
                slice(q0, q1),
                slice(k0, k1),
                *(gradient[0].transpose(0, 1) for gradient in (dq, dk, dv)),
            )


def _is_square(scores: Scores, queries: int, keys: int) -> bool:
    """Return whether a piece is causal, which cuDNN aligns at the top left."""
    if not scores.causal:
        return False
    if queries != keys or (scores.window is not None and scores.window < keys):
        raise NotImplementedError(
            f"kernel 'cudnn' does not support a causal piece of {queries} queries and {keys} keys: "
            "use fa2"
        )
    return True


def _view_batched(tensor: Tensor, start: int, stop: int) -> Tensor:
    """View rows ``[start, stop)`` as (1, heads, tokens, head_dim)."""
    return tensor[start:stop].transpose(0, 1).unsqueeze(0)
