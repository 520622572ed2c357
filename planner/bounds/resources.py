"""What a pipeline offers by a time and what sequences take of it: the terms of every bound.

A pipeline that ends by τ runs some number V of micro-batches; M is the work of the largest. Form S
is at most τ exactly if Σ(a·l² + b·l) + V·c + (pp − 1)·(M + c) ≤ τ. With β = τ/(V + pp − 1) − c, the
work of each if all were equal, a pipeline is in one of two kinds of states.

*Even*, one state for each V: M ≤ β, or one stage. It limits

- work: Σ(a·l² + b·l) ≤ V·β, at pp = 1 that is τ − c·V; no sequence has more work than β (τ − c·V);
- tokens: Σ padded lengths ≤ V·MaxLen;
- large items, the simplest of Martello and Toth's dual feasible functions: a micro-batch holds at
  most one sequence above half of MaxLen, and at most one with more than half the work of a
  micro-batch (at pp = 1: of the pipeline).

The largest V that is told apart stands for itself and every larger one: it offers the most work and
tokens that any of them can use, and its large items are not limited.

*Peaked*, one state for each level of M: M > β, as when one long sequence is longer than an even
micro-batch. For M in [low, high) what remains for work and micro-batches, whatever V is, is
E = τ − (pp − 1)·(low + c). V is at least 2, tokens/MaxLen, and the number of sequences above half
of MaxLen or of ``high``; each of these, times c, and the work together are at most E.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqplan.planner.placement.fleet import MOST, Floats, Ints, PipelineClass

RESOURCES = 4
"""Work, tokens, sequences with a large work, sequences with a large length."""

ROUNDING = 1e-9
"""Relative margin against rounding: a refutation must clear it."""


@dataclass(frozen=True)
class Resources:
    """Resources of one class at a time τ, for each of some states of a pipeline.

    ``share`` (states, RESOURCES, n): the part of what one pipeline offers that each sequence takes;
    the shares of a pipeline's sequences sum to at most 1 for each resource.
    ``eligible`` (states, n): whether the sequence can be in such a pipeline at all.
    """

    share: Floats
    eligible: npt.NDArray[np.bool_]


def resources(
    pipeline_class: PipelineClass, micro_batches: Ints, levels: Ints, lengths: Ints, time_ms: float
) -> Resources:
    """Describe the states of one class at τ = ``time_ms``: even ones and, at pp > 1, peaked ones.

    Even states for each V in ``micro_batches``, ascending; the last stands for all that are at
    least as large and must be no less than ``most_micro_batches``, beyond which a larger V offers
    no more work. Peaked states for M between the works of consecutive ``levels``: lengths, from 0,
    ascending; the last has no upper end.
    """
    even = _even(pipeline_class, micro_batches, lengths, time_ms)
    if pipeline_class.pp == 1:
        return even
    peaked = _peaked(pipeline_class, levels, int(micro_batches[-1]), lengths, time_ms)
    return Resources(
        np.concatenate([even.share, peaked.share]),
        np.concatenate([even.eligible, peaked.eligible]),
    )


def _even(
    pipeline_class: PipelineClass, micro_batches: Ints, lengths: Ints, time_ms: float
) -> Resources:
    v = micro_batches.astype(np.float64)
    if pipeline_class.pp == 1:
        budget = np.maximum(
            time_ms - pipeline_class.c * v, 0.0
        )  # of a pipeline, shared by its micro-batches
        offered, large = budget.copy(), np.ones_like(v)
    else:
        budget = np.maximum(
            time_ms / (v + pipeline_class.pp - 1) - pipeline_class.c, 0.0
        )  # β, of each micro-batch
        offered, large = v * budget, v
    work = pipeline_class.work_ms(lengths)
    padded = pipeline_class.padded(lengths)
    fits = work <= budget[:, None] * (1 + ROUNDING)
    if v[-1] >= MOST:  # the V of the most work may lie beyond: assume the most
        offered[-1] = time_ms
        fits[-1] = work * pipeline_class.pp <= time_ms * (1 + ROUNDING)
    tokens = v * pipeline_class.capacity
    # Padding may take many more tokens than a larger V's work suggests: as many as fit its work.
    tokens[-1] = max(tokens[-1], offered[-1] * float((padded / work).max()))
    share = np.empty((len(v), RESOURCES, len(lengths)))
    share[:, 0] = work / np.maximum(offered, 1e-12)[:, None]
    share[:, 1] = padded / tokens[:, None]
    share[:, 2] = (work > budget[:, None] * (0.5 + ROUNDING)) / large[:, None]
    share[:, 3] = (2 * padded > pipeline_class.capacity) / v[:, None]
    share[-1, 2:] = 0.0
    return Resources(share, fits & (padded <= pipeline_class.capacity))


def _peaked(
    pipeline_class: PipelineClass, levels: Ints, most: int, lengths: Ints, time_ms: float
) -> Resources:
    bubbles = pipeline_class.pp - 1
    # Up to β of the last even state nothing is peaked that this state would not cover.
    covered = max(time_ms / (most + bubbles) - pipeline_class.c, 0.0)
    starts = pipeline_class.work_ms(levels)
    low, high = np.maximum(starts, covered), np.append(starts[1:], np.inf)
    left = np.maximum(time_ms - bubbles * (low + pipeline_class.c), 0.0)
    # M > β also says V > τ/(M + c) − (pp − 1); what is left for work is then most at the M of the
    # best even V, or at the end of the level that is nearest to it.
    best = np.clip(
        (time_ms * pipeline_class.c / bubbles) ** 0.5 - pipeline_class.c, low, np.maximum(low, high)
    )
    offered = np.maximum(
        best * (time_ms / np.maximum(best + pipeline_class.c, 1e-300) - bubbles), 0.0
    )
    offered = np.minimum(offered, left - 2 * pipeline_class.c)
    work = pipeline_class.work_ms(lengths)
    padded = pipeline_class.padded(lengths)
    fits = (work < high[:, None]) & (work <= offered[:, None] * (1 + ROUNDING))
    fits &= (high > covered)[:, None]
    share = np.empty((len(levels), RESOURCES, len(lengths)))
    share[:, 0] = work / np.maximum(offered, 1e-12)[:, None]
    counted = np.stack(
        [
            np.broadcast_to(padded / pipeline_class.capacity, fits.shape),
            work >= high[:, None] * (0.5 + ROUNDING),
            np.broadcast_to(2 * padded > pipeline_class.capacity, fits.shape),
        ],
        axis=1,
    )
    share[:, 1:] = (work + pipeline_class.c * counted) / np.maximum(left, 1e-12)[:, None, None]
    return Resources(share, fits & (padded <= pipeline_class.capacity))


def peak_levels(lengths: Ints, singles: int = 6, others: int = 4) -> Ints:
    """Choose levels for the peaked states: the longest of ``lengths`` (descending), then fewer.

    A peak is a sequence alone or nearly so; further levels fall by a quarter each.
    """
    top = lengths[:singles].tolist()
    below = [int(top[-1] * 0.75**k) for k in range(1, others + 1)]
    return np.array(sorted({0, *top, *below}), dtype=np.int64)
