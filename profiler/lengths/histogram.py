"""A data set known by the histogram of its lengths only: its buckets, and lengths that fit them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqplan.profiler.lengths.sources.collector import MAX_LENGTH
from seqplan.profiler.lengths.sources.error import LengthsError, first_line, shown
from seqplan.profiler.lengths.summary import Bucket

_WANTED = "[over, up to, sequences] or [over, up to, sequences, tokens]"


def parse_histogram(text: bytes, origin: str) -> tuple[Bucket, ...]:
    """Read buckets from a JSON list of ``[over, up to, sequences]``, with or without ``tokens``.

    Buckets ascend and do not overlap; a bucket may be empty. Where its tokens are not given they
    are those of lengths spread evenly over it, rounded down. ``LengthsError`` names the first
    element that is wrong, as ``origin[3][1]``.
    """
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LengthsError(f"{origin}: is not JSON: {first_line(error)}") from None
    if type(rows) is not list:
        raise LengthsError(f"{origin}: is {shown(rows)}, not a list of {_WANTED}")
    buckets: list[Bucket] = []
    for at, row in enumerate(rows):
        buckets.append(_bucket(row, f"{origin}[{at}]", buckets[-1].up_to if buckets else 0))
    if not any(bucket.sequences for bucket in buckets):
        raise LengthsError(f"{origin}: holds no sequences")
    return tuple(buckets)


def representative(buckets: Iterable[Bucket]) -> NDArray[np.int64]:
    """Return lengths with this histogram, ascending, int64 of shape (sequences,).

    Each bucket's are spread evenly around their mean, as widely as the bucket allows, and sum to
    its tokens. In integers throughout: every machine makes the same array.
    """
    return np.concatenate([_spread(bucket) for bucket in buckets])


def _spread(bucket: Bucket) -> NDArray[np.int64]:
    n, width = bucket.sequences, bucket.up_to - bucket.over - 1
    above = bucket.tokens - n * (bucket.over + 1)  # tokens beyond the shortest, of all sequences
    mirrored = 2 * above > n * width  # nearer to the upper end: spread downwards from there
    left = n * width - above if mirrored else above
    # Evenly over [0, top), top being twice the mean; what rounding down leaves is less than two a
    # sequence, and goes to the longest first. n < 2^28 and top < 2^32: products stay in 64 bits.
    top = 2 * left // n if n else 0
    values = top * (2 * np.arange(n, dtype=np.int64) + 1) // (2 * n) if n else np.empty(0, np.int64)
    if n:
        share, some = divmod(left - int(values.sum()), n)
        values += share
        values[n - some :] += 1
    return (bucket.up_to - values)[::-1] if mirrored else bucket.over + 1 + values


def _bucket(row: Any, place: str, least: int) -> Bucket:
    if type(row) is not list or len(row) not in (3, 4):
        raise LengthsError(f"{place}: is {shown(row)}, not {_WANTED}")
    for at, value in enumerate(row):
        if type(value) is not int:
            raise LengthsError(f"{place}[{at}]: is {shown(value)}, not an integer")
    over, up_to, sequences = row[:3]
    if over < least:
        raise LengthsError(f"{place}[0]: {over} is below {least}, where the bucket before ends")
    if not over < up_to <= MAX_LENGTH:
        raise LengthsError(f"{place}[1]: {up_to} is not in {over + 1} to {MAX_LENGTH}")
    if sequences < 0:
        raise LengthsError(f"{place}[2]: {sequences} is not a number of sequences")
    fewest, most = sequences * (over + 1), sequences * up_to
    tokens = row[3] if len(row) == 4 else (fewest + most) // 2
    if not fewest <= tokens <= most:
        raise LengthsError(
            f"{place}[3]: {tokens} is not in {fewest} to {most}, what {sequences} sequences of "
            f"{over + 1} to {up_to} tokens have"
        )
    return Bucket(over, up_to, sequences, tokens)
