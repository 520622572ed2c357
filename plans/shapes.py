"""Sizes to which micro-batches are padded: tokens on a rank, the same for all schemes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from math import gcd

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


def sum_least_sizes(tokens: int, sizes: Collection[int]) -> int:
    """Return the least sum of sizes, each any number of times, of ``tokens`` or more.

    No micro-batches of these sizes (tokens) hold so many tokens with less padding, however well
    sequences fill them. Complexity: O(tokens/gcd) bits for each doubling of each size.
    """
    unit = gcd(*sizes)
    units = {size // unit for size in sizes}
    least = -(-tokens // unit)
    last = least + min(units)
    reached = 1
    for size in units:
        while size <= last:
            reached |= reached << size
            size *= 2
    above = reached >> least
    return unit * (least + (above & -above).bit_length() - 1)
