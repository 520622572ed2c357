"""What a pipeline offers by a time and what sequences take of it: the terms of every bound.

A pipeline that ends by τ runs some number V of micro-batches. Given V, form S limits:

- work: Σ(a·l² + b·l) ≤ τ − c·V at pp = 1. At pp > 1 let β = τ/(V + pp − 1) − c: were all
  micro-batches equal, each could have work β. With M the work of the largest, form S ≤ τ says
  exactly Σ(a·l² + b·l) + (pp − 1)·(M − β) ≤ V·β, whatever sign M − β has. M is at least the mean,
  so Σ(a·l² + b·l) ≤ V·β; and where a sequence alone has more work than β, M − β is paid for by
  ``_surcharge``, work that it takes beyond its own;
- tokens: Σ padded lengths ≤ V·MaxLen;
- large items, the simplest of Martello and Toth's dual feasible functions: a micro-batch holds at
  most one sequence above half of MaxLen; and at pp = 1 a pipeline at most one with more than half
  its work. At pp > 1 at most V sequences have work above θ·β, θ = (V + pp − 1)/(V + 2·pp − 1): of
  V + 1, two would share a micro-batch, so Σ > (V + 1)·θ·β and M > 2·θ·β, against the limit on work.

The largest V that is told apart stands for itself and every larger one: it offers the most work and
tokens that any of them can use, and its large items are not limited.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqplan.planner.fleet import MOST, PipelineClass

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

RESOURCES = 4
"""Work, tokens, sequences with a large work, sequences with a large length."""

ROUNDING = 1e-9
"""Relative margin against rounding: a refutation must clear it."""


@dataclass(frozen=True)
class Resources:
    """Resources of one class at a time τ, for each of some numbers of micro-batches.

    ``share`` (V, RESOURCES, n): the part of what one pipeline offers that each sequence takes;
    the shares of a pipeline's sequences sum to at most 1 for each resource.
    ``eligible`` (V, n): whether the sequence can be in such a pipeline at all.
    """

    share: Floats
    eligible: npt.NDArray[np.bool_]


def resources(item: PipelineClass, micro_batches: Ints, lengths: Ints, time_ms: float) -> Resources:
    """The resources of one class for each number of ``micro_batches`` at τ = ``time_ms``.

    The last number of micro-batches stands for all that are at least as large; it must be no less
    than ``most_micro_batches``, beyond which a larger V offers no more work.
    """
    v = micro_batches.astype(np.float64)
    work = item.work_ms(lengths)
    padded = item.padded(lengths)
    if item.pp == 1:
        budget = np.maximum(time_ms - item.c * v, 0.0)  # of a pipeline, shared by its micro-batches
        offered, large, most_large = budget.copy(), budget, np.ones_like(v)
        half = np.full_like(v, 0.5)
        taken = np.broadcast_to(work, (len(v), len(work))).copy()
        fits = work <= budget[:, None] * (1 + ROUNDING)
    else:
        budget = np.maximum(time_ms / (v + item.pp - 1) - item.c, 0.0)  # β, of each micro-batch
        offered, large, most_large = v * budget, budget, v
        half = (v + item.pp - 1) / (v + 2 * item.pp - 1)
        taken = work + _surcharge(item.pp, v[:, None], budget[:, None], work)
        needed = work + (item.pp - 1) * np.maximum(work - budget[:, None], 0.0)
        fits = needed <= offered[:, None] * (1 + ROUNDING)
    if v[-1] >= MOST:  # the V of the most work may lie beyond: assume the most
        offered[-1] = time_ms
        taken[-1] = work
        fits[-1] = work * item.pp <= time_ms * (1 + ROUNDING)
    tokens = v * item.capacity
    # Padding may take many more tokens than a larger V's work suggests: as many as fit its work.
    tokens[-1] = max(tokens[-1], offered[-1] * float((padded / work).max()))
    share = np.empty((len(v), RESOURCES, len(lengths)))
    share[:, 0] = taken / np.maximum(offered, 1e-12)[:, None]
    share[:, 1] = padded / tokens[:, None]
    share[:, 2] = (work > (large * half * (1 + ROUNDING))[:, None]) / most_large[:, None]
    share[:, 3] = (2 * padded > item.capacity) / v[:, None]
    share[-1, 2:] = 0.0
    return Resources(share, fits & (padded <= item.capacity))


def _surcharge(pp: int, v: Floats, budget: Floats, work: Floats) -> Floats:
    """Work (ms) that a sequence above β takes beyond its own, for V (rows) and sequences (columns).

    In every feasible pipeline the surcharges must sum to at most (pp − 1)·(longest − β). At most
    V − 1 sequences exceed β, as together they stay below V·β; so each may take 1/(V − 1) of its own
    excess. Where a second one like it would exceed V·β there is only one such, and it takes all its
    excess but what the others, which have the rest to share, could take.
    """
    excess = np.maximum(work - budget, 0.0)
    among = np.maximum(v - 1, 1.0)
    rest = v * budget - work - (pp - 1) * excess
    alone = work > rest
    of_others = np.maximum(rest - budget, 0.0) / among
    return (pp - 1) * np.where(
        alone, np.maximum(excess - of_others, excess / among), excess / among
    )
