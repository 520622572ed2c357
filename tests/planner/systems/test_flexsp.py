"""FlexSP's formulation: valid micro-steps, optimal groups on tiny instances."""

import itertools
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.exhaustive import partitions

from seqplan.costs.latency import Latency
from seqplan.costs.scheme_model import SchemeModel
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.placement.even_chunks import chunk
from seqplan.planner.systems.programs.flexsp_program import FlexSp, flexsp
from seqplan.plans.scheme import Scheme

Models = dict[Scheme, SchemeModel]


def models_of(per_gpu: int, overhead: float, quadratic: float) -> Models:
    """Degrees 1, 2 and 4; the all-to-all makes large degrees more expensive per token."""
    models = {}
    for sp in (1, 2, 4):
        latency = Latency(quadratic / sp, (1 + 0.2 * (sp - 1)) / sp, overhead)
        scheme = Scheme(ulysses=sp)
        models[scheme] = SchemeModel(scheme, latency, per_gpu * sp)
    return models


def check(solved: FlexSp, lengths: list[int], models: Models, gpus: int) -> None:
    placed = [i for groups in solved.micro_steps for _, part in groups for i in part]
    assert sorted(placed) == list(range(len(lengths)))
    total = 0.0
    for groups in solved.micro_steps:
        assert sum(scheme.gpus for scheme, _ in groups) <= gpus
        times = []
        for scheme, part in groups:
            assert part
            assert scheme.pad_micro_batch(lengths[i] for i in part) <= models[scheme].max_len
            times.append(models[scheme].latency.micro_batch_ms([lengths[i] for i in part]))
        total += max(times)
    assert solved.predicted_ms == pytest.approx(total)


def least_micro_step(
    lengths: list[int], models: Models, degrees: tuple[int, ...], gpus: int
) -> float:
    """The least slowest group over every split into groups and every choice of degrees."""
    best = inf
    for groups in partitions(lengths):
        for chosen in itertools.product(degrees, repeat=len(groups)):
            if sum(chosen) > gpus:
                continue
            parts = [models[Scheme(ulysses=sp)] for sp in chosen]
            if all(sum(g) <= m.capacity for g, m in zip(groups, parts, strict=True)):
                times = [m.latency.micro_batch_ms(g) for g, m in zip(groups, parts, strict=True)]
                best = min(best, max(times))
    return best


@settings(max_examples=20)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
    st.sampled_from([8, 12, 20]),
    st.sampled_from([0.0, 5.0]),
    st.sampled_from([0.0, 0.05]),
    st.sampled_from([(1, 2, 4), (2, 4)]),
)
def test_micro_steps_of_tiny_steps_are_optimal(
    lengths: list[int], per_gpu: int, overhead: float, quadratic: float, degrees: tuple[int, ...]
) -> None:
    models = models_of(per_gpu, overhead, quadratic)
    solved = flexsp(lengths, models, 4, degrees=degrees, tries=1)
    check(solved, lengths, models, 4)
    assert {scheme.sp for groups in solved.micro_steps for scheme, _ in groups} <= set(degrees)
    chunks = chunk(lengths, len(solved.micro_steps))
    least = sum(least_micro_step([lengths[i] for i in part], models, degrees, 4) for part in chunks)
    assert solved.predicted_ms == pytest.approx(least, rel=1e-4)


@settings(max_examples=10)
@given(st.lists(st.integers(1, 32), min_size=20, max_size=60), st.sampled_from([1, 4, 16]))
def test_buckets_and_time_limits_leave_the_plan_valid(lengths: list[int], buckets: int) -> None:
    models = models_of(9, 3.0, 0.02)
    solved = flexsp(lengths, models, 8, degrees=(1, 2, 4), buckets=buckets, time_limit_s=0.1)
    check(solved, lengths, models, 8)


def test_more_micro_steps_are_tried_and_the_best_is_kept() -> None:
    models = models_of(10, 0.0, 0.3)
    lengths = [20] * 4
    single_try = flexsp(lengths, models, 4, tries=1)
    assert flexsp(lengths, models, 4, tries=3).predicted_ms <= single_try.predicted_ms


def test_a_published_step() -> None:
    profile = load_shipped("gpt-7b-a100-40gb")
    models = {model.scheme: model for model in profile.usable(64, 32768)}
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(6.5, 1.1, 200), 16, 32768).astype(int).tolist()
    solved = flexsp(lengths, models, 64, time_limit_s=1.0)
    check(solved, lengths, models, 64)
    assert all(scheme.sp > 1 for groups in solved.micro_steps for scheme, _ in groups)


def test_impossible_batches_are_rejected() -> None:
    models = models_of(10, 0.0, 0.3)
    with pytest.raises(ValueError, match="41 tokens exceeds every group's 40"):
        flexsp([41], models, 4)
    with pytest.raises(ValueError, match="no sequence-parallel degree 8"):
        flexsp([1], models, 4, degrees=(2, 8))
    with pytest.raises(ValueError, match=r"degree of \[2, 4\] fits 1 GPUs"):
        flexsp([1], models, 1)
