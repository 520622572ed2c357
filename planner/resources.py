"""What a pipeline offers by a time and what sequences take of it: the terms of every bound.

A pipeline that ends by τ runs some number V of micro-batches. Given V, form S limits:

- work: Σ(a·l² + b·l) ≤ τ − c·V at pp = 1, and ≤ V·β with β = τ/(V + pp − 1) − c at pp > 1, because
  the largest micro-batch is at least the mean one; a sequence with more work than β is excluded;
- tokens: Σ padded lengths ≤ V·MaxLen;
- large items: a micro-batch holds at most one sequence above half of MaxLen, and at most one with
  more than half its work (at pp = 1: a pipeline), the simplest of Martello and Toth's dual feasible
  functions.

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

    The last number of micro-batches stands for all that are at least as large.
    """
    v = micro_batches.astype(np.float64)
    if item.pp == 1:
        budget = np.maximum(time_ms - item.c * v, 0.0)  # of a pipeline, shared by its micro-batches
        offered, large = budget.copy(), np.ones_like(v)
    else:
        budget = np.maximum(time_ms / (v + item.pp - 1) - item.c, 0.0)  # of each micro-batch
        offered, large = v * budget, v
    tokens = v * item.capacity
    if v[-1] >= MOST:  # the limits of ``most_micro_batches`` may lie beyond: assume the most
        offered[-1] = time_ms
        tokens[-1] = time_ms / item.b if item.b else np.inf
    work = item.work_ms(lengths)
    padded = item.padded(lengths)
    eligible = (work <= budget[:, None] * (1 + ROUNDING)) & (padded <= item.capacity)
    share = np.empty((len(v), RESOURCES, len(lengths)))
    share[:, 0] = work / np.maximum(offered, 1e-12)[:, None]
    share[:, 1] = padded / tokens[:, None]
    share[:, 2] = (work > budget[:, None] * (0.5 + ROUNDING)) / large[:, None]
    share[:, 3] = (2 * padded > item.capacity) / v[:, None]
    share[-1, 2:] = 0.0
    return Resources(share, eligible)
