"""The published packing (Hydraulis, arXiv 2412.07894, Eq. 1 and appendix C): an ILP for each V.

Minimizes C = (max m_j + c)·(pp − 1 + V), m_j the work of micro-batch j, over the number V of
micro-batches and the assignment, with Σ padded lengths ≤ MaxLen in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import pulp

from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.placement.pack import packing_bound_ms
from seqplan.planner.systems.programs.cbc import minimise


@dataclass(frozen=True)
class IlpPacking:
    """Micro-batches as positions, the closed form C (ms), and a proven bound on it.

    The bound holds for the V tried: from the capacity bound to ``most``, the range of Eq. 1.
    """

    micro_batches: tuple[tuple[int, ...], ...]
    objective_ms: float
    lower_bound_ms: float
    most: int


@dataclass(frozen=True)
class _Packed:
    micro_batches: tuple[tuple[int, ...], ...]
    largest_ms: float
    bound_ms: float


def ilp_packing(
    pipeline_class: PipelineClass,
    lengths: Sequence[int],
    *,
    util_len: int | None = None,
    time_limit_s: float = 0.5,
) -> IlpPacking:
    """Pack one pipeline's sequences, V by V, until no bound leaves a better one.

    V runs from the capacity bound to Σl/``util_len``, at most the number of sequences; if no V in
    that range is found feasible it is raised. ``time_limit_s`` is for each V. ``ValueError`` when
    one sequence alone exceeds MaxLen.
    """
    if not lengths:
        return IlpPacking((), 0.0, 0.0, 0)
    if max(lengths) > pipeline_class.capacity:
        raise ValueError(
            f"a sequence of {max(lengths)} tokens exceeds the micro-batch limit "
            f"{pipeline_class.capacity}"
            ". Raise the limit"
        )
    work = [length * (pipeline_class.a * length + pipeline_class.b) for length in lengths]
    padded = [pipeline_class.pad(length) for length in lengths]
    least, _ = packing_bound_ms(pipeline_class, work, padded)
    top = len(lengths)
    if util_len is not None:
        top = min(top, sum(lengths) // util_len)
    top = max(top, least)
    bounds = {v: _bound_at(pipeline_class, v, work) for v in range(least, top + 1)}
    best, best_ms = _search(pipeline_class, work, padded, bounds, time_limit_s)
    while best is None:
        top += 1
        extra = {top: _bound_at(pipeline_class, top, work)}
        best, best_ms = _search(pipeline_class, work, padded, extra, time_limit_s)
        bounds |= extra
    return IlpPacking(best.micro_batches, best_ms, min(best_ms, *bounds.values()), top)


def _search(
    pipeline_class: PipelineClass,
    work: Sequence[float],
    padded: Sequence[int],
    bounds: dict[int, float],
    time_limit_s: float,
) -> tuple[_Packed | None, float]:
    """Find the best packing over the V in ``bounds``; raises the bounds of the V it solved."""
    best, best_ms = None, inf
    for v in sorted(bounds, key=lambda v: (bounds[v], v)):
        if bounds[v] >= best_ms:
            break
        packed = _pack_at(v, pipeline_class.capacity, work, padded, time_limit_s)
        bounds[v] = max(
            bounds[v], (packed.bound_ms + pipeline_class.c) * (pipeline_class.pp - 1 + v)
        )
        time = (packed.largest_ms + pipeline_class.c) * (
            pipeline_class.pp - 1 + len(packed.micro_batches)
        )
        if packed.micro_batches and time < best_ms:
            best, best_ms = packed, time
    return best, best_ms


def _bound_at(pipeline_class: PipelineClass, v: int, work: Sequence[float]) -> float:
    """Bound C: a micro-batch has at least the mean, the longest, two of V + 1 sequences."""
    ranked = sorted(work, reverse=True)
    pigeonhole = ranked[v - 1] + ranked[v] if len(ranked) > v else 0.0
    return (max(sum(work) / v, ranked[0], pigeonhole) + pipeline_class.c) * (
        pipeline_class.pp - 1 + v
    )


def _pairs(v: int, padded: Sequence[int]) -> list[tuple[int, int]]:
    """List (sequence, micro-batch) pairs that suffice: the k-th longest in one of the first k."""
    rank = sorted(range(len(padded)), key=lambda i: (-padded[i], i))
    return [(i, j) for k, i in enumerate(rank) for j in range(min(v, k + 1))]


def _pack_at(
    v: int, capacity: int, work: Sequence[float], padded: Sequence[int], time_limit_s: float
) -> _Packed:
    """Solve the program of one V; micro-batches that stay empty are left out."""
    problem = pulp.LpProblem("packing", pulp.LpMinimize)
    largest = problem.add_variable("largest", lowBound=max(sum(work) / v, *work))
    problem += largest
    take = {(i, j): problem.add_variable(f"x_{i}_{j}", cat="Binary") for i, j in _pairs(v, padded)}
    for i in range(len(work)):
        problem += pulp.lpSum(take[i, j] for j in range(v) if (i, j) in take) == 1
    for j in range(v):
        in_micro_batch = [i for i in range(len(work)) if (i, j) in take]
        problem += pulp.lpSum(padded[i] * take[i, j] for i in in_micro_batch) <= capacity
        problem += pulp.lpSum(work[i] * take[i, j] for i in in_micro_batch) <= largest
    answer = minimise(problem, time_limit_s)
    if not answer.has_solution:
        return _Packed((), inf, answer.bound)
    packed: list[list[int]] = [[] for _ in range(v)]
    for (i, j), x in take.items():
        if x.value() > 0.5:
            packed[j].append(i)
    largest_ms = max(sum(work[i] for i in micro) for micro in packed)
    return _Packed(tuple(tuple(micro) for micro in packed if micro), largest_ms, answer.bound)
