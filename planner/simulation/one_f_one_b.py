"""Discrete-event 1F1B with real, unequal micro-batches (form X), and their best order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seqplan.plans.one_f_one_b import Pass, stage_order
from seqplan.plans.plan import MicroBatch, PlannedPipeline

FORWARD_FRACTION = 1 / 3
"""Forward's share of a micro-batch's time by default (forward : backward = 1 : 2)."""


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
    return max(end[-1] for _, end in _run(costs_ms, pp, forward_fraction))


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
    events = []
    for stage, (order, ends) in enumerate(_run(costs_ms, pp, forward_fraction) if n else []):
        for (phase, j), end in zip(order, ends, strict=True):
            share = shares[j] if phase == "F" else 1 - shares[j]
            events.append(TimedPass(stage, phase, j, end - costs_ms[j] * share, end))
    return events


def _run(
    costs: Sequence[float], pp: int, forward_fraction: float | Sequence[float]
) -> list[tuple[list[Pass], list[float]]]:
    """Compute each stage's order and the end of each operation, by repeated sweeps."""
    n = len(costs)
    shares = list_shares(forward_fraction, n)
    forward = [cost * share for cost, share in zip(costs, shares, strict=True)]
    backward = [cost - f for cost, f in zip(costs, forward, strict=True)]
    orders = [stage_order(pp, stage, n) for stage in range(pp)]
    done_f = [[-1.0] * n for _ in range(pp)]
    done_b = [[-1.0] * n for _ in range(pp)]
    ends: list[list[float]] = [[] for _ in range(pp)]
    clock = [0.0] * pp
    next_pass = [0] * pp
    left = pp * 2 * n
    while left:
        for stage in range(pp):
            order, i, now = orders[stage], next_pass[stage], clock[stage]
            mine_f, mine_b, mine_ends = done_f[stage], done_b[stage], ends[stage]
            before = done_f[stage - 1] if stage else None
            after = done_b[stage + 1] if stage < pp - 1 else None
            while i < 2 * n:
                phase, j = order[i]
                if phase == "F":
                    ready = 0.0 if before is None else before[j]
                    if ready < 0:
                        break
                    now = (now if now > ready else ready) + forward[j]
                    mine_f[j] = now
                else:
                    ready = mine_f[j] if after is None else after[j]
                    if ready < 0:
                        break
                    now = (now if now > ready else ready) + backward[j]
                    mine_b[j] = now
                mine_ends.append(now)
                i += 1
            left -= i - next_pass[stage]
            next_pass[stage], clock[stage] = i, now
    return list(zip(orders, ends, strict=True))


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
