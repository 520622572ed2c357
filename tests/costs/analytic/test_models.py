"""Presets against the sizes their names promise."""

from __future__ import annotations

import pytest

from seqplan.costs.model_sizes import MODELS, SOURCES, ModelSizes


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-7b", 6.738),
        ("llama-13b", 13.016),
        ("llama-32b", 32.529),
        ("llama3-8b", 8.030),
        ("llama3-70b", 70.55),
        ("qwen3-8b", 8.191),
        ("qwen3-32b", 32.76),
        ("qwen3-30b-a3b", 30.53),
        ("gpt-oss-20b", 20.91),
        ("gpt-7b", 6.86),
        ("gpt-13b", 13.1),
        ("gpt-30b", 32.6),
    ],
)
def test_parameters_of_presets(name: str, billions: float) -> None:
    """The LLaMA counts are those of the released weights (32b: LLaMA-33B's)."""
    assert ModelSizes.from_mapping(MODELS[name]).parameters == pytest.approx(
        billions * 1e9, rel=2e-3
    )


def test_every_preset_has_a_source() -> None:
    assert set(SOURCES) == set(MODELS)


def test_sizes_that_do_not_fit_together() -> None:
    with pytest.raises(ValueError, match="hidden 100 is no multiple of 3 heads"):
        ModelSizes(hidden=100, layers=1, heads=3, kv_heads=1, ffn=1, vocab=1)
    with pytest.raises(ValueError, match="heads 4 must be a multiple of kv_heads 3"):
        ModelSizes(hidden=64, layers=1, heads=4, kv_heads=3, ffn=1, vocab=1)
    with pytest.raises(ValueError, match="layers must be from 1 to 10,000,000, not 0"):
        ModelSizes(hidden=64, layers=0, heads=4, kv_heads=2, ffn=1, vocab=1)
