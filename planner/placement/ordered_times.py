"""Times of pipelines, with stages of their micro-batches in order, as simulated."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from seqplan.planner.placement.fill import Filling
from seqplan.planner.placement.fill_tables import ClassCosts
from seqplan.planner.placement.fleet import ClassPlacement
from seqplan.planner.placement.greedy import estimate_ms
from seqplan.planner.placement.ramps import Ramps
from seqplan.planner.simulation.one_f_one_b import simulate_ms


def put_in_order(costs: Sequence[ClassCosts], filling: Filling) -> Filling:
    """Put micro-batches in the order of ramps, if they end before.

    Of pipelines with stages, whose times are then those of the simulation.
    """
    if all(of_class.pp == 1 for of_class in costs):
        return filling
    placements, times = [], list(filling.pipeline_ms)
    for k, (of_class, pipelines) in enumerate(zip(costs, filling.bins, strict=True)):
        if of_class.pp > 1:
            ramps = Ramps.from_forward(of_class.pp, of_class.forward_fraction)
            ordered, of_pipelines = [], []
            for bins, (costs_ms, shares) in zip(
                pipelines, _weigh(of_class, pipelines), strict=True
            ):
                time_ms = simulate_ms(costs_ms, of_class.pp, shares)
                order = ramps.order(costs_ms) if bins else []
                ramped_ms = simulate_ms(
                    [costs_ms[j] for j in order], of_class.pp, [shares[j] for j in order]
                )
                ordered.append(tuple(bins[j] for j in order) if ramped_ms < time_ms else bins)
                of_pipelines.append(min(ramped_ms, time_ms))
            pipelines, times[k] = tuple(ordered), tuple(of_pipelines)
        placements.append(pipelines)
    return Filling(tuple(placements), tuple(times))


def time_filling(costs: Sequence[ClassCosts], placements: tuple[ClassPlacement, ...]) -> Filling:
    """Time pipelines; with stages by the simulation of the micro-batches in order."""
    times = []
    for of_class, pipelines in zip(costs, placements, strict=True):
        if of_class.pp == 1:
            times.append(tuple(estimate_ms(of_class, bins) for bins in pipelines))
        else:
            weighed = _weigh(of_class, pipelines)
            times.append(tuple(simulate_ms(each, of_class.pp, shares) for each, shares in weighed))
    return Filling(placements, tuple(times))


def _weigh(costs: ClassCosts, placement: ClassPlacement) -> list[tuple[list[float], list[float]]]:
    """Compute the costs (ms) of each pipeline's micro-batches, and forward's shares of them."""
    micro_batches = [micro for bins in placement for micro in bins]
    entries = np.array([entry for micro in micro_batches for entry in micro], dtype=np.int64)
    entries = entries.reshape(-1, 2)
    lengths = np.repeat(entries[:, 0], entries[:, 1])
    sizes = [sum(number for _, number in micro) for micro in micro_batches]
    places = np.repeat(np.arange(len(sizes)), sizes)
    tokens = np.bincount(places, costs.padded_lengths[lengths], len(sizes))
    of_modes = np.array(
        [
            np.where(
                tokens <= mode.capacity,
                np.bincount(places, work_ms[lengths], len(sizes)) + mode.c,
                np.inf,
            )
            for mode, work_ms in zip(costs.modes, costs.work_ms, strict=True)
        ]
    )
    forward = np.array([mode.forward_fraction for mode in costs.modes])
    costs_ms, shares = of_modes.min(axis=0).tolist(), forward[of_modes.argmin(axis=0)].tolist()
    ends = accumulate((len(bins) for bins in placement), initial=0)
    return [(costs_ms[first:last], shares[first:last]) for first, last in pairwise(ends)]
