"""Micro-steps in multiples: near the optimum, and no slower than one degree throughout."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles.micro_steps import least_micro_steps_ms
from step_lengths import CODE

from seqplan import Batch, Cost, Scheme, balance
from seqplan.costs.latency import Latency
from seqplan.costs.scheme_model import SchemeModel
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.lockstep.bounds.micro_step_bounds import stage_class
from seqplan.planner.lockstep.plan_micro_steps import plan_micro_steps
from seqplan.planner.placement.fleet import PipelineClass


@settings(max_examples=27)
@given(
    lengths=st.lists(st.integers(1, 200), min_size=3, max_size=6),
    gpus=st.sampled_from([2, 4]),
    a=st.sampled_from([0.0, 0.002, 0.02]),
    c=st.sampled_from([0.0, 12.0, 60.0]),
    room=st.integers(0, 200),
    multiple=st.integers(2, 3),
)
def test_between_the_bound_and_near_the_optimum(
    lengths: list[int], gpus: int, a: float, c: float, room: int, multiple: int
) -> None:
    assume(len(lengths) >= multiple)
    models = [
        SchemeModel(
            Scheme(ulysses=degree),
            Latency(a / degree, (1.0 if degree == 1 else 1.1) / degree, c),
            (-(-max(lengths) // gpus) + room) * degree,
        )
        for degree in sorted({1, 2, gpus})
    ]
    try:
        micro_steps = plan_micro_steps(Batch.from_lengths(lengths), models, gpus, multiple)
    except ValueError:
        assume(False)
        return
    assert len(micro_steps.micro_steps) % multiple == 0
    classes = [PipelineClass.from_model(model, 1) for model in models]
    best = least_micro_steps_ms(classes, lengths, gpus, multiple=multiple)
    assert micro_steps.lower_bound_ms <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= micro_steps.objective_ms <= 1.25 * best


@pytest.mark.parametrize("multiple", [2, 3, 5, 8, 11, 16])
def test_no_slower_than_one_degree_throughout(multiple: int) -> None:
    models = load_shipped("gpt-7b-a100-40gb").usable(16, 32_768)
    rng = np.random.default_rng(multiple)
    compared = 0
    for count in (3 * multiple, 5 * multiple + 7, 150):
        lengths = np.minimum(rng.choice(CODE, count), int(rng.choice([4_096, 16_384])))
        micro_steps = plan_micro_steps(Batch.from_lengths(lengths.tolist()), models, 16, multiple)
        assert micro_steps is not None
        for model in models:
            degree = stage_class(model)
            groups = 16 // degree.gpus
            if degree.capacity < lengths.max() or count < groups * multiple:
                continue
            cost = Cost(degree.a, degree.b, degree.c)
            alone = balance(lengths, groups, degree.capacity, cost, count_multiple=multiple)
            assert micro_steps.objective_ms <= alone.predicted_ms * (1 + 1e-9)
            compared += 1
    assert compared
