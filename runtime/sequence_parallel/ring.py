"""Ring attention over documents of any length (USP Algorithm 1, inner loop; zigzag-balanced).

Keys and values travel while the kernel works on those at hand. Backward passes them round again,
and their gradients behind them, one hop later: after the last hop they are home. Documents that a
mask cuts are not passed: each rank fetches the keys that its queries see (``cut_layout``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seqplan.runtime.dtypes import accumulation_dtype
from seqplan.runtime.sequence_parallel.flat_heads import (
    flatten_heads,
    heads_of,
    unflatten_heads,
)
from seqplan.runtime.sequence_parallel.kernels import (
    Attended,
    Kernel,
    Partial,
    Pieces,
    Rows,
    Scores,
)
from seqplan.runtime.sequence_parallel.kernels.rows import ALL, take_rows
from seqplan.runtime.sequence_parallel.ring_sums import (
    KeyGradients,
    MergedOutput,
    QueryGradients,
    SelectedQueries,
)
from seqplan.runtime.sequence_parallel.ring_transfers import Fetching, Passing, RingPlace

Store = Callable[[Rows, Iterable[Partial]], None]
"""Takes the partial results of query rows."""


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
    layout = ring.place.layout
    exact = accumulation_dtype(q.dtype)
    heads = heads_of(k), heads_of(v)
    alone = layout.gathered is None and layout.passed is None and sinks is None
    shape = q.shape[0], q.shape[1], v.shape[2]
    merged = MergedOutput(shape, q.dtype if alone else exact, exact)
    selected: tuple[Rows, Tensor] = ALL, q

    def attend(keys: Tensor, values: Tensor, pieces: Pieces, scores: Scores, store: Store) -> None:
        nonlocal selected
        if not pieces:
            return
        rows, compact = ring.place.compact(pieces, q)
        if rows is not selected[0]:
            selected = rows, take_rows(q, rows)
        store(rows, ring.kernel.forward(selected[1], keys, values, compact, scores))

    transfers = _Transfers(k, v, ring.place)
    attend(k, v, layout.local, ring.causal, merged.put)
    if layout.cut is not None:
        keys, values = k, v
        if transfers.cutting is not None:
            keys, values = unflatten_heads(transfers.cutting.wait_for_needed(), *heads)
        attend(keys, values, layout.cut.pieces, ring.cut, merged.put)
    if layout.gathered is not None and transfers.gathering is not None:
        keys, values = unflatten_heads(transfers.gathering.wait_for_needed(), *heads)
        attend(keys, values, layout.gathered.pieces, ring.scores, merged.merge)
    if transfers.passing is not None:
        for pieces, rows in transfers.passing:
            keys, values = unflatten_heads(rows, *heads)
            attend(keys, values, pieces, ring.scores, merged.merge)
    out, lse = merged.finish(q)
    if sinks is not None:  # as a key of value 0 is merged
        out *= torch.sigmoid(lse - sinks.to(exact)).unsqueeze(-1)
        lse = torch.logaddexp(lse, sinks.to(exact))
    return out.to(q.dtype), lse


def ring_backward(dout: Tensor, attended: Attended, ring: Ring) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of q, k and v in their dtype.

    ``attended``: this rank's rows, with ``out`` and ``lse`` as ``ring_forward`` gave them.
    """
    layout, kernel = ring.place.layout, ring.kernel
    k, v = attended.k, attended.v
    exact = accumulation_dtype(attended.q.dtype)
    heads = heads_of(k), heads_of(v)
    dq = QueryGradients(attended.q, exact)
    home = KeyGradients(k.shape[0], heads, exact)
    queries = SelectedQueries(dout, attended)
    transfers = _Transfers(k, v, ring.place)

    def attend(
        keys: Tensor, values: Tensor, total: KeyGradients, pieces: Pieces, scores: Scores
    ) -> None:
        if not pieces:
            return
        rows, compact = ring.place.compact(pieces, dout)
        dout_rows, seen = queries.select(rows)
        visible = replace(seen, k=keys, v=values)
        for q_rows, k_rows, dq_part, dk_part, dv_part in kernel.backward(
            dout_rows, visible, compact, scores
        ):
            dq.add(rows, q_rows, dq_part)
            total.add(k_rows, dk_part, dv_part)

    def fetch(fetching: Fetching, pieces: Pieces, scores: Scores) -> None:
        rows = fetching.wait_for_needed()
        gradients = KeyGradients(rows.shape[0], heads, exact)
        keys, values = unflatten_heads(rows, *heads)
        attend(keys, values, gradients, pieces, scores)
        fetching.send_home(gradients.flat(rows), home.flat(rows))

    attend(k, v, home, layout.local, ring.causal)
    if layout.cut is not None:
        if transfers.cutting is None:
            attend(k, v, home, layout.cut.pieces, ring.cut)
        else:
            fetch(transfers.cutting, layout.cut.pieces, ring.cut)
    if layout.gathered is not None and transfers.gathering is not None:
        fetch(transfers.gathering, layout.gathered.pieces, ring.scores)
    if transfers.passing is not None:
        for step, (pieces, rows) in enumerate(transfers.passing, start=1):
            gradients = KeyGradients(rows.shape[0], heads, exact)
            keys, values = unflatten_heads(rows, *heads)
            attend(keys, values, gradients, pieces, ring.scores)
            transfers.passing.send_on(step, gradients)
        transfers.passing.add_home(home.flat(k))
    for fetching in (transfers.cutting, transfers.gathering):
        if fetching is not None:
            fetching.add_home(home.flat(k))
    return dq.finish(), *home.finish(k)


def sink_gradients(dout: Tensor, out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """Compute the gradient of ``sinks`` (heads,) from this rank's rows, in the accumulation dtype.

    ``out`` and ``lse`` as ``ring_forward`` gave them: the weight of a sink is exp(sink − lse), and
    its value is 0.
    """
    weights = torch.exp(sinks.to(lse.dtype) - lse)
    return -(weights * (dout.to(lse.dtype) * out.to(lse.dtype)).sum(-1)).sum(0)
