"""Overview of a data set's lengths: statistics, a histogram and its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LIMITS = (2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
"""Lengths over which the share of sequences and tokens is stated by default."""

BLOCKS = "▏▎▍▌▋▊▉█"
"""A bar's last character, by eighths."""

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Bucket:
    """Sequences longer than ``over`` and at most ``up_to`` tokens, and their tokens."""

    over: int
    up_to: int
    sequences: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Tail:
    """Sequences longer than ``over`` tokens, and the share of all tokens that is in them."""

    over: int
    sequences: int
    token_share: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of sequence lengths, in tokens; percentiles are interpolated linearly.

    ``buckets`` end at powers of two and have no gaps between the shortest and the longest
    sequence. ``tails`` has only those limits that a sequence exceeds.
    """

    sequences: int
    tokens: int
    mean: float
    median: float
    p90: float
    p99: float
    max: int
    buckets: tuple[Bucket, ...]
    tails: tuple[Tail, ...]


def summarise(lengths: NDArray[np.integer], limits: Sequence[int] = LIMITS) -> Summary:
    """Summarize lengths, an array of shape (sequences,); ``ValueError`` when there are none."""
    if not len(lengths):
        raise ValueError("summary: there are no lengths. Give at least one length")
    tokens = int(lengths.sum(dtype=np.int64))
    # Between integers at hundredths: two digits are exact, and have no error of rounding.
    median, p90, p99 = np.percentile(lengths, (50, 90, 99)).round(2).tolist()
    return Summary(
        sequences=len(lengths),
        tokens=tokens,
        mean=tokens / len(lengths),
        median=median,
        p90=p90,
        p99=p99,
        max=int(lengths.max()),
        buckets=_buckets(lengths),
        tails=tuple(_tails(lengths, sorted(set(limits)), tokens)),
    )


def _buckets(lengths: NDArray[np.integer]) -> tuple[Bucket, ...]:
    counts = np.zeros(64, np.int64)
    tokens = np.zeros(64, np.int64)
    for start in range(0, len(lengths), _CHUNK):
        part = lengths[start : start + _CHUNK].astype(np.int64)
        # l − 1 = m·2^e with ½ ≤ m < 1, so that 2^(e−1) < l ≤ 2^e; exact below 2^53.
        exponents = np.frexp((part - 1).astype(np.float64))[1]
        counts += np.bincount(exponents, minlength=64)
        tokens += np.bincount(exponents, weights=part, minlength=64).astype(np.int64)
    used = np.flatnonzero(counts)
    return tuple(
        Bucket(1 << e >> 1, 1 << e, int(counts[e]), int(tokens[e]))
        for e in range(int(used[0]), int(used[-1]) + 1)
    )


def _tails(lengths: NDArray[np.integer], limits: Sequence[int], tokens: int) -> list[Tail]:
    tails = []
    for limit in limits:
        longer = lengths[lengths > limit]
        if not len(longer):
            break
        share = int(longer.sum(dtype=np.int64)) / tokens
        tails.append(Tail(limit, len(longer), share))
    return tails


def histogram_lines(summary: Summary, width: int = 80, blocks: str = BLOCKS) -> list[str]:
    """Draw the histogram as text: a heading and a line a bucket, at most ``width``.

    Bars show each bucket's share of the sequences and of the tokens, on one scale. ``blocks``
    are the characters of a bar's end by equal steps, the last one full: ``"#"`` for ASCII.
    """
    rows = [
        (f"{b.up_to:,}", f"{b.sequences:,}", b.sequences / summary.sequences, b.tokens)
        for b in summary.buckets
    ]
    label = max(len("up to"), *(len(row[0]) for row in rows))
    count = max(len("sequences"), *(len(row[1]) for row in rows))
    shares = [(row[2], row[3] / summary.tokens) for row in rows]
    # Next to the label and the count: two percentages of 7 characters and spaces between all.
    bar = max(4, (width - label - count - 2 * 7 - 8) // 2)
    scale = max(max(pair) for pair in shares)
    lines = [
        f"{'up to':>{label}}  {'sequences':>{count}}  {'share':<{bar + 8}}  tokens in them".rstrip()
    ]
    for (up_to, sequences, _, _), (of_sequences, of_tokens) in zip(rows, shares, strict=True):
        left = _bar(of_sequences / scale, bar, blocks)
        right = _bar(of_tokens / scale, bar, blocks)
        lines.append(
            f"{up_to:>{label}}  {sequences:>{count}}  {_percent(of_sequences)} {left:<{bar}}"
            f"  {_percent(of_tokens)} {right}".rstrip()
        )
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:5.1f} %"


def _bar(fraction: float, width: int, blocks: str) -> str:
    """Draw a bar of ``fraction`` of ``width`` characters; never empty unless zero."""
    steps = len(blocks)
    filled = round(fraction * width * steps)
    if fraction > 0:
        filled = max(1, filled)
    whole, rest = divmod(filled, steps)
    return blocks[-1] * whole + (blocks[rest - 1] if rest else "")
