"""A data set known by the histogram of its lengths only: its buckets, and lengths that fit them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqplan.costs.lengths.sources.collector import MAX_LENGTH
from seqplan.costs.lengths.sources.error import LengthsError, first_line, shown
from seqplan.costs.lengths.summary import Bucket

_WANTED = "[over, up to, sequences] or [over, up to, sequences, tokens]"


def parse_histogram(text: bytes, origin: str) -> tuple[Bucket, ...]:
    """Read buckets from a JSON list of ``[over, up to, sequences]``, with or without ``tokens``.

    Buckets ascend and do not overlap; a bucket may be empty. If its tokens are not given they
    are those of lengths spread evenly over it, rounded down. ``LengthsError`` names the first
    element that is wrong, as ``origin[3][1]``.
    """
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LengthsError(
            f"{origin}: is not JSON: {first_line(error)}. Give a list of buckets"
        ) from None
    if type(rows) is not list:
        raise LengthsError(f"{origin}: is {shown(rows)}, not a list of {_WANTED}. Repair it")
    buckets: list[Bucket] = []
    for at, row in enumerate(rows):
        buckets.append(_bucket(row, f"{origin}[{at}]", buckets[-1].up_to if buckets else 0))
    if not any(bucket.sequences for bucket in buckets):
        raise LengthsError(f"{origin}: holds no sequences. Give at least one bucket")
    return tuple(buckets)


def representative(buckets: Iterable[Bucket]) -> NDArray[np.int64]:
    """Return lengths with this histogram, ascending, int64 of shape (sequences,).

    Each bucket's are spread evenly around their mean, as widely as the bucket allows, and sum to
    its tokens. In integers throughout: every machine makes the same array.
    """
    return np.concatenate([_spread(bucket) for bucket in buckets])


def longest(buckets: Iterable[Bucket]) -> int:
    """Return the longest of ``representative``, which is not made for it; 0 without sequences."""
    last = max((bucket for bucket in buckets if bucket.sequences), default=None, key=_up_to)
    if last is None:
        return 0
    n = last.sequences
    mirrored, left = _beyond(last)
    top = 2 * left // n
    # Σ ⌊top·(2i + 1) / 2n⌋ over the sequences, as the array would sum to.
    share, some = divmod(left - _floor_sum(n, 2 * n, 2 * top, top), n)
    if mirrored:
        return last.up_to - top // (2 * n) - share
    return last.over + 1 + top * (2 * n - 1) // (2 * n) + share + bool(some)


def _up_to(bucket: Bucket) -> int:
    return bucket.up_to


def _beyond(bucket: Bucket) -> tuple[bool, int]:
    """Return whether to spread downwards from the upper end, and the tokens to spread."""
    n, width = bucket.sequences, bucket.up_to - bucket.over - 1
    above = bucket.tokens - n * (bucket.over + 1)  # tokens beyond the shortest, of all sequences
    mirrored = 2 * above > n * width  # nearer to the upper end
    return mirrored, n * width - above if mirrored else above


def _spread(bucket: Bucket) -> NDArray[np.int64]:
    n = bucket.sequences
    if not n:
        return np.empty(0, np.int64)
    mirrored, left = _beyond(bucket)
    # Evenly over [0, top), top being twice the mean; what rounding down leaves is less than two a
    # sequence, and goes to the longest first. n < 2^28 and top < 2^32: products stay in 64 bits.
    # In one array: there may be hundreds of millions.
    top = 2 * left // n
    values = np.arange(1, 2 * n, 2, dtype=np.int64)
    values *= top
    values //= 2 * n
    share, some = divmod(left - int(values.sum()), n)
    values += share
    values[n - some :] += 1
    if mirrored:
        np.subtract(bucket.up_to, values, out=values)
        return values[::-1]
    values += bucket.over + 1
    return values


def _floor_sum(n: int, m: int, a: int, b: int) -> int:
    """Compute the sum of ⌊(a·i + b) / m⌋ over 0 ≤ i < n by Euclid's algorithm."""
    total = 0
    while True:
        total += (a // m) * (n * (n - 1) // 2) + (b // m) * n
        a, b = a % m, b % m
        highest = a * n + b
        if highest < m:
            return total
        n, b = divmod(highest, m)
        m, a = a, m


def _bucket(row: Any, place: str, least: int) -> Bucket:
    if type(row) is not list or len(row) not in (3, 4):
        raise LengthsError(f"{place}: is {shown(row)}, not {_WANTED}")
    for at, value in enumerate(row):
        if type(value) is not int:
            raise LengthsError(f"{place}[{at}]: is {shown(value)}, not an integer. Give an integer")
    over, up_to, sequences = row[:3]
    if over < least:
        raise LengthsError(
            f"{place}[0]: {over} is below {least}, where the bucket before ends. Order the buckets"
        )
    if not over < up_to <= MAX_LENGTH:
        raise LengthsError(
            f"{place}[1]: {up_to} is not in {over + 1} to {MAX_LENGTH}"
            ". Give a length within the bucket"
        )
    if sequences < 0:
        raise LengthsError(
            f"{place}[2]: {sequences} is not a number of sequences. Give an integer of 1 or more"
        )
    fewest, most = sequences * (over + 1), sequences * up_to
    tokens = row[3] if len(row) == 4 else (fewest + most) // 2
    if not fewest <= tokens <= most:
        raise LengthsError(
            f"{place}[3]: {tokens} is not in {fewest} to {most}, what {sequences} sequences of "
            f"{over + 1} to {up_to} tokens have"
            ". Correct the number of tokens"
        )
    return Bucket(over, up_to, sequences, tokens)
