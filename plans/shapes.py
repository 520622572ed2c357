"""Sizes to which micro-batches are padded: tokens on a rank, the same for all schemes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from seqplan.plans.scheme import Scheme


def pad_to_shape(scheme: Scheme, lengths: Sequence[int], shapes: Sequence[int]) -> int | None:
    """Return the padded tokens of a micro-batch with these lengths (tokens).

    ``shapes``: tokens on a rank of the sequence-parallel group, ascending; without any, those of
    ``Scheme.pad_micro_batch``. None if no shape holds them.
    """
    padded = scheme.pad_micro_batch(lengths)
    if not shapes:
        return padded
    place = bisect_left(shapes, -(-padded // scheme.sp))
    return shapes[place] * scheme.sp if place < len(shapes) else None


def count_added(scheme: Scheme, lengths: Sequence[int], padded_tokens: int) -> int:
    """Count the tokens that padding to a shape adds to ``Scheme.pad_micro_batch``."""
    return padded_tokens - scheme.pad_micro_batch(lengths)
