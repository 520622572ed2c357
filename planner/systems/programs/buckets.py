"""Buckets of similar lengths with the least rounding up, as FlexSP (arXiv 2412.01523) has them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def buckets_of(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Cut positions into at most ``most`` buckets, longest first, each a range of sorted lengths.

    A bucket counts every sequence as its longest; the sum of what that adds is least. Exact by
    dynamic programming over the distinct lengths, O(most · distinct²). ``ValueError`` for fewer
    than one bucket.
    """
    if most < 1:
        raise ValueError(f"buckets must be 1 or more, not {most}")
    values, of_sequence, counts = np.unique(
        np.asarray(lengths, dtype=np.int64), return_inverse=True, return_counts=True
    )
    n = len(values)
    cuts = list(range(n + 1)) if n <= most else _cuts(values, counts, most)
    bucket = np.searchsorted(cuts, of_sequence, side="right") - 1
    return [np.nonzero(bucket == k)[0].tolist() for k in range(len(cuts) - 2, -1, -1)]


def _cuts(values: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], most: int) -> list[int]:
    """Find the first distinct length of each of ``most`` buckets, and the number of lengths."""
    n = len(values)
    number = np.concatenate([[0], np.cumsum(counts)])
    tokens = np.concatenate([[0], np.cumsum(values * counts)])
    # added[i, j]: what rounding values[i : j] up to values[j − 1] adds, for i < j.
    added = np.full((n + 1, n + 1), np.inf)
    for j in range(1, n + 1):
        added[:j, j] = values[j - 1] * (number[j] - number[:j]) - (tokens[j] - tokens[:j])
    best = added[0].copy()
    choices = []
    for _ in range(most - 1):
        total = best[:, None] + added
        choices.append(total.argmin(axis=0))
        best = total.min(axis=0)
    cuts = [n]
    for choice in reversed(choices):
        cuts.append(int(choice[cuts[-1]]))
    return [0, *cuts[::-1]]
