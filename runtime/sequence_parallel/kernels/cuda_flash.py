"""Attention on CUDA: the variable-length flash attention that ships with torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from seqplan.runtime.device_copy import copy_to_device
from seqplan.runtime.sequence_parallel.kernels.base import (
    Attended,
    Partial,
    PartialGradients,
    Pieces,
    Rows,
    Scores,
    check_no_capping,
    same_width,
)


class CudaFlashKernel:
    """The flash attention that ships with torch, all pieces in one variable-length call.

    bf16 and fp16 only. Other implementations registered with torch for the same operators are
    used without a change here. Values of another width than keys are padded. It caps no scores:
    ``BlockKernel`` does.
    """

    name = "cuda-flash"

    def find_unsupported(self, q: Tensor, v: Tensor, softcap: float | None) -> str | None:
        """Return a reason but for 16-bit heads of compute capability 8.0 and later.

        Heads are a multiple of 8 elements, up to 256.
        """
        width = max(q.shape[-1], v.shape[-1])
        if softcap is not None:
            return "scores are capped"
        if q.device.type != "cuda":
            return f"the device is {q.device.type}"
        if q.dtype not in (torch.bfloat16, torch.float16):
            return f"the dtype is {q.dtype}"
        if width % 8 or width > 256:
            return f"heads have {width} elements"
        if torch.cuda.get_device_capability(q.device) < (8, 0):
            return "the compute capability is below 8.0"
        return None

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, pieces: Pieces, scores: Scores
    ) -> Iterator[Partial]:
        """Yield one partial result, of all pieces together."""
        if not pieces:
            return
        check_no_capping(scores)
        width = v.shape[2]
        q, k, v = same_width(q, k, v)
        index = _varlen_index(pieces, q.shape[0], k.shape[0], q.device)
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            _rows_of(q, index.q_rows),
            _rows_of(k, index.k_rows),
            _rows_of(v, index.k_rows),
            index.cu_q,
            index.cu_k,
            index.max_q,
            index.max_k,
            0.0,
            scores.causal,
            False,
            scale=scores.scale,
            **_window(scores),
        )
        yield Partial(index.q_rows, out[..., :width], lse.transpose(0, 1))

    def backward(
        self, dout: Tensor, attended: Attended, pieces: Pieces, scores: Scores
    ) -> Iterator[PartialGradients]:
        """Yield the gradients of all pieces together."""
        if not pieces:
            return
        key_width, value_width = attended.k.shape[2], attended.v.shape[2]
        dout, q, k, v, out = same_width(dout, attended.q, attended.k, attended.v, attended.out)
        index = _varlen_index(pieces, q.shape[0], k.shape[0], q.device)
        unused = torch.empty(2, dtype=torch.uint64, device=q.device)  # of dropout
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            _rows_of(dout, index.q_rows).contiguous(),
            _rows_of(q, index.q_rows),
            _rows_of(k, index.k_rows),
            _rows_of(v, index.k_rows),
            _rows_of(out, index.q_rows).contiguous(),
            _rows_of(attended.lse, index.q_rows).transpose(0, 1).contiguous(),
            index.cu_q,
            index.cu_k,
            index.max_q,
            index.max_k,
            0.0,
            scores.causal,
            unused,
            unused[:0],
            scale=scores.scale,
            **_window(scores),
        )
        yield PartialGradients(
            index.q_rows,
            index.k_rows,
            dq[..., :key_width],
            dk[..., :key_width],
            dv[..., :value_width],
        )


def _window(scores: Scores) -> dict[str, int]:
    """Return the kernel's options, which count the keys before a query's."""
    if scores.window is None:
        return {}
    return {"window_size_left": scores.window - 1, "window_size_right": 0}


KEPT_INDICES = 64
"""Calls whose indices stay on the device: of the micro-batches in flight, for all layers."""


class _VarlenIndex(NamedTuple):
    """Pieces as one variable-length call: rows of queries and of keys, and where each begins."""

    q_rows: Rows
    k_rows: Rows
    cu_q: Tensor
    cu_k: Tensor
    max_q: int
    max_k: int


@lru_cache(maxsize=KEPT_INDICES)
def _varlen_index(
    pieces: Pieces, q_tokens: int, k_tokens: int, device: torch.device
) -> _VarlenIndex:
    def axis(ranges: list[tuple[int, int]], tokens: int) -> tuple[Rows, Tensor, int]:
        lengths = torch.tensor([stop - start for start, stop in ranges], dtype=torch.int64)
        cu = torch.zeros(len(ranges) + 1, dtype=torch.int32)
        cu[1:] = lengths.cumsum(0)
        rows: Rows
        if all(a[1] == b[0] for a, b in itertools.pairwise(ranges)):
            whole = (ranges[0][0], ranges[-1][1])
            rows = slice(None) if whole == (0, tokens) else slice(*whole)
        else:
            rows = torch.cat([torch.arange(start, stop) for start, stop in ranges])
            rows = copy_to_device(rows, device)
        return rows, copy_to_device(cu, device), int(lengths.max())

    q_rows, cu_q, max_q = axis([(piece.q0, piece.q1) for piece in pieces], q_tokens)
    k_rows, cu_k, max_k = axis([(piece.k0, piece.k1) for piece in pieces], k_tokens)
    return _VarlenIndex(q_rows, k_rows, cu_q, cu_k, max_q, max_k)


def _rows_of(tensor: Tensor, rows: Rows) -> Tensor:
    return tensor[rows] if isinstance(rows, slice) else tensor.index_select(0, rows)
