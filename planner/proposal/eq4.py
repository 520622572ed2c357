"""The published proposal: Eq. 4 of Hydraulis with its continuous relaxation, and its rounding.

Eq. 4 minimizes over n GPUs and sequences up to l tokens

    t[n][l] = min over (P, n', l') of max(t[n'][l'], W_P(l', l) / ((n − n') / gpus(P)))

where W_P sums T(length, P) = a·l² + b·l + c, c per sequence as published, over the sequences in
(l', l]. With fractional pipelines an interval that ends by τ needs W_P/τ of them, so GPUs times
time is additive and t[n][l] = G(l)/n with G the running sum of the cheapest gpus(P)·T(length, P)
among the schemes that hold the length: all n and l at once, without the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.plans.scheme import Scheme, Strategy

MORE = 2
"""Pipelines beyond the nearest number that the scheme of the longest sequences is also given."""


@dataclass(frozen=True)
class ContinuousProposal:
    """Eq. 4 for every longest length: ``lengths`` ascending (tokens).

    ``gpu_ms[i]``: G(lengths[i]); t[n][lengths[i]] = gpu_ms[i]/n. ``choice[i]``: index of the scheme
    for that length; −1 if none holds it. ``gpu_ms_by_scheme``: running sums (lengths, schemes).
    """

    schemes: tuple[Scheme, ...]
    lengths: npt.NDArray[np.int64]
    gpu_ms: npt.NDArray[np.float64]
    choice: npt.NDArray[np.int64]
    gpu_ms_by_scheme: npt.NDArray[np.float64]


def continuous_proposal(
    models: Sequence[SchemeModel], lengths: npt.NDArray[np.int64], counts: npt.NDArray[np.float64]
) -> ContinuousProposal:
    """Solve the relaxation for every L in ``lengths`` (ascending, distinct) with ``counts``."""
    cost = np.empty((len(models), len(lengths)))
    for k, model in enumerate(models):
        one_stage = replace(PipelineClass.from_model(model, 1), pp=1)
        cost[k] = model.scheme.gpus * one_stage.alone_ms(lengths)
        cost[k, np.searchsorted(lengths, model.max_sequence, side="right") :] = np.inf
    choice = cost.argmin(axis=0)
    cheapest = cost[choice, np.arange(len(lengths))]
    held = np.isfinite(cheapest)
    share = np.where(held, cheapest, 0.0) * counts
    by_scheme = np.zeros((len(lengths), len(models)))
    by_scheme[np.arange(len(lengths)), choice] = share
    gpu_ms = np.where(np.logical_and.accumulate(held), np.cumsum(share), np.inf)
    return ContinuousProposal(
        tuple(model.scheme for model in models),
        lengths,
        gpu_ms,
        np.where(held, choice, -1),
        np.cumsum(by_scheme, axis=0),
    )


def integer_strategies(
    proposal: ContinuousProposal, models: Sequence[SchemeModel], gpus: int
) -> dict[Strategy, int]:
    """Round the relaxation at every L; map each strategy to the longest L (tokens) it came from.

    GPUs are split in proportion to GPUs·time; from the scheme of the longest sequences down each
    gets the nearest number of pipelines that is left, at least one if it is used; left-over GPUs
    go to the scheme with the most work per pipeline. The publication leaves the rounding open, and
    a step with more long sequences than the data has on average misses their pipelines most: so
    the scheme of the longest sequences is also given up to ``MORE`` pipelines beyond that.
    """
    reach = {model.scheme: model.max_sequence for model in models}
    longest_of: dict[Strategy, int] = {}
    for i in _breakpoints(proposal, gpus):
        total = proposal.gpu_ms[i]
        if not np.isfinite(total):
            break
        share = proposal.gpu_ms_by_scheme[i] * gpus / total
        order = sorted(
            (k for k in range(len(share)) if share[k] > 0),
            key=lambda k: -reach[proposal.schemes[k]],
        )
        for more in range(MORE + 1):
            counts = _round_strategy(proposal, share, order, gpus, more)
            strategy = Strategy.from_counts(counts)
            holds = max((reach[s] for s, _ in strategy.counts), default=0)
            if holds >= proposal.lengths[i]:
                longest_of[strategy] = int(proposal.lengths[i])
    return longest_of


def _round_strategy(
    proposal: ContinuousProposal,
    share: npt.NDArray[np.float64],
    order: Sequence[int],
    gpus: int,
    more: int,
) -> dict[Scheme, int]:
    """Choose whole pipelines near the GPUs' ``share``, with ``more`` of the first of ``order``."""
    counts: dict[Scheme, int] = {}
    left = gpus
    for k in order:
        size = proposal.schemes[k].gpus
        nearest = round(share[k] / size)
        if not counts:
            nearest = max(nearest, 1) + more
        counts[proposal.schemes[k]] = min(nearest, left // size)
        left -= counts[proposal.schemes[k]] * size
    while fitting := [k for k in order if proposal.schemes[k].gpus <= left]:
        most = max(fitting, key=lambda k: share[k] / (counts[proposal.schemes[k]] + 1))
        counts[proposal.schemes[most]] += 1
        left -= proposal.schemes[most].gpus
    return counts


def _breakpoints(proposal: ContinuousProposal, gpus: int) -> list[int]:
    """Find the lengths (as indices) where the proportions change by part of a GPU.

    Between them every L rounds the same way but for ties, so every single L adds nothing.
    """
    totals = proposal.gpu_ms[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = proposal.gpu_ms_by_scheme * gpus / totals
    shares[~np.isfinite(shares)] = -1
    rounded = np.rint(shares * 4).astype(np.int64)
    changes = np.nonzero((np.diff(rounded, axis=0) != 0).any(axis=1))[0] + 1
    last = int(np.isfinite(proposal.gpu_ms).sum()) - 1
    return sorted({*(int(i) for i in changes if i <= last), last} - {-1})
