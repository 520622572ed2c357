"""Our packing: the micro-batches of one pipeline whose sequences are given.

Minimizes form S, Σ(m_j + c) + (pp − 1)·(max m_j + c), over the number V of micro-batches and the
assignment, with Σ padded lengths ≤ MaxLen in each. (Eq. 1 of Hydraulis minimizes the closed form
max·(pp − 1 + V), which is never below S.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from seqplan.planner.placement.fleet import PipelineClass

MOST_IMPROVED = 150
"""Sequences of a pipeline beyond which the first packing is not improved."""


@dataclass(frozen=True)
class Packing:
    """Micro-batches as positions in the given lengths, form S (ms) and a proven lower bound."""

    micro_batches: tuple[tuple[int, ...], ...]
    objective_ms: float
    lower_bound_ms: float


def packing_bound_ms(
    pipeline_class: PipelineClass, work: Sequence[float], padded: Sequence[int]
) -> tuple[int, float]:
    """Return (least V, lower bound on form S) for sequences of these works.

    Works in ms, lengths padded. For a fixed V,
    S ≥ Σm + V·c + (pp − 1)·(max(longest, mean, pigeonhole) + c). The mean falls and
    V·c rises with V, so the least over V is found by walking up from the capacity bound.
    """
    least = _least_micro_batches(pipeline_class, padded)
    best = float("inf")
    for v in range(least, len(work) + 1):
        best = min(best, _bound_at(pipeline_class, v, work))
        if pipeline_class.pp == 1 or _floor_beyond(pipeline_class, v, work) >= best:
            break
    return least, best


def pack(pipeline_class: PipelineClass, lengths: Sequence[int]) -> Packing:
    """Pack one pipeline's sequences; ``ValueError`` when one alone exceeds MaxLen.

    Visits V in the order of its bound, builds each V by longest-processing-time with capacity and
    improves it by moves and swaps off the largest micro-batch; stops when no V can be better.
    """
    if not lengths:
        return Packing((), 0.0, 0.0)
    if max(lengths) > pipeline_class.capacity:
        raise ValueError(
            f"a sequence of {max(lengths)} tokens exceeds the micro-batch limit "
            f"{pipeline_class.capacity}"
            ". Raise the limit"
        )
    work = [length * (pipeline_class.a * length + pipeline_class.b) for length in lengths]
    padded = [pipeline_class.pad(length) for length in lengths]
    least, bound = packing_bound_ms(pipeline_class, work, padded)
    best: list[list[int]] | None = None
    best_ms = float("inf")
    for v in range(least, len(lengths) + 1):
        if best is not None and _floor_beyond(pipeline_class, v - 1, work) >= best_ms:
            break
        if _bound_at(pipeline_class, v, work) >= best_ms:
            continue
        packed = _largest_first(pipeline_class, v, work, padded)
        if packed is None:
            continue
        _improve(pipeline_class, packed, work, padded)
        time = _form_s(pipeline_class, packed, work)
        if time < best_ms:
            best, best_ms = packed, time
    if best is None:
        raise AssertionError("one sequence per micro-batch always fits")
    micro_batches = tuple(tuple(micro) for micro in best if micro)
    return Packing(micro_batches, best_ms, min(bound, best_ms))


def list_packings(
    pipeline_class: PipelineClass, lengths: Sequence[int]
) -> Iterator[list[list[int]]]:
    """List a packing of each number of micro-batches; none is longer than MaxLen."""
    work = [length * (pipeline_class.a * length + pipeline_class.b) for length in lengths]
    padded = [pipeline_class.pad(length) for length in lengths]
    for v in range(_least_micro_batches(pipeline_class, padded), len(lengths) + 1):
        packed = _largest_first(pipeline_class, v, work, padded)
        if packed is not None:
            _improve(pipeline_class, packed, work, padded)
            yield [micro for micro in packed if micro]


def _bound_at(pipeline_class: PipelineClass, v: int, work: Sequence[float]) -> float:
    total, longest = sum(work), max(work)
    ranked = sorted(work, reverse=True)
    pigeonhole = ranked[v - 1] + ranked[v] if len(ranked) > v else 0.0
    largest = max(total / v, longest, pigeonhole)
    return total + v * pipeline_class.c + (pipeline_class.pp - 1) * (largest + pipeline_class.c)


def _floor_beyond(pipeline_class: PipelineClass, v: int, work: Sequence[float]) -> float:
    """Compute a bound for every number of micro-batches above ``v``."""
    return (
        sum(work)
        + (v + 1) * pipeline_class.c
        + (pipeline_class.pp - 1) * (max(work) + pipeline_class.c)
    )


def _least_micro_batches(pipeline_class: PipelineClass, padded: Sequence[int]) -> int:
    """Bound V by capacity: tokens over MaxLen, and Martello and Toth's L2 on lengths."""
    capacity = pipeline_class.capacity
    ranked = sorted(padded, reverse=True)
    best = -(-sum(ranked) // capacity)
    for threshold in {length for length in ranked if 2 * length <= capacity} | {0}:
        over = sum(length > capacity - threshold for length in ranked)
        large = [length for length in ranked if capacity / 2 < length <= capacity - threshold]
        small = sum(length for length in ranked if threshold <= length <= capacity / 2)
        rest = small - (len(large) * capacity - sum(large))
        best = max(best, over + len(large) + max(0, -(-rest // capacity)))
    return max(1, best)


def _form_s(pipeline_class: PipelineClass, packed: list[list[int]], work: Sequence[float]) -> float:
    costs = [sum(work[j] for j in micro) + pipeline_class.c for micro in packed if micro]
    return sum(costs) + (pipeline_class.pp - 1) * max(costs)


def _largest_first(
    pipeline_class: PipelineClass, v: int, work: Sequence[float], padded: Sequence[int]
) -> list[list[int]] | None:
    """Give each sequence, longest first, to the least loaded micro-batch with room.

    If capacity is tight that can fail, and the fullest micro-batch with room is tried
    (best-fit decreasing on lengths); None if that fails too.
    """
    order = sorted(range(len(work)), key=lambda j: (-padded[j], j))
    packed: list[list[int]] = [[] for _ in range(v)]
    room = [pipeline_class.capacity] * v
    heap = [(0.0, i) for i in range(v)]
    heapify(heap)
    for j in order:
        load, i = heap[0]
        if padded[j] > room[i]:
            fitting = [(load, i) for load, i in heap if padded[j] <= room[i]]
            if not fitting:
                return _best_fit(pipeline_class, v, order, padded)
            load, i = min(fitting)
            heap[heap.index((load, i))] = (load + work[j], i)
            heapify(heap)
        else:
            heapreplace(heap, (load + work[j], i))
        packed[i].append(j)
        room[i] -= padded[j]
    return packed


def _best_fit(
    pipeline_class: PipelineClass, v: int, order: Sequence[int], padded: Sequence[int]
) -> list[list[int]] | None:
    packed: list[list[int]] = [[] for _ in range(v)]
    room = [pipeline_class.capacity] * v
    for j in order:
        fitting = [(room[i], i) for i in range(v) if padded[j] <= room[i]]
        if not fitting:
            return None
        _, i = min(fitting)
        packed[i].append(j)
        room[i] -= padded[j]
    return packed


def _improve(
    pipeline_class: PipelineClass,
    packed: list[list[int]],
    work: Sequence[float],
    padded: Sequence[int],
) -> None:
    """Move or swap sequences off the largest micro-batch while its work falls. In place."""
    if pipeline_class.pp == 1 or len(work) > MOST_IMPROVED:
        return  # the sum is fixed; many sequences leave little to gain
    load = [sum(work[j] for j in micro) for micro in packed]
    used = [sum(padded[j] for j in micro) for micro in packed]
    for _ in range(4 * len(work)):
        top = max(range(len(packed)), key=lambda i: (load[i], -i))
        best: tuple[float, int, int, int | None] | None = None
        for j in packed[top]:
            for i, micro in enumerate(packed):
                if i == top:
                    continue
                exchanges: list[int | None] = [None, *micro]
                for k in exchanges:
                    gain = work[j] - (work[k] if k is not None else 0.0)
                    if gain <= 1e-9:
                        continue
                    tokens = padded[j] - (padded[k] if k is not None else 0)
                    if used[i] + tokens > pipeline_class.capacity:
                        continue
                    after = max(load[top] - gain, load[i] + gain)
                    if after < load[top] - 1e-9 and (best is None or after < best[0]):
                        best = (after, j, i, k)
        if best is None:
            return
        _, j, i, k = best
        packed[top].remove(j)
        packed[i].append(j)
        load[top] -= work[j]
        load[i] += work[j]
        used[top] -= padded[j]
        used[i] += padded[j]
        if k is not None:
            packed[i].remove(k)
            packed[top].append(k)
            load[top] += work[k]
            load[i] -= work[k]
            used[top] += padded[k]
            used[i] -= padded[k]
