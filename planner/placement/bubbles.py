"""By how much the stages of a pipeline idle at least, whatever its micro-batches are.

In 1F1B with pp stages, of V micro-batches t_1 … t_V (ms on one stage) with forward's share f, a
pipeline that goes down to the last stage with micro-batch i, and up again with micro-batch k ≥ i,
takes their sum and D(i) + U(k) more, for

- D(i) = (pp − 1)·f·t_i − (1 − f)·(t_{i−1} + … + t_{i−pp+1}): forwards of i on all stages but one,
  less the backwards before it that the last stage has not run;
- U(k) = (pp − 1)·(1 − f)·t_k − f·(t_{k+1} + … + t_{k+pp−1}): backwards of k on all stages but one,
  less the forwards that the first stage has run already.

No order takes less than the sum and the largest of these. Let D(i) be at most (pp − 1)·d for all i
up to some micro-batch, and U(k) at most (pp − 1)·u from it on. If K come before it, its t is at
most h_K·d, as those before are at most h_0·d … h_{K−1}·d; if L come after it, at most g_L·u, for

- h_j = (1 + (1 − f)·(h_{j−1} + … + h_{j−pp+1}) / (pp − 1)) / f,
- g_j = (1 + f·(g_{j−1} + … + g_{j−pp+1}) / (pp − 1)) / (1 − f).

So if a pipeline idles for (pp − 1)·B, each t is at most the lesser of d·h_K and (B − d)·g_L for
K + L = V − 1, if the largest D so far is (pp − 1)·d. This d does not fall from one micro-batch to
the next. The d of which both are equal does: they are B·r then, for r = 1 / (1/h_K + 1/g_L). So the
sum of t is largest if all have one d, the best. B is at least

- the mean t divided by the mean of the lesser of δ·h_K and (1 − δ)·g_L, for the best δ, and
- the largest t divided by the largest r. With more and more micro-batches (pp − 1)/r falls to
  (pp − 1)·(1 − 2f), or to 0 if forward takes half of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

import numpy as np
import numpy.typing as npt

KNOWN = 64
"""Numbers of stages with shares of forward whose bubbles are kept."""

MANY = 10_000
"""In a batch of so many sequences exchanges reach half of what they reach in a small batch. By the
estimate of small batches a step of 50,000 sequences of 70B on 4,096 GPUs is 1.3 % longer."""

SPREAD = 2
"""How many micro-batches it takes, for each further stage, until a pipeline counts as one of many.
With 1 or 3 in its place steps of 32B and 70B are as long, within 0.1 %."""


@dataclass(frozen=True, slots=True)
class Bubbles:
    """How many more of the largest micro-batch stages idle for, as plans turn out.

    One micro-batch has pp − 1. Many have ``of_many``, (pp − 1)·(f² + (1 − f)²), as if only the
    first and the last were smaller; up to pp − 1 in a batch of so many sequences that each has few
    exchanges. Few are in between: V of them have ``of_few`` / (V + ``spread`` − 1) more.
    """

    of_many: float
    of_few: float
    spread: float

    @classmethod
    def from_forward(cls, pp: int, forward: float, sequences: int) -> Bubbles:
        """Estimate them for forward's share of a micro-batch's time; none without stages.

        ``sequences``: of the batch.
        """
        exchanged = MANY / (MANY + sequences)
        of_many = (pp - 1) * (1 - exchanged * 2 * forward * (1 - forward))
        spread = SPREAD * (pp - 1.0)
        return cls(of_many, spread * (pp - 1 - of_many), spread)

    def of(self, micro_batches: int) -> float:
        """Estimate the bubbles of so many micro-batches."""
        return self.of_many + self.of_few / max(micro_batches + self.spread - 1, 1.0)


def longest_path_ms(costs_ms: Sequence[float], pp: int, shares: Sequence[float]) -> float:
    """Compute Σ t and the most of D(i) + U(k) for micro-batches in order: at most what they take.

    ``shares``: forward's, of each.
    """
    n = len(costs_ms)
    forward = [cost * share for cost, share in zip(costs_ms, shares, strict=True)]
    backward = [cost - first for cost, first in zip(costs_ms, forward, strict=True)]
    total = behind = ahead = 0.0
    for cost in costs_ms:
        total += cost
    for first in forward[1:pp]:
        ahead += first
    down = longest = -inf
    for k in range(n):
        down = max(down, (pp - 1) * forward[k] - behind)
        longest = max(longest, down + ((pp - 1) * backward[k] - ahead))
        behind += backward[k]
        if k >= pp - 1:
            behind -= backward[k - pp + 1]
        if k + 1 < n:
            ahead -= forward[k + 1]
        if k + pp < n:
            ahead += forward[k + pp]
    return total + longest


def least_bubbles(pp: int, forward: float) -> float:
    """Return how many more of the largest micro-batch stages idle for, however many there are.

    ``forward``: the largest share of any micro-batch.
    """
    return (pp - 1) * max(1 - 2 * forward, 0.0)


@lru_cache(maxsize=KNOWN)
def list_bubbles(
    pp: int, least_forward: float, most_forward: float, most: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """List how many more of the mean, and of the largest micro-batch stages idle for.

    At least, of V = 1 … ``most`` micro-batches. Forward's shares of them are in ``least_forward`` …
    ``most_forward``.
    """
    filled = 1 / list_growth(pp, least_forward, most)
    drained = 1 / list_growth(pp, 1 - most_forward, most)
    sizes = [_bound_sizes(filled[:v], drained[:v][::-1]) for v in range(1, most + 1)]
    of_mean, of_largest = np.array(sizes).T
    return (pp - 1) / of_mean, (pp - 1) / of_largest


def _bound_sizes(
    filled: npt.NDArray[np.float64], drained: npt.NDArray[np.float64]
) -> tuple[float, float]:
    """Bound the mean and the largest micro-batch of those that idle for pp − 1.

    ``filled``, ``drained`` (V,): 1/h_K and 1/g_L of each.
    """
    largest = float((1 / (filled + drained)).max())
    return float(list_sizes(filled, drained).mean(axis=1).max()), largest


def list_sizes(
    filled: npt.NDArray[np.float64], drained: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """List the sizes of micro-batches that idle for pp − 1 at each δ; the sum is largest at one.

    ``filled``, ``drained`` (V,): 1/h_K and 1/g_L of each. Returns (V of δ, V).
    """
    down = (filled / (filled + drained))[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):  # 0/0 limits nothing
        return np.fmin(down / filled, (1 - down) / drained)


def list_growth(pp: int, share: float, most: int) -> npt.NDArray[np.float64]:
    """List the g_j for a share of 1 − f, or the h_j for f."""
    growth: list[float] = []
    for _ in range(most):
        before = sum(growth[-(pp - 1) :]) / (pp - 1)
        growth.append((1 + (1 - share) * before) / share if share else inf)
    return np.array(growth)


def count_best_micro_batches(time_ms: float, bubbles: float, overhead_ms: float) -> float:
    """Count the micro-batches that leave most for work by a time; inf without overhead.

    V of them leave V·(time/(V + bubbles) − overhead), most at V = √(time·bubbles/overhead) −
    bubbles. ``bubbles``: how many more of the largest count.
    """
    return (time_ms * bubbles / overhead_ms) ** 0.5 - bubbles if overhead_ms else inf
