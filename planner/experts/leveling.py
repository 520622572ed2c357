"""Components of experts made equally slow: sequences move from the slowest to another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product

import numpy as np

from seqplan.planner.experts.component_planner import ComponentPlanner, ComponentSteps
from seqplan.planner.placement.fleet import Floats

LEVEL = 1.003
"""Slowest component over the mean at which sequences stay."""

PAIRS, SHARES, PARTNERS = 48, (1.0, 0.5, 2.0), 7
"""Pairs of components that are planned anew at most; shares of what would make both equal, and
partners, that are tried in this order. On 64 GPUs with E from 8 to 32 (72 steps) steps are 0.5 %
shorter on average (1.7 % at most) than without pairs, for 13 % more CPU; with 24 pairs of 2
partners they are 0.05 % longer (0.8 % at most). Moves between all components at once, before
these, gain nothing."""


def level_components(
    planner: ComponentPlanner, components: Sequence[ComponentSteps]
) -> list[ComponentSteps]:
    """Move sequences from the slowest component to others, a pair at a time.

    A move stays if both components are then faster than the slowest was. Deterministic.
    """
    best, sizes, left = list(components), planner.sizes[: len(components)], PAIRS
    while left:
        times = [component.time_ms for component in best]
        if max(times) <= LEVEL * (sizes @ times / sizes.sum()):
            break
        for pair in islice(_list_moves(planner, best), left):
            left -= 1
            faster = _plan_below(planner, pair, max(times))
            if faster is not None:
                for number, component in faster.items():
                    best[number] = component
                break
        else:
            break
    return best


def _plan_below(
    planner: ComponentPlanner, parts: Mapping[int, tuple[int, ...]], limit_ms: float
) -> dict[int, ComponentSteps] | None:
    """Plan components of some parts; None at the first that is not faster than ``limit_ms``."""
    faster = {}
    for number, part in parts.items():
        component = planner.plan_part(number, part)
        if component is None or component.time_ms >= limit_ms:
            return None
        faster[number] = component
    return faster


def _list_moves(
    planner: ComponentPlanner, components: Sequence[ComponentSteps]
) -> Iterator[dict[int, tuple[int, ...]]]:
    """Yield parts of the slowest component and another after sequences moved.

    To each of the fastest some sequences, or one for a lighter one, that weigh a share of what
    would make both equal.
    """
    weights, times = planner.weights, [component.time_ms for component in components]
    fastest = sorted(range(len(times)), key=times.__getitem__)
    slow = fastest.pop()
    here = components[slow].positions
    for share, fast in product(SHARES, fastest[:PARTNERS]):
        there = components[fast].positions
        gpus = planner.sizes[[slow, fast]]
        room = share * (times[slow] - times[fast]) * float(gpus.prod() / gpus.sum())
        leaving = _select_within(here, weights, room)
        if leaving and len(leaving) < len(here):
            yield {fast: tuple(sorted((*there, *leaving))), slow: _leave_out(here, leaving)}
        heavy, light = select_pair(here, there, weights, room)
        if weights[heavy] > weights[light]:
            yield {
                fast: tuple(sorted((*_leave_out(there, [light]), heavy))),
                slow: tuple(sorted((*_leave_out(here, [heavy]), light))),
            }


def _select_within(part: Sequence[int], weights: Floats, room: float) -> list[int]:
    """Select sequences that weigh ``room`` together at most, the heaviest that fit first."""
    selected = []
    for position in sorted(part, key=lambda i: (-weights[i], i)):
        if weights[position] <= room:
            selected.append(position)
            room -= float(weights[position])
    return selected


def select_pair(
    here: Sequence[int], there: Sequence[int], weights: Floats, room: float
) -> tuple[int, int]:
    """Select one sequence of each part, the first of which is heavier by about ``room``."""
    rising = np.array(sorted(there, key=lambda i: (weights[i], i)))
    of_here = weights[list(here)]
    places = np.searchsorted(weights[rising], of_here - room)
    light = rising[np.stack([places - 1, places]).clip(0, len(there) - 1)]
    errors = np.abs(of_here - weights[light] - room)
    side, heavy = divmod(int(errors.argmin()), len(here))
    return here[heavy], int(light[side, heavy])


def _leave_out(part: Sequence[int], positions: Sequence[int]) -> tuple[int, ...]:
    left_out = set(positions)
    return tuple(position for position in part if position not in left_out)
