"""FlashAttention on CUDA by torch's operators, in the generations that torch has or can activate.

FlashAttention-2 ships with torch. FlashAttention-3 and 4 are packages that torch puts behind the
same operators, for the whole process, when they are activated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

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
    same_width,
)
from seqplan.runtime.sequence_parallel.kernels.requirements import Requirements, RequiringKernel
from seqplan.runtime.sequence_parallel.kernels.rows import ALL, take_rows


class FlashKernel(RequiringKernel):
    """FlashAttention of one generation, all pieces in one variable-length call.

    bf16 and fp16 only. Values of another width than keys are padded. It caps no scores.

    ``implementation``: its name at torch, None for the one that ships with it; ``module``: what
    torch imports to activate it; ``capabilities``: major compute capabilities that it is compiled
    for, None for 8 and later; ``widest``: most elements of a head.
    """

    def __init__(
        self,
        name: str,
        implementation: str | None = None,
        *,
        module: str = "",
        capabilities: tuple[int, ...] | None = None,
        widest: int = 256,
    ) -> None:
        self.name, self.implementation = name, implementation
        self.requirements = Requirements(
            capabilities=capabilities, multiple=8, widest=widest, module=module
        )

    def find_unsupported(self, q: Tensor, v: Tensor, scores: Scores) -> str | None:
        """As ``Kernel``: an unmet requirement, or a torch that cannot activate it."""
        reason = super().find_unsupported(q, v, scores)
        if reason is None and self.implementation not in (None, *list_implementations()):
            reason = f"torch {torch.__version__} has no {self.implementation} to activate"
        return reason

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, pieces: Pieces, scores: Scores
    ) -> Iterator[Partial]:
        """Yield one partial result, of all pieces together."""
        if not pieces:
            return
        self._activate()
        width = v.shape[2]
        q, k, v = same_width(q, k, v)
        index = _varlen_index(pieces, q.shape[0], k.shape[0], q.device)
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            take_rows(q, index.q_rows),
            take_rows(k, index.k_rows),
            take_rows(v, index.k_rows),
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
        self._activate()
        key_width, value_width = attended.k.shape[2], attended.v.shape[2]
        dout, q, k, v, out = same_width(dout, attended.q, attended.k, attended.v, attended.out)
        index = _varlen_index(pieces, q.shape[0], k.shape[0], q.device)
        unused = torch.empty(2, dtype=torch.uint64, device=q.device)  # of dropout
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            take_rows(dout, index.q_rows).contiguous(),
            take_rows(q, index.q_rows),
            take_rows(k, index.k_rows),
            take_rows(v, index.k_rows),
            take_rows(out, index.q_rows).contiguous(),
            take_rows(attended.lse, index.q_rows).transpose(0, 1).contiguous(),
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

    def _activate(self) -> None:
        """Let torch's operators be this implementation."""
        active = active_implementation()
        if active == self.implementation:
            return
        attention: Any = torch.nn.attention
        if self.implementation is None:
            attention.restore_flash_attention_impl()
        else:
            attention.activate_flash_attention_impl(self.implementation)


FA2 = FlashKernel("fa2")
FA3 = FlashKernel("fa3", "FA3", module="flash_attn_interface", capabilities=(9,))
FA4 = FlashKernel(
    "fa4", "FA4", module="flash_attn.cute.interface", capabilities=(9, 10), widest=128
)


def active_flash_kernel() -> FlashKernel:
    """Return the kernel of the implementation that is active at torch.

    ``FA2`` also for one that others have registered: only a request replaces it.
    """
    return {"FA3": FA3, "FA4": FA4}.get(active_implementation() or "", FA2)


def active_implementation() -> str | None:
    """Return the name of the implementation that was activated at torch, None without."""
    current = getattr(torch.nn.attention, "current_flash_attention_impl", None)
    return None if current is None else current()


def list_implementations() -> list[str]:
    """List the implementations that this torch can activate."""
    known = getattr(torch.nn.attention, "list_flash_attention_impls", None)
    return [] if known is None else known()


def _window(scores: Scores) -> dict[str, int]:
    """Return the kernel's options, which count the keys before a query's."""
    if scores.window is None:
        return {}
    return {"window_size_left": scores.window - 1, "window_size_right": 0}


KEPT_INDICES = 64
"""Calls whose indices stay on the device: of the micro-batches in flight, for all layers."""


class _VarlenIndex(NamedTuple):
    """Pieces as one variable-length call: rows of queries and keys, and offsets of each."""

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
            rows = ALL if whole == (0, tokens) else slice(*whole)
        else:
            rows = torch.cat([torch.arange(start, stop) for start, stop in ranges])
            rows = copy_to_device(rows, device)
        return rows, copy_to_device(cu, device), int(lengths.max())

    q_rows, cu_q, max_q = axis([(piece.q0, piece.q1) for piece in pieces], q_tokens)
    k_rows, cu_k, max_k = axis([(piece.k0, piece.k1) for piece in pieces], k_tokens)
    return _VarlenIndex(q_rows, k_rows, cu_q, cu_k, max_q, max_k)
