"""Ring attention over documents of any length (USP Algorithm 1, inner loop; zigzag-balanced).

Keys and values travel while the kernel works on those at hand. Backward passes them round again,
and their gradients behind them, one hop later: after the last hop they are home. Documents that a
mask cuts are not passed: each rank fetches the keys that its queries see (``cut_layout``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seqplan.runtime.dtypes import accumulation_dtype
from seqplan.runtime.sequence_parallel.flat_heads import (
    flat_width,
    flatten_heads,
    heads_of,
    unflatten_heads,
)
from seqplan.runtime.sequence_parallel.kernels import (
    Attended,
    Kernel,
    Partial,
    Pieces,
    Scores,
)
from seqplan.runtime.sequence_parallel.ring_transfers import (
    Fetching,
    Passing,
    RingPlace,
    add_rows,
)


@dataclass(frozen=True, slots=True)
class Ring:
    """What a rank of a ring computes with: its place, the kernel, and how scores are made.

    ``scores``: of pieces that are not causal.
    """

    place: RingPlace
    kernel: Kernel
    scores: Scores

    @property
    def causal(self) -> Scores:
        """Scores of whole documents' local pieces."""
        return self.scores._replace(causal=True)

    @property
    def cut(self) -> Scores:
        """Scores of documents that a mask cuts."""
        return self.scores._replace(causal=True, window=self.place.mask.window)


class _Transfers:
    """All that travels of a rank's keys and values, started at once."""

    def __init__(self, k: Tensor, v: Tensor, place: RingPlace) -> None:
        self.gathering: Fetching | None = None
        self.passing: Passing | None = None
        self.cutting: Fetching | None = None
        layout = place.layout
        if layout.ring == 1:
            return
        rows = flatten_heads(k, v)
        if layout.gathered is not None:
            self.gathering = Fetching(rows, place, "gathered", layout.gathered.fetch)
        if layout.cut is not None and layout.cut.fetch is not None:
            self.cutting = Fetching(rows, place, "cut", layout.cut.fetch)
        if layout.passed is not None:
            self.passing = Passing(rows, place, layout.passed)


def ring_forward(
    q: Tensor, k: Tensor, v: Tensor, ring: Ring, sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute the output (tokens, heads, d) in q's dtype and log-sum-exp (tokens, heads).

    ``sinks``: (heads,), a score of each head that counts in the softmax's denominator only, None
    without; they are in the log-sum-exp.
    """
    layout, kernel = ring.place.layout, ring.kernel
    dtype = accumulation_dtype(q.dtype)
    heads = heads_of(k), heads_of(v)
    alone = layout.gathered is None and layout.passed is None and sinks is None
    out = q.new_empty(*q.shape[:2], v.shape[2], dtype=q.dtype if alone else dtype)
    lse = q.new_empty(q.shape[:2], dtype=dtype)
    transfers = _Transfers(k, v, ring.place)
    _put(out, lse, kernel.forward(q, k, v, layout.local, ring.causal))
    if layout.cut is not None:
        keys, values = k, v
        if transfers.cutting is not None:
            keys, values = unflatten_heads(transfers.cutting.wait_for_needed(), *heads)
        _put(out, lse, kernel.forward(q, keys, values, layout.cut.pieces, ring.cut))
    if layout.gathered is not None and transfers.gathering is not None:
        keys, values = unflatten_heads(transfers.gathering.wait_for_needed(), *heads)
        _merge(out, lse, kernel.forward(q, keys, values, layout.gathered.pieces, ring.scores))
    if transfers.passing is not None:
        for pieces, rows in transfers.passing:
            keys, values = unflatten_heads(rows, *heads)
            _merge(out, lse, kernel.forward(q, keys, values, pieces, ring.scores))
    if sinks is not None:  # as a key of value 0 is merged
        out *= torch.sigmoid(lse - sinks.to(dtype)).unsqueeze(-1)
        lse = torch.logaddexp(lse, sinks.to(dtype))
    return out.to(q.dtype), lse


def ring_backward(dout: Tensor, attended: Attended, ring: Ring) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of q, k and v in their dtype.

    ``attended``: this rank's rows, with ``out`` and ``lse`` as ``ring_forward`` gave them.
    """
    layout, kernel = ring.place.layout, ring.kernel
    q, k, v = attended.q, attended.k, attended.v
    dtype = accumulation_dtype(q.dtype)
    heads = heads_of(k), heads_of(v)
    dq = torch.zeros_like(q, dtype=dtype)
    dkv = k.new_zeros(k.shape[0], flat_width(*heads), dtype=dtype)
    transfers = _Transfers(k, v, ring.place)

    def accumulate(
        keys: Tensor, values: Tensor, total: Tensor, pieces: Pieces, how: Scores
    ) -> None:
        dk, dv = unflatten_heads(total, *heads)
        visible = replace(attended, k=keys, v=values)
        for q_rows, k_rows, dq_part, dk_part, dv_part in kernel.backward(
            dout, visible, pieces, how
        ):
            add_rows(dq, q_rows, dq_part)
            add_rows(dk, k_rows, dk_part)
            add_rows(dv, k_rows, dv_part)

    def fetch(fetching: Fetching, pieces: Pieces, how: Scores) -> None:
        rows = fetching.wait_for_needed()
        gradients = dkv.new_zeros(rows.shape)
        keys, values = unflatten_heads(rows, *heads)
        accumulate(keys, values, gradients, pieces, how)
        fetching.send_home(gradients, dkv)

    accumulate(k, v, dkv, layout.local, ring.causal)
    if layout.cut is not None:
        if transfers.cutting is None:
            accumulate(k, v, dkv, layout.cut.pieces, ring.cut)
        else:
            fetch(transfers.cutting, layout.cut.pieces, ring.cut)
    if layout.gathered is not None and transfers.gathering is not None:
        fetch(transfers.gathering, layout.gathered.pieces, ring.scores)
    if transfers.passing is not None:
        for step, (pieces, rows) in enumerate(transfers.passing, start=1):
            gradients = dkv.new_zeros(rows.shape)
            keys, values = unflatten_heads(rows, *heads)
            accumulate(keys, values, gradients, pieces, ring.scores)
            transfers.passing.send_on(step, gradients)
        transfers.passing.add_home(dkv)
    for fetching in (transfers.cutting, transfers.gathering):
        if fetching is not None:
            fetching.add_home(dkv)
    dk, dv = unflatten_heads(dkv, *heads)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def sink_gradients(dout: Tensor, out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """Compute the gradient of ``sinks`` (heads,) from this rank's rows, in the accumulation dtype.

    ``out`` and ``lse`` as ``ring_forward`` gave them: the weight of a sink is exp(sink − lse), and
    its value is 0.
    """
    weights = torch.exp(sinks.to(lse.dtype) - lse)
    return -(weights * (dout.to(lse.dtype) * out.to(lse.dtype)).sum(-1)).sum(0)


def _put(out: Tensor, lse: Tensor, partials: Iterable[Partial]) -> None:
    """Write the first results of rows."""
    for rows, partial, partial_lse in partials:
        out[rows] = partial.to(out.dtype)
        lse[rows] = partial_lse


def _merge(out: Tensor, lse: Tensor, partials: Iterable[Partial]) -> None:
    """Merge partial results into a running output and log-sum-exp, in place."""
    for rows, partial, partial_lse in partials:
        before = lse[rows]
        weight = torch.sigmoid(partial_lse - before).unsqueeze(-1)
        merged = torch.lerp(out[rows], partial.to(out.dtype), weight)
        out[rows] = merged
        lse[rows] = torch.logaddexp(before, partial_lse)
