"""Attention by MagiAttention's flexible flash attention, if that package is installed.

Its interface is that of version 1.1 (``magi_attention.functional.flex_flash_attn``): ranges of
queries and of keys with a kind of mask for each pair, as pieces are.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from importlib import import_module
from inspect import Parameter, signature
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqplan.runtime.device_copy import copy_to_device
from seqplan.runtime.sequence_parallel.kernels.base import (
    Attended,
    Partial,
    PartialGradients,
    Pieces,
    Scores,
)
from seqplan.runtime.sequence_parallel.kernels.requirements import Requirements, RequiringKernel
from seqplan.runtime.sequence_parallel.kernels.rows import query_rows, take_rows

MODULE = "magi_attention.functional.flex_flash_attn"

FULL, CAUSAL = 0, 1
"""Kinds of mask of a pair of ranges; a causal one is aligned at the bottom right."""

_BACKWARD = frozenset(
    (
        *("dout", "q", "k", "v", "sink", "sink_layout", "out", "lse", "dq", "dk", "dv", "dsink"),
        *("q_ranges", "k_ranges", "attn_type_map", "softmax_scale", "softcap"),
        *("dq_type", "dk_type", "dv_type"),
        *("disable_bwd_dkv_atomic_reduction", "deterministic", "sm_margin"),
    )
)
"""Arguments of its backward that are given."""


class MagiKernel(RequiringKernel):
    """MagiAttention's kernel, all pieces in one call, on request; soft caps, no windows."""

    name = "magi"
    requirements = Requirements(
        capabilities=(9,), softcap=True, masks=False, widths=(64, 128), module="magi_attention"
    )

    def find_unsupported(self, q: Tensor, v: Tensor, scores: Scores) -> str | None:
        """As ``Kernel``: an unmet requirement, or another version's interface."""
        return super().find_unsupported(q, v, scores) or _find_other_interface()

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, pieces: Pieces, scores: Scores
    ) -> Iterator[Partial]:
        """Yield one partial result, of all pieces together."""
        if not pieces:
            return
        rows, counted = query_rows(pieces, q.shape[0], q.device)
        q_ranges, k_ranges, kinds = _ranges(counted, scores.causal, q.device)
        out, meta = import_module(MODULE).flex_flash_attn_func(
            take_rows(q, rows),
            k,
            v,
            q_ranges,
            k_ranges,
            kinds,
            softmax_scale=scores.scale,
            softcap=scores.softcap or 0.0,
            deterministic=torch.are_deterministic_algorithms_enabled(),
            disable_fwd_atomic_reduction=True,  # no query is in two ranges
        )
        yield Partial(rows, out, meta.lse)

    def backward(
        self, dout: Tensor, attended: Attended, pieces: Pieces, scores: Scores
    ) -> Iterator[PartialGradients]:
        """Yield the gradients of all pieces together, in fp32."""
        if not pieces:
            return
        rows, counted = query_rows(pieces, dout.shape[0], dout.device)
        q_ranges, k_ranges, kinds = _ranges(counted, scores.causal, dout.device)
        exact = torch.float32
        dq, dk, dv, *_ = import_module(MODULE)._flex_flash_attn_backward(
            dout=take_rows(dout, rows).contiguous(),
            q=take_rows(attended.q, rows),
            k=attended.k,
            v=attended.v,
            sink=None,
            sink_layout="sh",
            out=take_rows(attended.out, rows).contiguous(),
            lse=take_rows(attended.lse, rows).contiguous(),
            dq=None,
            dk=None,
            dv=None,
            dsink=None,
            q_ranges=q_ranges,
            k_ranges=k_ranges,
            attn_type_map=kinds,
            softmax_scale=scores.scale,
            softcap=scores.softcap or 0.0,
            dq_type=exact,
            dk_type=exact,
            dv_type=exact,
            disable_bwd_dkv_atomic_reduction=False,
            deterministic=torch.are_deterministic_algorithms_enabled(),
            sm_margin=0,
        )
        yield PartialGradients(rows, slice(None), dq, dk, dv)


@cache
def _find_other_interface() -> str | None:
    """Return why the installed package cannot be called; None if it can."""
    try:
        module: Any = import_module(MODULE)
        parameters = signature(module._flex_flash_attn_backward).parameters
        has_meta = "return_max_logits" in signature(module.flex_flash_attn_func).parameters
    except (ImportError, AttributeError) as error:
        return f"magi_attention cannot be used: {error}"
    needed = {name for name, one in parameters.items() if one.default is Parameter.empty}
    if not has_meta or not needed <= _BACKWARD <= set(parameters):
        return "magi_attention has another interface than version 1.1"
    return None


@lru_cache(maxsize=64)
def _ranges(pieces: Pieces, causal: bool, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return ranges of queries and of keys, int32 (pieces, 2), and kinds of masks (pieces,)."""
    rows = np.array(pieces, np.int32)
    kinds = np.full(len(pieces), CAUSAL if causal else FULL, np.int32)
    q_ranges, k_ranges = (np.ascontiguousarray(part) for part in (rows[:, :2], rows[:, 2:]))
    return (
        copy_to_device(q_ranges, device),
        copy_to_device(k_ranges, device),
        copy_to_device(kinds, device),
    )
