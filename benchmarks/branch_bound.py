"""A lower bound on the step of one strategy that branches over long sequences in stages.

The relaxation lets a part of a pipeline pay for the bubbles of a sequence in it. Here either no
pipeline with stages runs a sequence of some length or more, or one of a class does, as a whole:
the least bound of these cases holds for the strategy. The case of the least bound is branched next.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from seqplan import Batch
from seqplan.planner.bounds.certificate import certify_relaxed
from seqplan.planner.bounds.relaxation import FINE
from seqplan.planner.placement.fleet import Fleet, PipelineClass

MOST_BOUNDS = 48
"""Cases that are bounded at most for one strategy."""

MOST_LENGTHS = 64
"""Longest distinct lengths that may divide cases."""

LEAST_GAIN = 1e-6
"""Relative gain below which a branch is the last."""


@dataclass(frozen=True)
class _Branch:
    """Cases of which one holds, each with its bound (ms)."""

    cases: Sequence[tuple[float, Fleet]]

    @property
    def bound_ms(self) -> float:
        """Return the least bound, which holds for all (ms)."""
        return min(bound_ms for bound_ms, _ in self.cases)

    @property
    def without_ms(self) -> float:
        """Return the bound of the case without long sequences in stages (ms)."""
        return self.cases[0][0]


def branch_bound_ms(fleet: Fleet, batch: Batch, reached_ms: float) -> float:
    """Prove a lower bound on the step of a strategy, no further than ``reached_ms`` (ms)."""
    number = count()
    open_cases = [(_bound_case(fleet, batch, reached_ms), next(number), fleet)]
    bounded = 1
    while bounded < MOST_BOUNDS and open_cases[0][0] < reached_ms:
        bound_ms, _, case = open_cases[0]
        branch, more = _find_branch(case, batch, bound_ms, reached_ms)
        bounded += more
        if branch is None or branch.bound_ms <= bound_ms * (1 + LEAST_GAIN):
            break
        heapq.heappop(open_cases)
        for case_ms, divided in branch.cases:
            heapq.heappush(open_cases, (case_ms, next(number), divided))
    return min(open_cases[0][0], reached_ms)


def _find_branch(
    fleet: Fleet, batch: Batch, bound_ms: float, reached_ms: float
) -> tuple[_Branch | None, int]:
    """Find the length whose cases have the largest least bound; also count bounds.

    The case without long sequences in stages is the easier the longer they are, the others are the
    harder: so the length is bisected.
    """
    lengths = [
        int(length)
        for length in batch.distinct[:MOST_LENGTHS]
        if any(_can_divide(k, int(length)) for k in fleet.classes)
    ]
    best, bounded = None, 0
    low, high = 0, len(lengths) - 1
    while low <= high:
        middle = (low + high) // 2
        cases = _divide(fleet, lengths[middle])
        bounds = [max(_bound_case(case, batch, reached_ms), bound_ms) for case in cases]
        bounded += len(cases)
        branch = _Branch(list(zip(bounds, cases, strict=True)))
        if best is None or branch.bound_ms > best.bound_ms:
            best = branch
        if branch.without_ms <= min(bounds[1:]):
            low = middle + 1
        else:
            high = middle - 1
    return best, bounded


def _can_divide(pipeline_class: PipelineClass, length: int) -> bool:
    """Return whether nothing is assumed yet of such a length in the class's pipelines."""
    unknown = pipeline_class.pp > 1 and not pipeline_class.runs_from
    return unknown and not 0 < pipeline_class.shorter_than <= length


def _divide(fleet: Fleet, length: int) -> list[Fleet]:
    """List cases: no further pipeline with stages runs ``length`` or more, or one of a class."""
    without = tuple(
        replace(k, shorter_than=length) if _can_divide(k, length) else k for k in fleet.classes
    )
    return [
        replace(fleet, classes=without),
        *(
            fleet.assume_from(length, place)
            for place, k in enumerate(fleet.classes)
            if _can_divide(k, length)
        ),
    ]


def _bound_case(fleet: Fleet, batch: Batch, reached_ms: float) -> float:
    """Bound a case; ``reached_ms`` if its pipelines hold the longest sequence nowhere (ms)."""
    if not any(
        k.capacity >= batch.longest and not 0 < k.shorter_than <= batch.longest
        for k in fleet.classes
    ):
        return reached_ms
    return certify_relaxed(fleet, batch, reached_ms, detail=FINE)
