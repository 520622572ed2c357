"""Discrete-event 1F1B with real, unequal micro-batches (form X), and their best order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from seqplan.plans.one_f_one_b import stage_order
from seqplan.plans.plan import MicroBatch, PlannedPipeline

FORWARD_FRACTION = 1 / 3
"""Forward's share of a micro-batch's time by default (forward : backward = 1 : 2)."""

KNOWN_PASSES = 32
"""Numbers of stages and micro-batches whose order of passes is kept: a step has few of them."""

ForwardFraction = float | Mapping[str, float]
"""Forward's share of a micro-batch's time; by recomputation mode in a profile of several."""


def list_shares(forward_fraction: float | Sequence[float], number: int) -> list[float]:
    """List forward's share of each of a ``number`` of micro-batches."""
    if isinstance(forward_fraction, Sequence):
        return list(forward_fraction)
    return [forward_fraction] * number


def shares_of(
    micro_batches: Sequence[MicroBatch], forward_fraction: ForwardFraction
) -> list[float]:
    """List forward's share of each micro-batch, by its recomputation mode."""
    if isinstance(forward_fraction, Mapping):
        return [forward_fraction[micro.recompute or ""] for micro in micro_batches]
    return [forward_fraction] * len(micro_batches)


@dataclass(frozen=True)
class TimedPass:
    """One forward ("F") or backward ("B") of a micro-batch on a stage; times in ms."""

    stage: int
    phase: str
    micro_batch: int
    start_ms: float
    end_ms: float


def simulate_ms(
    costs_ms: Sequence[float],
    pp: int,
    forward_fraction: float | Sequence[float] = FORWARD_FRACTION,
) -> float:
    """Simulate a pipeline; return the end of its last backward (ms). Order is as given.

    ``costs_ms``: forward + backward of each micro-batch on one stage; ``forward_fraction``: of all
    or each of them. Every stage s runs
    min(pp − 1 − s, V) forwards, then alternates one forward and one backward, then drains; an
    operation starts when its stage is free and its input has arrived. No communication.
    Complexity O(pp · V).
    """
    if not costs_ms:
        return 0.0
    if pp == 1:
        return sum(costs_ms)
    return max(_run(costs_ms, pp, forward_fraction))


def durations_ms(
    pipelines: Sequence[PlannedPipeline], forward_fraction: ForwardFraction = FORWARD_FRACTION
) -> list[float]:
    """Simulate each pipeline by itself (ms)."""
    return [
        simulate_micro_batches_ms(pipeline.micro_batches, pipeline.scheme.pp, forward_fraction)
        for pipeline in pipelines
    ]


def simulate_micro_batches_ms(
    micro_batches: Sequence[MicroBatch], pp: int, forward_fraction: ForwardFraction
) -> float:
    """Simulate a pipeline's micro-batches, each with its mode's share of forward (ms)."""
    costs = [micro.cost_ms for micro in micro_batches]
    return simulate_ms(costs, pp, shares_of(micro_batches, forward_fraction))


def timeline(
    costs_ms: Sequence[float],
    pp: int,
    forward_fraction: float | Sequence[float] = FORWARD_FRACTION,
) -> list[TimedPass]:
    """List every operation of the simulation, by stage and then by start."""
    n = len(costs_ms)
    shares = list_shares(forward_fraction, n)
    ends = _run(costs_ms, pp, forward_fraction)
    events = []
    for stage, places in enumerate(_list_passes(pp, n).of_stages):
        for (phase, j), place in zip(stage_order(pp, stage, n), places, strict=True):
            share = shares[j] if phase == "F" else 1 - shares[j]
            events.append(
                TimedPass(stage, phase, j, ends[place] - costs_ms[j] * share, ends[place])
            )
    return events


@dataclass(frozen=True)
class _Passes:
    """All passes of a pipeline, each behind those that it waits for.

    ``waits``: of each pass, the places of its stage's pass before it and of its input's, from 1,
    0 if there is none, and its micro-batch, + V for a backward. ``of_stages``: places by stage.
    """

    waits: list[tuple[int, int, int]]
    of_stages: list[list[int]]


@lru_cache(maxsize=KNOWN_PASSES)
def _list_passes(pp: int, n: int) -> _Passes:
    """List the passes of ``n`` micro-batches, by repeated sweeps over the stages."""
    orders = [stage_order(pp, stage, n) for stage in range(pp)]
    places: dict[tuple[int, str, int], int] = {}
    waits: list[tuple[int, int, int]] = []
    of_stages: list[list[int]] = [[] for _ in range(pp)]
    while len(waits) < pp * 2 * n:
        for stage, order in enumerate(orders):
            for phase, j in order[len(of_stages[stage]) :]:
                if phase == "F":
                    place = places.get((stage - 1, "F", j)) if stage else 0
                elif stage < pp - 1:
                    place = places.get((stage + 1, "B", j))
                else:
                    place = places.get((stage, "F", j))
                if place is None:
                    break
                before = of_stages[stage][-1] if of_stages[stage] else 0
                waits.append((before, place, j if phase == "F" else n + j))
                places[stage, phase, j] = len(waits)
                of_stages[stage].append(len(waits))
    return _Passes(waits, of_stages)


def _run(costs: Sequence[float], pp: int, forward_fraction: float | Sequence[float]) -> list[float]:
    """Compute the end of each pass by its place in ``_list_passes``; 0 at place 0."""
    n = len(costs)
    shares = list_shares(forward_fraction, n)
    durations = [cost * share for cost, share in zip(costs, shares, strict=True)]
    durations += [cost - forward for cost, forward in zip(costs, durations, strict=True)]
    ends = [0.0]
    for before, needed, duration in _list_passes(pp, n).waits:
        free, ready = ends[before], ends[needed]
        ends.append((free if free > ready else ready) + durations[duration])
    return ends


def order_micro_batches(
    costs_ms: Sequence[float],
    pp: int,
    forward_fraction: float | Sequence[float] = FORWARD_FRACTION,
) -> list[int]:
    """Return indices in the order of least simulated time among three: given, descending, hill.

    The hill has small micro-batches at both ends, where the pipeline fills and drains, and large
    ones in the middle. With one stage the order does not matter and is kept. In an order that rises
    to a peak and falls, as the last two, the simulation is at most form S; in others it may be
    longer ([2, 1, 2] on two stages takes 8, form S is 7), and so where forward's share
    (``forward_fraction``, also of each micro-batch) differs.
    """
    n = len(costs_ms)
    as_numbered = list(range(n))
    if pp == 1 or n < 3:
        return as_numbered
    ascending = sorted(as_numbered, key=lambda j: (costs_ms[j], j))
    hill = ascending[0::2] + ascending[1::2][::-1]
    orders = [as_numbered, ascending[::-1], hill]
    shares = list_shares(forward_fraction, n)
    times = [
        simulate_ms([costs_ms[j] for j in order], pp, [shares[j] for j in order])
        for order in orders
    ]
    return orders[times.index(min(times))]
