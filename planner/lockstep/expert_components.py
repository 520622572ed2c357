"""Steps of experts over several replicas: components of blocks, each in lockstep by itself.

A component is a number of consecutive ranks, whole blocks of expert parallelism. Its ranks run
equally many micro-steps, whose groups are formed anew; components do not wait for each other.
Sequences go to components by their GPU-time, and some move from slow to fast ones.

What the ranks of a block share takes each of them the mean. If a component is one block, all
micro-steps together take the same for it, however sequences are grouped in one recomputation mode,
and groups are chosen by the other costs alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import islice, product
from math import inf

import numpy as np

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.expert_sharing import reduce_equal_sharing
from seqplan.planner.bounds.gpu_time import gpu_ms
from seqplan.planner.lockstep.plan_micro_steps import (
    Choice,
    MicroSteps,
    list_choices,
    plan_best_choice,
)
from seqplan.planner.placement.fleet import Floats, Ints, PipelineClass
from seqplan.plans.experts import time_blocks
from seqplan.plans.recomputation import repeats_exchanges

SIZES = 2
"""Sizes of components that are tried, from the smallest that hold the longest sequence on."""

REBALANCED = 3
"""Times that sequences move from slow to fast components at most."""

NEAR = 1.02
"""Time over the bound at which a size is good enough: further ones gain 0.4 % at ten times the CPU
on 64 GPUs with steps of 8M tokens."""

EVEN = 1.1
"""Slowest component over the mean up to which larger components gain nothing: on 32 and 64 GPUs no
plan of 16 was then shorter with them, nor with one component of all ranks."""

LEVEL = 1.003
"""Slowest component over the mean at which sequences stay."""

PAIRS, SHARES, PARTNERS = 24, (1.0, 0.5, 2.0), 2
"""Pairs of components that are planned anew at most; shares of what would make both equal, and
partners, that are tried in this order. On 64 GPUs with E from 8 to 32 steps were 0.13 % shorter on
average (1.3 % at most), for 7 % more CPU; 12 pairs gain 0.12 %, 48 no more than 24."""


@dataclass(frozen=True)
class ComponentSteps:
    """Micro-steps of the component whose first rank is ``first``.

    ``positions``: those of its sequences in the step's batch; ``batch`` has them in this order.
    """

    first: int
    positions: tuple[int, ...]
    batch: Batch
    micro_steps: MicroSteps


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
    trials: list[_Trial] = []
    for size in sizes[-1:] if one else sizes[:SIZES]:
        if trials and min(trial.best_ms / trial.mean_ms for trial in trials) <= EVEN:
            break
        for part in _list_parts(size, gpus, expert_parallel):
            trial = _Trial(batch, models, [size] * (gpus // size), expert_parallel, multiple, part)
            if trial.fits:
                trials.append(trial)
                if trial.best_ms <= NEAR * bound_ms:
                    return trial.best
    # The mean is what an even assignment may reach.
    for trial in sorted(trials, key=lambda trial: trial.mean_ms):
        trial.rebalance_below(min(other.best_ms for other in trials))
    best = min(trials, key=lambda trial: trial.best_ms, default=None)
    if best is None:
        return None
    best.level_pairs()
    return best.best


def replan_components(
    batch: Batch,
    models: Sequence[SchemeModel],
    sizes: Sequence[int],
    parts: Sequence[tuple[int, ...]],
    expert_parallel: int,
    below_ms: float,
) -> list[ComponentSteps] | None:
    """Plan components of ``sizes`` ranks from given parts of the batch; None if one does not fit.

    ``parts``: positions in the batch. Sequences move from slow to fast components while a time
    below ``below_ms`` seems possible. Deterministic.
    """
    trial = _Trial(batch, models, sizes, expert_parallel, 1, None, parts)
    if not trial.fits:
        return None
    trial.rebalance_below(below_ms)
    if trial.mean_ms < below_ms:
        trial.level_pairs()
    return trial.best


def _list_parts(size: int, gpus: int, expert_parallel: int) -> tuple[float, ...]:
    """List the parts of shared costs that groups are chosen with, one search for each."""
    if size != expert_parallel:
        return (1.0,)
    return (0.0, 1.0) if size == gpus else (0.0,)


class _Trial:
    """Components of one size: the best assignment so far and the last one."""

    def __init__(
        self,
        batch: Batch,
        models: Sequence[SchemeModel],
        sizes: Sequence[int],
        expert_parallel: int,
        multiple: int,
        part: float | None,
        parts: Sequence[tuple[int, ...]] = (),
    ) -> None:
        """Plan the parts, by default even ones; ``part`` of shared costs, by default as usual."""
        self._batch, self._sizes, self._multiple = batch, np.array(sizes), multiple
        self._degree = expert_parallel
        fitting = [model for model in models if model.scheme.gpus <= max(sizes)]
        self._full = {model.scheme: model for model in fitting}
        self._models = {
            size: [
                reduce_equal_sharing(model, (size != self._degree) if part is None else part)
                for model in fitting
                if model.scheme.gpus <= size
            ]
            for size in set(sizes)
        }
        classes = [PipelineClass.from_model(model, 1) for model in fitting]
        self._weights = gpu_ms(classes, np.array(batch.lengths, dtype=np.int64)).min(axis=0)
        self._choices: dict[int, list[Choice]] = {}
        self._known: dict[tuple[int, tuple[int, ...]], MicroSteps | None] = {}
        self._parts = list(parts) or assign_evenly(self._weights, len(sizes))
        self.best: list[ComponentSteps] = []
        self.best_ms, self.mean_ms = inf, inf
        self.fits = self._plan()

    def rebalance_below(self, limit_ms: float) -> None:
        """Move sequences while components of the mean time would take less than a limit (ms)."""
        for _ in range(REBALANCED):
            if self.mean_ms >= min(limit_ms, self.best_ms) or not self.rebalance():
                break

    def rebalance(self) -> bool:
        """Move sequences from slow to fast components; whether that changed something."""
        if max(self._times) <= LEVEL * self.mean_ms:
            return False
        moved = _move_sequences(self._parts, self._weights, self._times, self._sizes)
        if moved == self._parts:
            return False
        self._parts = moved
        return self._plan()

    def level_pairs(self) -> None:
        """Move sequences from the slowest component of the best to others, a pair at a time.

        A move stays if both components are then faster than the slowest was.
        """
        best, times = list(self.best), [self._time_ms(component) for component in self.best]
        sizes, left = self._sizes[: len(times)], PAIRS
        while left and max(times) > LEVEL * (sizes @ times / sizes.sum()):
            limit = max(times)
            for pair in islice(self._list_moves(best, times), left):
                left -= 1
                moved = [self._plan_part(number, part) for number, part in pair.items()]
                components = [component for component in moved if component is not None]
                new_ms = [self._time_ms(component) for component in components]
                if len(components) == len(pair) and max(new_ms) < limit:
                    for number, component, ms in zip(pair, components, new_ms, strict=True):
                        best[number], times[number] = component, ms
                    break
            else:
                break
        self.best, self.best_ms = best, max(times)

    def _list_moves(
        self, components: Sequence[ComponentSteps], times: Sequence[float]
    ) -> Iterator[dict[int, tuple[int, ...]]]:
        """Yield parts of the slowest component and another after sequences moved.

        To each of the fastest some sequences, or one for a lighter one, that weigh a share of what
        would make both equal.
        """
        fastest = sorted(range(len(times)), key=times.__getitem__)
        slow = fastest.pop()
        here = components[slow].positions
        for share, fast in product(SHARES, fastest[:PARTNERS]):
            there = components[fast].positions
            gpus = self._sizes[[slow, fast]]
            room = share * (times[slow] - times[fast]) * float(gpus.prod() / gpus.sum())
            leaving = _select_within(here, self._weights, room)
            if leaving and len(leaving) < len(here):
                yield {slow: _leave_out(here, leaving), fast: tuple(sorted((*there, *leaving)))}
            heavy, light = select_pair(here, there, self._weights, room)
            if self._weights[heavy] > self._weights[light]:
                yield {
                    slow: tuple(sorted((*_leave_out(here, [heavy]), light))),
                    fast: tuple(sorted((*_leave_out(there, [light]), heavy))),
                }

    def _plan_part(self, number: int, part: tuple[int, ...]) -> ComponentSteps | None:
        """Plan a component of a part of the batch; None if it does not fit."""
        held = Batch(
            self._batch.step,
            tuple(self._batch.ids[i] for i in part),
            tuple(self._batch.lengths[i] for i in part),
        )
        key = int(self._sizes[number]), part
        if key not in self._known:
            self._known[key] = self._plan_component(number, held)
        micro_steps = self._known[key]
        if micro_steps is None:
            return None
        return ComponentSteps(int(self._sizes[:number].sum()), part, held, micro_steps)

    def _plan(self) -> bool:
        """Plan the parts; whether all fit."""
        components = []
        for number, part in enumerate(self._parts):
            component = self._plan_part(number, part)
            if component is None:
                return False
            components.append(component)
        self._times = [self._time_ms(component) for component in components]
        self.mean_ms = float(self._sizes[: len(self._times)] @ self._times / self._sizes.sum())
        if max(self._times) < self.best_ms:
            self.best, self.best_ms = components, max(self._times)
        return True

    def _plan_component(self, number: int, held: Batch) -> MicroSteps | None:
        """Plan the micro-steps of one component; its first assignment shows what to search for."""
        size = int(self._sizes[number])
        models = self._models[size]
        choices = self._choices.get(number) or list_choices(models)
        best = plan_best_choice(held, models, choices, size, self._multiple)
        if best is None:
            return None
        self._choices[number] = [best[0]]
        return best[1]

    def _time_ms(self, component: ComponentSteps) -> float:
        """Time a component: Σ over micro-steps of the slowest block (ms)."""
        total = 0.0
        for micro_step in component.micro_steps.micro_steps:
            running, first = [], 0
            held = [
                (
                    self._full[component.micro_steps.schemes[k]],
                    [component.batch.lengths[i] for i in positions],
                )
                for k, positions in micro_step.groups
            ]
            for (model_of_all, lengths), mode in zip(held, choose_modes(held), strict=True):
                scheme = model_of_all.scheme
                model = model_of_all.find_mode(mode) or model_of_all
                shared = model.b_shared * sum(lengths)
                cost = model.latency.micro_batch_ms(lengths)
                ranks = tuple(range(first, first + scheme.gpus))
                running.append((ranks, cost - shared, shared))
                first += scheme.gpus
            total += max(time_blocks(running, self._degree))
        return total


def choose_modes(held: Sequence[tuple[SchemeModel, Sequence[int]]]) -> list[str | None]:
    """Choose the recomputation mode of each group of a micro-step: the cheapest that holds it.

    ``held``: schemes and lengths. If one repeats the exchanges of experts' tokens, all do, as the
    ranks of a component take part in every exchange.
    """
    classes = [PipelineClass.from_model(model, 1) for model, _ in held]
    chosen = [k.choose_mode(lengths).name for k, (_, lengths) in zip(classes, held, strict=True)]
    if not any(map(repeats_exchanges, chosen)):
        return chosen
    modes: list[str | None] = []
    for k, (_, lengths), name in zip(classes, held, chosen, strict=True):
        repeating = [mode for mode in k.all_modes if repeats_exchanges(mode.name)]
        padded = sum(k.pad(length) for length in lengths)
        holding = [mode for mode in repeating if padded <= mode.capacity]
        best = min(holding, key=lambda mode: mode.micro_batch_ms(lengths), default=None)
        modes.append(name if repeats_exchanges(name) or best is None else best.name)
    return modes


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


def _move_sequences(
    parts: Sequence[tuple[int, ...]], weights: Floats, times: Sequence[float], sizes: Ints
) -> list[tuple[int, ...]]:
    """Move sequences from parts above the mean time (ms) to those below it.

    The heaviest that fit into the excess leave; each goes to the part that lacks most.
    """
    sizes = sizes[: len(times)]
    excess = sizes * (np.array(times) - sizes @ times / sizes.sum())
    remaining = [list(part) for part in parts]
    leaving: list[int] = []
    for number, part in enumerate(parts):
        moved = _select_within(part, weights, float(excess[number]))[: len(part) - 1]
        remaining[number] = list(_leave_out(part, moved))
        leaving += moved
    lacking = {number: float(-excess[number]) for number in range(len(parts)) if excess[number] < 0}
    for position in sorted(leaving, key=lambda i: (-weights[i], i)):
        number = max(lacking, key=lambda k: (lacking[k], -k))
        remaining[number].append(position)
        lacking[number] -= float(weights[position])
    return [tuple(sorted(part)) for part in remaining]


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
