"""The published packing (Hydraulis, arXiv 2412.07894, Eq. 1 and appendix C): an ILP for each V.

Minimizes C = (max m_j + c)·(pp − 1 + V), m_j the work of micro-batch j, over the number V of
micro-batches and the assignment, with Σ padded lengths ≤ MaxLen in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np
import pulp
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.placement.pack import packing_bound_ms
from seqplan.planner.systems.programs.cbc import minimise

Solver = Literal["cbc", "highs"]


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
    most: int | None = None,
    solver: Solver = "cbc",
    time_limit_s: float = 0.5,
) -> IlpPacking:
    """Pack one pipeline's sequences, V by V, until no bound leaves a better one.

    V runs from the capacity bound to min(Σl/``util_len``, ``most``), by default to the number of
    sequences; if no V in that range is found feasible it is raised. ``time_limit_s`` is for each
    V. ``ValueError`` when one sequence alone exceeds MaxLen.
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
    top = len(lengths) if most is None else min(most, len(lengths))
    if util_len is not None:
        top = min(top, sum(lengths) // util_len)
    top = max(top, least)
    bounds = {v: _bound_at(pipeline_class, v, work) for v in range(least, top + 1)}
    best, best_ms = _search(
        pipeline_class, work, padded, bounds, solver=solver, time_limit_s=time_limit_s
    )
    while best is None:
        top += 1
        extra = {top: _bound_at(pipeline_class, top, work)}
        best, best_ms = _search(
            pipeline_class, work, padded, extra, solver=solver, time_limit_s=time_limit_s
        )
        bounds |= extra
    return IlpPacking(best.micro_batches, best_ms, min(best_ms, *bounds.values()), top)


def compute_closed_form_ms(pipeline_class: PipelineClass, works_ms: Sequence[float]) -> float:
    """Compute the closed form of micro-batches: C = (max m_j + c)·(pp − 1 + V).

    ``works_ms``: the m_j.
    """
    return (
        (max(works_ms) + pipeline_class.c) * (pipeline_class.pp - 1 + len(works_ms))
        if works_ms
        else 0.0
    )


def _search(
    pipeline_class: PipelineClass,
    work: Sequence[float],
    padded: Sequence[int],
    bounds: dict[int, float],
    solver: Solver,
    time_limit_s: float,
) -> tuple[_Packed | None, float]:
    """Find the best packing over the V in ``bounds``; raises the bounds of the V it solved."""
    solve = _with_cbc if solver == "cbc" else _with_highs
    best, best_ms = None, inf
    for v in sorted(bounds, key=lambda v: (bounds[v], v)):
        if bounds[v] >= best_ms:
            break
        packed = solve(v, pipeline_class.capacity, work, padded, time_limit_s)
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


def _read(
    v: int, chosen: Sequence[tuple[int, int]], work: Sequence[float], bound: float
) -> _Packed:
    """Read the packing of the chosen pairs, without micro-batches that stay empty."""
    packed: list[list[int]] = [[] for _ in range(v)]
    for i, j in chosen:
        packed[j].append(i)
    largest = max(sum(work[i] for i in micro) for micro in packed)
    return _Packed(tuple(tuple(micro) for micro in packed if micro), largest, bound)


def _with_cbc(
    v: int, capacity: int, work: Sequence[float], padded: Sequence[int], time_limit_s: float
) -> _Packed:
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
    return _read(v, [pair for pair, x in take.items() if x.value() > 0.5], work, answer.bound)


def _with_highs(
    v: int, capacity: int, work: Sequence[float], padded: Sequence[int], time_limit_s: float
) -> _Packed:
    pairs = _pairs(v, padded)
    n, columns = len(work), len(pairs) + 1
    i, j = np.array(pairs).T
    all_pairs = np.arange(len(pairs))
    # Rows: each sequence once; tokens of each micro-batch; its work less the largest.
    rows = np.concatenate([i, n + j, n + v + j, n + v + np.arange(v)])
    of_column = np.concatenate([all_pairs, all_pairs, all_pairs, np.full(v, columns - 1)])
    values = np.concatenate(
        [np.ones(len(pairs)), np.array(padded)[i], np.array(work)[i], -np.ones(v)]
    )
    matrix = coo_array((values, (rows, of_column)), shape=(n + 2 * v, columns)).tocsr()
    low = np.concatenate([np.ones(n), np.full(2 * v, -np.inf)])
    high = np.concatenate([np.ones(n), np.full(v, capacity), np.zeros(v)])
    objective = np.zeros(columns)
    objective[-1] = 1.0
    least, most = np.zeros(columns), np.ones(columns)
    least[-1], most[-1] = max(sum(work) / v, *work), np.inf
    whole = np.ones(columns)
    whole[-1] = 0
    result = milp(
        objective,
        constraints=LinearConstraint(matrix, low, high),
        bounds=Bounds(least, most),
        integrality=whole,
        options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
    )
    bound = inf if result.status == 2 else result.mip_dual_bound
    if result.x is None:
        return _Packed((), inf, -inf if bound is None else bound)
    chosen = [pair for pair, x in zip(pairs, result.x, strict=False) if x > 0.5]
    return _read(v, chosen, work, bound)
