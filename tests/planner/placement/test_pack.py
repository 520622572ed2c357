"""Packing against every packing: never below the optimum, its bound never above, close to it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from instances import batches, pipeline_classes, random_class
from oracles.exhaustive import Subsets, pipeline_optima

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.placement.pack import Packing, pack

WORST_RATIO = 1.5
"""One micro-batch more than the least of two, where c is all; random instances show 1.03."""


def optimum(pipeline: PipelineClass, batch: Batch) -> float:
    """The least form S: estimates are that if forward takes no time."""
    return pipeline_optima(replace(pipeline, forward_fraction=0.0), Subsets.of(batch))[-1]


def check(pipeline: PipelineClass, lengths: tuple[int, ...], packing: Packing) -> None:
    """Complete, within MaxLen, and priced as it is."""
    assert sorted(i for micro in packing.micro_batches for i in micro) == list(range(len(lengths)))
    costs = []
    for micro in packing.micro_batches:
        assert micro
        assert (
            sum(-(-lengths[i] // pipeline.unit) * pipeline.unit for i in micro) <= pipeline.capacity
        )
        costs.append(
            sum(pipeline.a * lengths[i] ** 2 + pipeline.b * lengths[i] for i in micro) + pipeline.c
        )
    assert packing.objective_ms == pytest.approx(sum(costs) + (pipeline.pp - 1) * max(costs))


@given(st.data())
def test_between_its_bound_and_the_worst_ratio(data: st.DataObject) -> None:
    batch = data.draw(batches())
    pipeline = data.draw(pipeline_classes(batch, holds_longest=True))
    packing = pack(pipeline, batch.lengths)
    check(pipeline, batch.lengths, packing)
    least = optimum(pipeline, batch)
    assert packing.lower_bound_ms <= least * (1 + 1e-9)
    assert least * (1 - 1e-9) <= packing.objective_ms <= least * WORST_RATIO


def test_most_small_instances_are_packed_optimally() -> None:
    ratios = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        batch = Batch.from_lengths(rng.integers(1, 40, int(rng.integers(2, 8))).tolist())
        pipeline = random_class(rng, batch, 1, holds_longest=True)
        ratios.append(pack(pipeline, batch.lengths).objective_ms / optimum(pipeline, batch))
    assert np.mean(np.array(ratios) < 1 + 1e-9) > 0.97
    assert np.mean(ratios) < 1.001


def test_one_stage_needs_only_the_fewest_micro_batches() -> None:
    pipeline = PipelineClass(pp=1, a=0.0, b=1.0, c=10.0, capacity=10, unit=1, count=1, gpus=1)
    packing = pack(pipeline, [6, 5, 5, 4])
    assert len(packing.micro_batches) == 2
    assert packing.objective_ms == packing.lower_bound_ms == 40


def test_more_micro_batches_than_needed_shorten_the_bubbles() -> None:
    pipeline = PipelineClass(pp=4, a=0.0, b=1.0, c=1.0, capacity=100, unit=1, count=1, gpus=4)
    packing = pack(pipeline, [10] * 8)
    assert len(packing.micro_batches) == 8
    assert packing.objective_ms == 8 * 11 + 3 * 11


def test_rings_pad_each_sequence() -> None:
    pipeline = PipelineClass(pp=1, a=0.0, b=1.0, c=1.0, capacity=16, unit=8, count=1, gpus=4)
    assert len(pack(pipeline, [1, 1, 1]).micro_batches) == 2
    assert len(pack(pipeline, [9, 1]).micro_batches) == 2


def test_nothing_to_pack_and_one_too_long() -> None:
    pipeline = PipelineClass(pp=2, a=0.0, b=1.0, c=1.0, capacity=10, unit=1, count=1, gpus=2)
    assert pack(pipeline, []) == Packing((), 0.0, 0.0)
    with pytest.raises(ValueError, match="11 tokens exceeds the micro-batch limit 10"):
        pack(pipeline, [3, 11])
