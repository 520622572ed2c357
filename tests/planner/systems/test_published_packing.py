"""The published packing against enumeration of the closed form C."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import batches, pipeline_classes
from oracles.exhaustive import partitions

from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.systems.programs.ilp_packing import ilp_packing


@st.composite
def packings(draw: st.DrawFn, most: int = 6) -> tuple[PipelineClass, tuple[int, ...]]:
    """A pipeline and sequences that it can hold."""
    batch = draw(batches(most))
    return draw(pipeline_classes(batch, holds_longest=True)), batch.lengths[:most]


def works(pipeline: PipelineClass, lengths: tuple[int, ...], micro_batches: object) -> list[float]:
    assert isinstance(micro_batches, tuple)
    return [
        sum(pipeline.a * lengths[i] ** 2 + pipeline.b * lengths[i] for i in micro)
        for micro in micro_batches
    ]


def compute_closed_form_ms(pipeline: PipelineClass, works_ms: list[float]) -> float:
    """Compute C = (max m_j + c)·(pp − 1 + V) of micro-batches with the works m_j."""
    return (max(works_ms) + pipeline.c) * (pipeline.pp - 1 + len(works_ms)) if works_ms else 0.0


def least(pipeline: PipelineClass, lengths: tuple[int, ...], most: int) -> float:
    """Least C over every packing into at most ``most`` micro-batches."""
    times = []
    for groups in partitions(lengths):
        if len(groups) <= most and all(
            sum(-(-n // pipeline.unit) * pipeline.unit for n in group) <= pipeline.capacity
            for group in groups
        ):
            work = [sum(pipeline.a * n * n + pipeline.b * n for n in group) for group in groups]
            times.append(compute_closed_form_ms(pipeline, work))
    return min(times)


@settings(max_examples=40)
@given(packings(), st.sampled_from([None, 2, 6]))
def test_the_least_closed_form_is_found(
    packing: tuple[PipelineClass, tuple[int, ...]], util_len: int | None
) -> None:
    pipeline, lengths = packing
    solution = ilp_packing(pipeline, lengths, util_len=util_len, time_limit_s=20)
    placed = sorted(i for micro in solution.micro_batches for i in micro)
    assert placed == list(range(len(lengths)))
    for micro in solution.micro_batches:
        padded = sum(-(-lengths[i] // pipeline.unit) * pipeline.unit for i in micro)
        assert padded <= pipeline.capacity
    time = compute_closed_form_ms(pipeline, works(pipeline, lengths, solution.micro_batches))
    assert solution.objective_ms == pytest.approx(time)
    assert solution.objective_ms == pytest.approx(least(pipeline, lengths, solution.most), rel=1e-5)
    assert solution.lower_bound_ms <= solution.objective_ms


def test_the_range_of_v_follows_util_len() -> None:
    pipeline = PipelineClass(pp=4, a=0.0, b=1.0, c=1.0, capacity=10, unit=1, count=1, gpus=4)
    lengths = (5,) * 8
    # Two in each of 4: C = 11·7 = 77; one in each of 8: C = 6·11 = 66.
    assert len(ilp_packing(pipeline, lengths).micro_batches) == 8
    assert ilp_packing(pipeline, lengths, util_len=8).most == 5
    assert ilp_packing(pipeline, lengths, util_len=40).most == 4  # the capacity bound


def test_v_is_raised_where_the_capacity_bound_is_not_enough() -> None:
    pipeline = PipelineClass(pp=1, a=0.0, b=1.0, c=1.0, capacity=10, unit=1, count=1, gpus=1)
    # 20 tokens would fill two micro-batches of 10, which hold two sequences of 4 each.
    solution = ilp_packing(pipeline, (4, 4, 4, 4, 4), util_len=10, time_limit_s=5)
    assert solution.most == 3
    assert len(solution.micro_batches) == 3


def test_no_sequences_and_one_too_long() -> None:
    pipeline = PipelineClass(pp=2, a=0.0, b=1.0, c=1.0, capacity=10, unit=1, count=1, gpus=2)
    assert ilp_packing(pipeline, ()).objective_ms == 0
    with pytest.raises(ValueError, match="11 tokens exceeds the micro-batch limit 10"):
        ilp_packing(pipeline, (11,))
