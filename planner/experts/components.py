"""Components of a step: of which size, and which sequences each has.

Components do not wait for each other. Sequences go to them by their GPU-time, and some move from
the slowest to fast ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.experts.component_planner import ComponentPlanner, ComponentSteps
from seqplan.planner.experts.leveling import level_components
from seqplan.planner.placement.fleet import Floats

SIZES = 2
"""Sizes of components that are tried, from the smallest that hold the longest sequence on."""

NEAR = 1.02
"""Time over the bound at which a size is good enough: further ones gain 0.4 % at ten times the CPU
on 64 GPUs with steps of 8M tokens."""

EVEN = 1.1
"""Slowest component over the mean up to which larger components gain nothing: on 32 and 64 GPUs no
plan of 16 was then shorter with them, nor with one component of all ranks."""


def plan_components(
    batch: Batch,
    models: Sequence[SchemeModel],
    gpus: int,
    expert_parallel: int,
    *,
    bound_ms: float = 0.0,
    one: bool = False,
    multiple: int = 1,
) -> list[ComponentSteps] | None:
    """Plan components of the size that is fastest; None if no size holds the longest sequence.

    ``models``: schemes of one layout without stages. ``bound_ms``: a bound, near which no further
    size is tried. ``one``: one component of all ranks, whose number of micro-steps is a multiple of
    ``multiple``. Deterministic.
    """
    sizes = [
        size
        for size in range(expert_parallel, gpus + 1, expert_parallel)
        if gpus % size == 0
        and any(m.scheme.gpus <= size and m.max_sequence >= batch.longest for m in models)
    ]
    tried: list[tuple[float, ComponentPlanner, list[ComponentSteps]]] = []
    even = False
    for size in sizes[-1:] if one else sizes[:SIZES]:
        if even:
            break
        for shared in _list_shared(size, gpus, expert_parallel):
            planner = ComponentPlanner(
                batch,
                models,
                [size] * (gpus // size),
                expert_parallel,
                multiple=multiple,
                shared=shared,
            )
            components = planner.plan_parts(assign_evenly(planner.weights, gpus // size))
            if components is None:
                continue
            slowest_ms = max(component.time_ms for component in components)
            if slowest_ms <= NEAR * bound_ms:
                return components
            tried.append((slowest_ms, planner, components))
            even |= slowest_ms <= EVEN * _mean_ms(planner, components)
    if not tried:
        return None
    _, planner, components = min(tried, key=lambda entry: entry[0])
    return level_components(planner, components)


def replan_components(
    batch: Batch,
    models: Sequence[SchemeModel],
    sizes: Sequence[int],
    parts: Sequence[tuple[int, ...]],
    expert_parallel: int,
    below_ms: float,
) -> list[ComponentSteps] | None:
    """Plan components of ``sizes`` ranks from given parts of the batch, then move sequences.

    ``parts``: positions in the batch. None if one does not fit, or if equally slow components
    would not be faster than ``below_ms``. Deterministic.
    """
    planner = ComponentPlanner(batch, models, sizes, expert_parallel)
    components = planner.plan_parts(parts)
    if components is None or _mean_ms(planner, components) >= below_ms:
        return None
    return level_components(planner, components)


def _mean_ms(planner: ComponentPlanner, components: Sequence[ComponentSteps]) -> float:
    """Return the mean time of a rank (ms), which equally slow components may reach."""
    times = [component.time_ms for component in components]
    return float(planner.sizes[: len(times)] @ times / planner.sizes.sum())


def _list_shared(size: int, gpus: int, expert_parallel: int) -> tuple[float, ...]:
    """List the parts of shared costs that groups are chosen with, one search for each."""
    if size != expert_parallel:
        return (1.0,)
    return (0.0, 1.0) if size == gpus else (0.0,)


def assign_evenly(weights: Floats, count: int) -> list[tuple[int, ...]]:
    """Assign positions to ``count`` parts of about equal weight, the heaviest first.

    At most ``count`` parts, none of them empty.
    """
    parts: list[list[int]] = [[] for _ in range(min(count, len(weights)))]
    least = [(0.0, number) for number in range(len(parts))]
    heapify(least)
    for position in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
        weight, number = least[0]
        parts[number].append(position)
        heapreplace(least, (weight + float(weights[position]), number))
    return [tuple(sorted(part)) for part in parts]
