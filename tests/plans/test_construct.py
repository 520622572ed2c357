"""Plans written by hand."""

from typing import Any

import numpy as np
import pytest

from seqplan import construct_plan, explain, from_json, rank_view, to_json
from seqplan.plans.lint import lint


def test_a_constructed_plan_is_complete() -> None:
    plan = construct_plan(
        [10, 21, 30, 40],
        {"u2": [[[0, 3], [1]]], "r2": [[[2]]]},
        ids=[7, 5, 9, 1],
        step=3,
        world_size=5,
    )
    assert lint(plan, None) == []
    assert from_json(to_json(plan)) == plan
    assert [pipeline.ranks for pipeline in plan.pipelines] == [(0, 1), (2, 3)]
    assert plan.idle_ranks == (4,)
    assert plan.loss_tokens == 101 - 4
    assert plan.pipelines[1].micro_batches[0].padded_tokens >= 30
    assert [s.id for s in rank_view(plan, 0).pipelines[0].micro_batches[0].sequences] == [7, 1]
    assert "binding: unknown, the plan states no times" in explain(plan)


@pytest.mark.parametrize(
    ("lengths", "pipelines", "message"),
    [
        ([], {}, "needs sequences"),
        ([5, 0], {"u1": [[[0, 1]]]}, "sequence 1 has length 0"),
        ([5, 6], {"u2": [[[0]]]}, "sequence 1 is in no micro-batch"),
        ([5, 6], {"u2": [[[0, 1], [1]]]}, "sequence 1 is in more than one"),
        ([5, 6], {"u2": [[[0, 2], [1]]]}, "there is no sequence 2; there are 2"),
        ([5, 6], {"u2": [[[0, 1], []]]}, "a micro-batch is empty"),
        ([5, 6], {"x2": [[[0, 1]]]}, "x2"),
    ],
)
def test_invalid_plans_are_rejected(
    lengths: list[int], pipelines: dict[str, list[list[list[int]]]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        construct_plan(lengths, pipelines)


def test_ids_and_ranks_must_fit() -> None:
    with pytest.raises(ValueError, match="1 ids for 2 sequences"):
        construct_plan([5, 6], {"u2": [[[0, 1]]]}, ids=[1])
    with pytest.raises(ValueError, match="take 2 ranks, world_size is 1"):
        construct_plan([5, 6], {"u2": [[[0, 1]]]}, world_size=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": [1200, 400.5]}, "lengths: 400.5 is no whole number"),
        ({"lengths": [True, 400]}, "lengths: True is no whole number"),
        ({"lengths": ["1200", 400]}, "lengths: '1200' is no whole number"),
        ({"step": -1}, "step -1: steps are counted from 0"),
        ({"loss_tokens": -5}, "loss_tokens -5: there are from 0 to 1600"),
        ({"loss_tokens": 1601}, "loss_tokens 1601: there are from 0 to 1600"),
        ({"world_size": 2.5}, "world_size: 2.5 is no whole number"),
        ({"pipelines": {"u2": [[[0, 1.0]]]}}, "places: 1.0 is no whole number"),
    ],
)
def test_numbers_that_no_plan_file_may_have_are_rejected(
    changes: dict[str, Any], message: str
) -> None:
    fields = {"lengths": [1200, 400], "pipelines": {"u2": [[[0, 1]]]}} | changes
    with pytest.raises((TypeError, ValueError), match=message):
        construct_plan(**fields)


def test_numpy_numbers_make_a_plan_that_is_read_back() -> None:
    plan = construct_plan(np.array([1200, 400]), {"u2": [[np.array([0, 1])]]})
    assert from_json(to_json(plan)) == construct_plan([1200, 400], {"u2": [[[0, 1]]]})


def test_repr_of_a_plan_is_one_line() -> None:
    plan = construct_plan([1_200, 400, 2_000], {"u2": [[[0, 1]]], "r2": [[[2]]]}, step=4)
    assert repr(plan) == (
        "<Plan of step 4: 3 sequences, 3,600 tokens, 1×u2 + 1×r2 on 4 ranks, 0.0 ms, gap 0.00 %>"
    )


@pytest.mark.parametrize("pipelines", [[[0, 1]], [0, 1], 0, [[[0], 1]]])
def test_lists_of_another_depth_are_named(pipelines: Any) -> None:
    with pytest.raises(TypeError, match=r"pipelines\['tp1'\]: .* is no list. Give a list of pipe"):
        construct_plan([1, 2], {"tp1": pipelines})
