"""What a rank of a ring adds up call by call: its output, and gradients of queries and keys.

The calls of a ring are over all rows of its queries, or over the same part of them several times in
a row (the high chunks). A part is taken out once, added to in place, and put back when another one
follows. A first result that covers everything is not copied.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from seqplan.plans.views.sharding import Range
from seqplan.runtime.sequence_parallel.context import DeviceIndices
from seqplan.runtime.sequence_parallel.flat_heads import Heads, flat_width, unflatten_heads
from seqplan.runtime.sequence_parallel.kernels import Attended, Partial, Rows
from seqplan.runtime.sequence_parallel.kernels.rows import ALL, concatenate_ranges, take_rows


def rows_of_ranges(
    ranges: tuple[Range, ...], tokens: int, indices: DeviceIndices, device: torch.device
) -> Rows:
    """Return rows of a tensor as a range if they are one, else as an index.

    ``tokens``: rows of the tensor. Of the same ranges ``indices`` has one index.
    """
    if len(ranges) == 1:
        (rows,) = ranges
        return ALL if rows == (0, tokens) else slice(*rows)
    return indices.tensor(("query rows", ranges), concatenate_ranges(ranges), device)


def add_rows(total: Tensor, rows: Rows, part: Tensor) -> None:
    """Add ``part`` to rows of ``total``."""
    if isinstance(rows, slice):
        total[rows].add_(part)
    else:
        total.index_add_(0, rows, part.to(total.dtype))


def _is_same(one: Rows, other: Rows) -> bool:
    if isinstance(one, slice) or isinstance(other, slice):
        return isinstance(one, slice) and isinstance(other, slice) and one == other
    return one is other


def _covers(rows: Rows, tokens: int) -> bool:
    return isinstance(rows, slice) and rows.indices(tokens) == (0, tokens, 1)


class SelectedQueries:
    """Rows of queries and of their results, taken out once for consecutive calls."""

    def __init__(self, dout: Tensor, attended: Attended) -> None:
        self._dout, self._attended = dout, attended
        self._rows: Rows | None = None
        self._selected = dout, attended

    def select(self, rows: Rows) -> tuple[Tensor, Attended]:
        """Return the rows of the output's gradient, and the queries and results of these.

        Log-sum-exps are stored head by head, as fused kernels read them.
        """
        if self._rows is None or not _is_same(rows, self._rows):
            whole = self._attended
            by_head = whole.lse.t()
            lse = by_head[:, rows] if isinstance(rows, slice) else by_head.index_select(1, rows)
            self._rows = rows
            self._selected = (
                take_rows(self._dout, rows),
                Attended(
                    take_rows(whole.q, rows),
                    whole.k,
                    whole.v,
                    take_rows(whole.out, rows),
                    lse.contiguous().t(),
                ),
            )
        return self._selected


class _Parts:
    """Tensors whose rows are changed part by part; a part that is an index is a copy."""

    def __init__(self, *whole: Tensor) -> None:
        self.whole = whole
        self._rows: Rows = ALL
        self._part = whole

    def select(self, rows: Rows) -> tuple[Tensor, ...]:
        """Return rows of the tensors to change in place, after those selected before."""
        if not _is_same(rows, self._rows):
            self.put_back()
            self._rows = rows
            self._part = tuple(take_rows(tensor, rows) for tensor in self.whole)
        return self._part

    def put_back(self) -> None:
        """Store the changes of the selected rows."""
        if isinstance(self._rows, Tensor):
            for tensor, part in zip(self.whole, self._part, strict=True):
                tensor.index_copy_(0, self._rows, part)
        self._rows, self._part = ALL, self.whole


class MergedOutput:
    """Output (tokens, heads, width) and log-sum-exp (tokens, heads) of merged partial results.

    ``dtype``: of the output; ``exact``: of the log-sum-exp.
    """

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, exact: torch.dtype) -> None:
        self._shape, self._dtype, self._exact = shape, dtype, exact
        self._parts: _Parts | None = None

    def put(self, rows: Rows, partials: Iterable[Partial]) -> None:
        """Write the first results of ``rows``, by which the partial results count."""
        for of_rows, out, lse in partials:
            if (
                self._parts is None
                and _covers(rows, self._shape[0])
                and _covers(of_rows, self._shape[0])
                and out.is_contiguous()
            ):
                self._parts = _Parts(out.to(self._dtype), lse)
                continue
            whole_out, whole_lse = self._whole(out).whole
            if isinstance(rows, slice):
                whole_out[rows][of_rows] = out.to(self._dtype)
                whole_lse[rows][of_rows] = lse
            else:
                whole_out[rows[of_rows]] = out.to(self._dtype)
                whole_lse[rows[of_rows]] = lse

    def merge(self, rows: Rows, partials: Iterable[Partial]) -> None:
        """Merge further results of ``rows``."""
        for of_rows, partial, partial_lse in partials:
            out, lse = self._whole(partial).select(rows)
            part, before = take_rows(out, of_rows), take_rows(lse, of_rows)
            weight = torch.sigmoid(partial_lse - before).unsqueeze(-1)
            part.lerp_(partial.to(out.dtype), weight)
            torch.logaddexp(before, partial_lse, out=before)
            if isinstance(of_rows, Tensor):
                out.index_copy_(0, of_rows, part)
                lse.index_copy_(0, of_rows, before)

    def finish(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and the log-sum-exp, of the device of ``like``."""
        parts = self._whole(like)
        parts.put_back()
        out, lse = parts.whole
        return out, lse

    def _whole(self, like: Tensor) -> _Parts:
        if self._parts is None:
            self._parts = _Parts(
                like.new_empty(self._shape, dtype=self._dtype),
                like.new_empty(self._shape[:2], dtype=self._exact),
            )
        return self._parts


class QueryGradients:
    """The sum of gradients of queries, in ``exact``; a single one that covers all is not copied."""

    def __init__(self, q: Tensor, exact: torch.dtype) -> None:
        self._q, self._exact = q, exact
        self._first: Tensor | None = None
        self._parts: _Parts | None = None

    def add(self, rows: Rows, of_rows: Rows, part: Tensor) -> None:
        """Add to rows ``of_rows`` of ``rows``."""
        tokens = self._q.shape[0]
        unused = self._parts is None and self._first is None
        if unused and _covers(rows, tokens) and _covers(of_rows, tokens):
            self._first = part
            return
        (total,) = self._whole().select(rows)
        add_rows(total, of_rows, part)

    def finish(self) -> Tensor:
        """Return the sum in the dtype of the queries."""
        if self._parts is None and self._first is not None:
            return self._first.to(self._q.dtype)
        parts = self._whole()
        parts.put_back()
        return parts.whole[0].to(self._q.dtype)

    def _whole(self) -> _Parts:
        if self._parts is None:
            if self._first is None:
                total = torch.zeros_like(self._q, dtype=self._exact)
            else:
                total = self._first.to(self._exact, copy=self._first.dtype == self._exact)
            self._first, self._parts = None, _Parts(total)
        return self._parts


class KeyGradients:
    """The sum of gradients of ``tokens`` rows of keys and values, flat in ``exact``.

    The first addend is kept as it came until another one follows.
    """

    def __init__(self, tokens: int, heads: tuple[Heads, Heads], exact: torch.dtype) -> None:
        self._tokens, self._heads, self._exact = tokens, heads, exact
        self._first: tuple[Rows, Tensor, Tensor] | None = None
        self._total: Tensor | None = None

    def add(self, rows: Rows, dk: Tensor, dv: Tensor) -> None:
        """Add gradients of keys and values to ``rows``."""
        if self._total is None and self._first is None:
            self._first = rows, dk, dv
        else:
            self._add(self.flat(dk), rows, dk, dv)

    def add_to(self, flat: Tensor) -> Tensor:
        """Add the sum to ``flat`` (tokens, flat width), in place."""
        if self._first is not None:
            self._add(flat, *self._first)
        elif self._total is not None:
            flat += self._total
        return flat

    def flat(self, like: Tensor) -> Tensor:
        """Return the sum, to add to; of the device of ``like``."""
        if self._total is None:
            first, self._first = self._first, None
            if first is not None and _covers(first[0], self._tokens):
                self._total = torch.cat([part.flatten(1) for part in first[1:]], 1).to(self._exact)
            else:
                shape = self._tokens, flat_width(*self._heads)
                self._total = like.new_zeros(shape, dtype=self._exact)
                if first is not None:
                    self._add(self._total, *first)
        return self._total

    def finish(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of keys and values in the dtype of ``like``."""
        if self._first is not None and _covers(self._first[0], self._tokens):
            _, dk, dv = self._first
            return dk.to(like.dtype), dv.to(like.dtype)
        dk, dv = unflatten_heads(self.flat(like).to(like.dtype), *self._heads)
        return dk, dv

    def _add(self, flat: Tensor, rows: Rows, dk: Tensor, dv: Tensor) -> None:
        for total, part in zip(unflatten_heads(flat, *self._heads), (dk, dv), strict=True):
            add_rows(total, rows, part)
