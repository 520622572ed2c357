"""Pipelines with stages, repacked: the named steps, and all packings of few sequences."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from instances import add_modes, assert_sound, fleet, random_class

from seqplan import Batch, Planner, Workload, find_profile
from seqplan.planner.exact.close_gap import close_gap
from seqplan.planner.exact.model import LEAST_GAIN
from seqplan.planner.exact.repack import repack_stages
from seqplan.planner.placement.fill import Filling, Placement
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.simulation.one_f_one_b import simulate_ms
from seqplan.plans.lint import lint


@pytest.mark.parametrize(
    ("profile", "gpus", "layout", "lengths", "reached_ms"),
    [
        ("llama-7b-a800-80gb", 8, "pp2", [1378] * 5, 320.3),
        ("llama-13b-a800-80gb", 16, "tp2.pp2", [4903] * 9, 1632.22 / 1.0252),
        ("llama-13b-a800-80gb", 16, "tp2.pp2", [4000, 2000, 4000, 4000, 1463, 4000], 776.9),
        ("llama3-70b-h100-80gb", 32, "tp8.pp2", [4000, 4000, 2000, 5213, 500], 842.2),
    ],
)
def test_steps_of_one_pipeline_are_packed_as_simulated(
    profile: str, gpus: int, layout: str, lengths: list[int], reached_ms: float
) -> None:
    """By the least bubbles these packings are equal: each sequence alone was kept."""
    planner = Planner.from_profile(
        profile, gpus, 16_384, layout=layout, execution="static", sync=None, exact=True
    )
    plan = planner.plan(lengths)
    assert plan.predicted_ms <= reached_ms
    assert plan.lower_bound_ms <= plan.predicted_ms
    assert lint(plan, Workload(gpus, 16_384, 16_384).models(find_profile(profile))) == []


def list_packings(lengths: Sequence[int]) -> Iterator[list[list[int]]]:
    """List all partitions of sequences into micro-batches."""
    if not lengths:
        yield []
        return
    for packing in list_packings(lengths[1:]):
        yield [[lengths[0]], *packing]
        for j, micro in enumerate(packing):
            yield [*packing[:j], [lengths[0], *micro], *packing[j + 1 :]]


def find_optimum(pipeline: PipelineClass, lengths: Sequence[int]) -> float:
    """Return the least simulated time of all packings in all orders (ms)."""
    times = []
    for packing in list_packings(lengths):
        if any(sum(map(pipeline.pad, micro)) > pipeline.capacity for micro in packing):
            continue
        for order in permutations(packing):
            modes = [pipeline.choose_mode(micro) for micro in order]
            costs = [mode.micro_batch_ms(micro) for mode, micro in zip(modes, order, strict=True)]
            times.append(simulate_ms(costs, pipeline.pp, [mode.forward_fraction for mode in modes]))
    return min(times)


@pytest.mark.parametrize("with_modes", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_few_sequences_end_as_early_as_in_any_packing_and_order(
    seed: int, with_modes: bool
) -> None:
    rng = np.random.default_rng(seed)
    pool = rng.integers(1, 60, int(rng.integers(1, 6)))
    batch = Batch.from_lengths(rng.choice(pool, int(rng.integers(1, 6))).tolist())
    pipeline = replace(random_class(rng, batch, 1, holds_longest=True), pp=2 + seed % 3)
    pipeline = add_modes(pipeline, rng) if with_modes else pipeline
    optimum = find_optimum(pipeline, batch.lengths)
    alone = tuple([(i, 1)] for i, n in enumerate(batch.multiplicity.tolist()) for _ in range(n))
    filling = Filling(((alone,),), ((1e18,),))
    some = fleet((pipeline,))
    repacked = repack_stages(some, batch, filling)
    assert_sound(some, batch, repacked, in_order=True)
    assert repacked.objective_ms == pytest.approx(optimum, rel=1e-8)
    first = repack_stages(some, Batch.from_lengths(batch.lengths), filling)
    assert first.bins == repacked.bins
    timed = Filling(filling.placements, ((optimum * 1.5,),))
    closed, bound_ms = close_gap(Placement(some, timed), batch, optimum * 0.5, limit=0.5)
    assert bound_ms <= optimum * (1 + 1e-9)
    assert closed.objective_ms <= optimum * (1 + 2 * LEAST_GAIN)
