"""Sizes of the runtime's model."""

import pytest

from seqplan.costs.model_sizes import SIZES, ModelSizes
from seqplan.runtime.models.llama import Llama, ModelConfig


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("head_dim", [0, 16])
def test_parameters_are_as_many_as_the_profiler_counts(head_dim: int, tied: bool) -> None:
    config = ModelConfig(hidden=32, heads=4, kv_heads=2, head_dim=head_dim, tied=tied)
    assert config.head_dim == (head_dim or 8)
    sizes = ModelSizes(
        **{name: getattr(config, name) for name in SIZES}, head_dim=config.head_dim, tied=tied
    )
    assert sum(parameter.numel() for parameter in Llama(config).parameters()) == sizes.parameters


@pytest.mark.parametrize(("head_dim", "hidden"), [(7, 32), (-2, 32), (0, 36)])
def test_heads_that_cannot_be_rotated_are_rejected(head_dim: int, hidden: int) -> None:
    with pytest.raises(ValueError, match=r"must be (even|a multiple of twice)"):
        ModelConfig(hidden=hidden, heads=4, kv_heads=2, head_dim=head_dim)
