"""Values of tokens whose dtype or shape numpy or the ranges of a rank cannot take."""

from typing import Any

import numpy as np
import pytest
import torch
from random_plans import one_pipeline_plan
from ranks import run_ranks

from seqplan import Scheme, rank_view, runtime
from seqplan.runtime.losses.token_losses import log_probabilities

CONFIG = runtime.models.ModelConfig(hidden=16, layers=1, heads=2, kv_heads=1, ffn=16, vocab=64)


def compute_values(rank: int, world_size: int) -> None:
    groups = runtime.Communicators.create()
    model = runtime.models.Llama(CONFIG)
    states = runtime.ShardedStates(model, groups.states)
    prepare = runtime.make_preparer(
        runtime.data.SeededTokens(64, 0), runtime.Peers(groups.attention), heads=2, kv_heads=1
    )
    work = prepare(rank_view(one_pipeline_plan(Scheme(), [5, 3]), rank))

    def values(of: Any) -> list[Any]:
        return runtime.training.token_values(work, model, states, groups.control, values_of=of)

    whole = values(log_probabilities)
    half = values(lambda logits, batch: log_probabilities(logits, batch).bfloat16())
    for one, other in zip(whole, half, strict=True):
        assert one.values.dtype == other.values.dtype == np.float32
        assert np.allclose(one.values, other.values, rtol=1e-2)
    for of, message in (
        (lambda logits, batch: logits, r"values_of: returned shape \(8, 64\) for 8 rows\. Return"),
        (lambda logits, batch: logits.sum(), r"values_of: returned shape \(\) for 8 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            values(of)
    whole = values(lambda logits, batch: torch.full((8,), 2**24 + 1))
    assert whole[0].values.tolist() == [0.0, *[2.0**24 + 1] * 4]
    for other, message in (([0.0], "list"), (torch.zeros(8, dtype=torch.cfloat), "complex values")):
        with pytest.raises(TypeError, match=f"values_of: returned {message}"):
            values(lambda logits, batch, other=other: other)


def test_values_are_converted_and_their_shape_is_checked() -> None:
    run_ranks(compute_values, 1)
