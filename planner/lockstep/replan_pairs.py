"""Two micro-steps of a plan planned anew together, as long as that shortens the step.

The search for all micro-steps fills one after another, and later ones take the rest. Two of them
are few enough that both are filled at once (``two_micro_steps``). Pairs that waste the most
GPU-time are first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.micro_steps import MicroStep, MicroSteps
from seqplan.planner.lockstep.plan_micro_steps import plan_micro_steps
from seqplan.planner.placement.fleet import Floats

NEAR, ENOUGH = 0.02, 0.015
"""The gap from which on pairs are planned anew, and at which that ends."""

MOST_PAIRS = 24
"""Pairs that are planned anew at most. On steps of code with 800,000 tokens on 64 GPUs 10 shorten
a step by 0 to 2.3 %, 20 by 0 to 2.6 %, and all there are, up to 127, by 0.2 to 2.6 %; a pair takes
25 ms of CPU."""

LEAST_GAIN = 1e-5
"""The share of their time by which two micro-steps have to be shorter."""


def replan_pairs(
    micro_steps: MicroSteps, batch: Batch, models: Sequence[SchemeModel], gpus: int
) -> MicroSteps:
    """Plan pairs of micro-steps anew while the plan is far from its bound.

    ``models``: those of the plan's layout. Plans with stages, in which the longest micro-step
    counts more than others, and of less than three micro-steps stay. The number of micro-steps may
    change. Equal arguments give equal results.
    """
    if micro_steps.stages > 1:
        return micro_steps
    areas = _list_least_areas(micro_steps, batch)
    tried: set[tuple[int, ...]] = set()
    while len(micro_steps.micro_steps) > 2 and len(tried) < MOST_PAIRS:
        gap = ENOUGH if tried else NEAR
        if micro_steps.objective_ms <= micro_steps.lower_bound_ms * (1 + gap):
            break
        for pair in _list_pairs(micro_steps, areas):
            positions = pair.list_positions(micro_steps)
            if positions in tried:
                continue
            tried.add(positions)
            changed = _replan(micro_steps, pair, positions, batch, models, gpus)
            if changed is not None:
                micro_steps = changed
                break
            if len(tried) == MOST_PAIRS:
                break
        else:
            break
    return micro_steps


@dataclass(frozen=True)
class _Pair:
    """Places of two micro-steps."""

    first: int
    second: int

    def list_positions(self, micro_steps: MicroSteps) -> tuple[int, ...]:
        """List the positions of all sequences of both, ascending."""
        both = (micro_steps.micro_steps[place] for place in (self.first, self.second))
        return tuple(sorted(i for step in both for _, of in step.groups for i in of))


def _list_least_areas(micro_steps: MicroSteps, batch: Batch) -> Floats:
    """List the least GPU-time of each sequence in any group that holds it (GPU-ms)."""
    lengths = np.array(batch.lengths, dtype=np.int64)
    areas = [
        np.where(k.padded(lengths) <= k.capacity, k.gpus * k.work_ms(lengths), np.inf)
        for k in micro_steps.bounded
    ]
    least: Floats = np.min(areas, axis=0)
    return least


def _list_pairs(micro_steps: MicroSteps, areas: Floats) -> Iterator[_Pair]:
    """List all pairs, the most waste of GPU-time first."""
    wastes = [
        step.time_ms * micro_steps.ranks
        - sum(float(areas[list(of)].sum()) for _, of in step.groups)
        for step in micro_steps.micro_steps
    ]
    pairs = combinations(range(len(wastes)), 2)
    for first, second in sorted(pairs, key=lambda pair: -wastes[pair[0]] - wastes[pair[1]]):
        yield _Pair(first, second)


def _replan(
    micro_steps: MicroSteps,
    pair: _Pair,
    positions: Sequence[int],
    batch: Batch,
    models: Sequence[SchemeModel],
    gpus: int,
) -> MicroSteps | None:
    """Plan the sequences of a pair anew; None if that is no shorter, or leaves more ranks idle."""
    lengths = [batch.lengths[i] for i in positions]
    planned = plan_micro_steps(Batch.from_lengths(lengths), models, gpus)
    if planned is None:
        return None
    old = [micro_steps.micro_steps[place] for place in (pair.first, pair.second)]
    old_ms = sum(step.time_ms for step in old)
    if planned.objective_ms >= old_ms * (1 - LEAST_GAIN):
        return None
    if _count_idle(planned, planned.micro_steps) > _count_idle(micro_steps, old):
        return None
    schemes, classes = list(micro_steps.schemes), list(micro_steps.classes)
    for scheme, of_scheme in zip(planned.schemes, planned.classes, strict=True):
        if scheme not in schemes:
            schemes.append(scheme)
            classes.append(of_scheme)
    new = [
        MicroStep(
            tuple(
                (schemes.index(planned.schemes[k]), tuple(positions[i] for i in of))
                for k, of in step.groups
            ),
            step.time_ms,
        )
        for step in planned.micro_steps
    ]
    others = [
        step
        for place, step in enumerate(micro_steps.micro_steps)
        if place not in (pair.first, pair.second)
    ]
    changed = replace(
        micro_steps,
        classes=tuple(classes),
        schemes=tuple(schemes),
        micro_steps=(*others, *new),
    )
    return changed.with_bound(micro_steps.lower_bound_ms)


def _count_idle(micro_steps: MicroSteps, some: Sequence[MicroStep]) -> int:
    """Count the ranks without a sequence in some micro-steps."""
    return sum(
        micro_steps.ranks - sum(micro_steps.classes[k].gpus for k, _ in step.groups)
        for step in some
    )
