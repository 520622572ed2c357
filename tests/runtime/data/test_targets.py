"""A rank's targets: shifted in the whole sequence; wrong columns are rejected."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_plans import one_pipeline_plan

from seqplan import Scheme, rank_view
from seqplan.plans.views.micro_batch_view import MicroBatchView
from seqplan.runtime.data.targets import IndexedTargets, Targets, load_targets
from seqplan.runtime.data.tokens import NO_LABEL
from seqplan.runtime.errors import DataError


def views(scheme: Scheme, lengths: list[int]) -> list[MicroBatchView]:
    """One micro-batch as each rank sees it; ids are ten times the position."""
    plan = one_pipeline_plan(scheme, lengths)
    return [rank_view(plan, rank).pipelines[0].micro_batches[0] for rank in range(scheme.gpus)]


def rows(lengths: list[int], surplus: int = 0) -> dict[int, dict[str, Any]]:
    """Columns of numbers that encode their place."""
    random = np.random.default_rng(3)
    return {
        10 * at: {
            "input_ids": random.integers(0, 99, length + surplus).tolist(),
            "mask": random.integers(0, 2, length + surplus).tolist(),
            "weights": random.random(length + surplus).tolist(),
            "teacher": random.random((length + surplus, 3)),
            "advantage": float(at),
        }
        for at, length in enumerate(lengths)
    }


@given(
    st.builds(Scheme, st.just(1), st.just(1), st.integers(1, 4), st.integers(1, 4)),
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.integers(0, 5),
)
def test_every_row_has_the_next_token(scheme: Scheme, lengths: list[int], surplus: int) -> None:
    samples = rows(lengths, surplus)
    data = IndexedTargets(
        samples, "input_ids", mask="mask", weights="weights", extras=["teacher", "advantage"]
    )
    for view in views(scheme, lengths):
        labels, weights, extras = load_targets(data, view)
        assert extras["teacher"].shape == (view.local_tokens, 3)  # also without tokens
        at = 0
        for share in view.sequences:
            row = samples[share.id]
            for token in (token for held in share.ranges for token in range(*held)):
                last = token + 1 == share.length
                counts = not last and row["mask"][token + 1]
                assert labels[at] == (row["input_ids"][token + 1] if counts else NO_LABEL)
                assert weights[at] == (row["weights"][token + 1] if counts else 0.0)
                assert extras["advantage"][at] == (0.0 if last else row["advantage"])
                expected = np.zeros(3) if last else row["teacher"][token + 1]
                assert (extras["teacher"][at] == expected).all()
                at += 1
        assert at == view.local_tokens


@pytest.mark.parametrize(
    ("change", "columns", "message"),
    [
        ({"mask": [1, 0]}, {"mask": "mask"}, "column 'mask' has 2 entries for 4 tokens"),
        ({"mask": [1, 0, 2, 1]}, {"mask": "mask"}, "column 'mask' must be 0 and 1 only"),
        ({}, {"labels": "labels"}, "has no column 'labels' (there are input_ids, mask, weights"),
        (
            {"labels": [0.5] * 4},
            {"labels": "labels"},
            "column 'labels' must be integers, not float64",
        ),
        ({"weights": [1, -0.5, 1, 1]}, {"weights": "weights"}, "a weight is -0.5: weights are"),
        ({"weights": [1, 1, float("nan"), 1]}, {"weights": "weights"}, "a weight is nan"),
        ({"advantage": "high"}, {"extras": ["advantage"]}, "column 'advantage' must be numbers"),
        (
            {"advantage": 1},
            {"extras": ["advantage"]},
            "has the extras advantage: int64 ('tokens',)",
        ),
    ],
)
def test_wrong_columns_are_rejected_by_name(
    change: dict[str, Any], columns: dict[str, Any], message: str
) -> None:
    samples = rows([5, 4])
    samples[10] |= change
    if "labels" in change:
        samples[0]["labels"] = samples[0]["input_ids"]
    (view,) = views(Scheme(), [5, 4])
    with pytest.raises(DataError) as caught:
        load_targets(IndexedTargets(samples, "input_ids", **columns), view, step=7)
    assert message in str(caught.value)
    assert "of step 7: " in str(caught.value)


def test_custom_data_that_gives_too_little_is_rejected() -> None:
    class Short(IndexedTargets):
        def targets(self, id: int, start: int, stop: int) -> Targets:
            labels, _, _ = super().targets(id, start, stop)
            return Targets(labels, np.ones(1))

    (view,) = views(Scheme(), [5])
    with pytest.raises(DataError, match="sample 0: gave 1 weights for 4 tokens"):
        load_targets(Short(rows([5]), "input_ids"), view)


def test_columns_of_bfloat16_and_with_gradients_are_read() -> None:
    values = torch.tensor([0.5, 0.25, 1.0])
    for column in (values.bfloat16(), values.clone().requires_grad_()):
        rows = [{"input_ids": [1, 2, 3], "advantages": column}]
        targets = IndexedTargets(rows, "input_ids", extras=["advantages"]).targets(0, 1, 3)
        assert targets.extras["advantages"].tolist() == [0.25, 1.0]
