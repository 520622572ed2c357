"""Attention of whole documents in one process, and which rows of it a rank holds."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from seqplan.plans.views.micro_batch_view import MicroBatchView


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Sequence[int],
    *,
    scale: float | None = None,
    window: int | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention within each document, all scores held at once."""
    group = q.shape[1] // k.shape[1]
    parts = []
    for queries, keys, values in zip(*(t.split(list(lengths)) for t in (q, k, v)), strict=True):
        at = torch.arange(len(queries))
        query, key = at[:, None], at[None]
        visible = key <= query
        if window is not None:
            visible &= query - key < window
        if chunk is not None:
            visible &= query // chunk == key // chunk
        scores = torch.einsum("qhd,khd->hqk", queries, keys.repeat_interleave(group, 1))
        scores = scores * (q.shape[2] ** -0.5 if scale is None else scale)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(~visible, -torch.inf)
        if sinks is not None:
            column = sinks.to(scores.dtype)[:, None, None].expand(-1, len(queries), 1)
            scores = torch.cat((scores, column), -1)
        weights = scores.softmax(-1)[..., : len(queries)]
        parts.append(torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(group, 1)))
    return torch.cat(parts)


def computed_once(
    ranks: Sequence[int], compute: Callable[[], Sequence[Tensor]], shapes: Sequence[torch.Size]
) -> list[Tensor]:
    """What ``compute`` gives, of these shapes and in fp64; all ``ranks`` call it, one computes."""
    first, *others = ranks
    if dist.get_rank() == first:
        flat = torch.cat([tensor.double().reshape(-1) for tensor in compute()])
        for other in others:
            dist.send(flat, other)
    else:
        flat = torch.empty(sum(shape.numel() for shape in shapes), dtype=torch.float64)
        dist.recv(flat, first)
    parts = flat.split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def local_rows(view: MicroBatchView) -> Tensor:
    """The rows of the packed whole documents that a rank holds."""
    offsets = view.cu_seqlens()
    rows = [
        np.arange(start, stop) + offsets[at]
        for at, share in enumerate(view.sequences)
        for start, stop in share.ranges
    ]
    return torch.from_numpy(np.concatenate(rows) if rows else np.empty(0, dtype=np.int64))
