"""Sizes of real releases' config.json, and what of them is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seqplan.profiler.model_config import read_model_config
from seqplan.profiler.model_sizes import ModelSizes

CONFIGS = Path(__file__).parent / "model_configs"
"""Those of the releases, without what says nothing of their layers."""


def changed(tmp_path: Path, name: str, **keys: Any) -> Path:
    """A release's config with other values; None takes a key away."""
    config = {**json.loads((CONFIGS / f"{name}.json").read_text()), **keys}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return path


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama3-8b", 8.030),
        ("qwen3-32b", 32.76),  # heads of 128, and 5120/64 = 80
        ("qwen3-4b", 4.022),  # tied, heads of 128
        ("qwen2.5-7b", 7.615),  # a window that is switched off
        ("mistral-7b-v0.3", 7.248),
        ("phi-3-mini-128k", 3.821),  # a window beyond its longest sequence
    ],
)
def test_parameters_are_those_of_the_release(name: str, billions: float) -> None:
    sizes = ModelSizes.of(read_model_config(CONFIGS / f"{name}.json"))
    assert sizes.parameters == pytest.approx(billions * 1e9, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("qwen3-30b-a3b", "num_experts 128, moe_intermediate_size 768, "),
        ("qwen3-30b-a3b", 'model_type "qwen3_moe": a mixture of experts'),
        ("deepseek-v3", "n_routed_experts 256, "),
        ("deepseek-v3", "kv_lora_rank 512, q_lora_rank 1536, "),
        ("deepseek-v3", "num_nextn_predict_layers 1: layers that predict further tokens"),
        ("gpt-oss-120b", "num_local_experts 128: a mixture of experts"),
        ("gpt-oss-120b", "sliding_window 128: attention within a window of sequences of up to"),
        ("gpt-oss-120b", 'model_type "gpt_oss": attention sinks'),
        (
            "gemma-3-1b",
            "sliding_window 512: attention within a window of sequences of up to 32,768",
        ),
        ("gemma-3-4b", "text_config {"),
        ("mistral-7b-v0.1", "sliding_window 4096: attention within a window"),
        ("phi-3-mini-4k", "sliding_window 2047: attention within a window"),
        ("qwen3-next-80b", "linear_num_key_heads 16, linear_num_value_heads 32: layers of linear"),
        ("gpt2", 'model_type "gpt2": a feed-forward without gate'),
        ("pythia-6.9b", 'model_type "gpt_neox": a feed-forward without gate'),
    ],
)
def test_what_is_not_modelled_is_refused_by_key_and_value(name: str, said: str) -> None:
    path = CONFIGS / f"{name}.json"
    with pytest.raises(ValueError, match="not modelled") as refusal:
        read_model_config(path)
    text = str(refusal.value)
    assert text.startswith(f"{path}: not modelled: ")
    assert said in text
    assert "give them as flags (--hidden, --layers, …) without --model" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model_type": "mamba2"}, 'model_type "mamba2": state-space layers'),
        ({"model_type": "rwkv"}, 'model_type "rwkv": layers of linear attention'),
        ({"model_type": "brand_new"}, 'model_type "brand_new": layers that are not known here'),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layers of linear attention"),
        ({"layer_types": ["full_attention", "unheard_of"]}, "layers of unheard_of"),
        ({"attention_chunk_size": 4096}, "attention_chunk_size 4096: attention within chunks"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder true: an encoder and a decoder"),
        ({"num_local_experts": "8"}, 'num_local_experts "8": a mixture of experts'),
    ],
)
def test_single_keys_are_refused(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="not modelled") as refusal:
        read_model_config(changed(tmp_path, "llama3-8b", **keys))
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    "keys",
    [
        {"num_experts": 0, "num_local_experts": 1},
        {"sliding_window": 8192},  # as long as max_position_embeddings
        {"sliding_window": 128, "use_sliding_window": False},
        {"sliding_window": 128, "layer_types": ["full_attention"] * 32},
        {"attention_chunk_size": 8192, "kv_lora_rank": 0},
        {"head_dim": 128},
    ],
)
def test_keys_that_change_nothing_are_taken(tmp_path: Path, keys: dict[str, Any]) -> None:
    usual = ModelSizes.of(read_model_config(CONFIGS / "llama3-8b.json"))
    sizes = ModelSizes.of(read_model_config(changed(tmp_path, "llama3-8b", **keys)))
    assert sizes.as_dict() == usual.as_dict()


def test_a_window_is_judged_by_the_longest_sequence_that_is_meant() -> None:
    assert read_model_config(CONFIGS / "mistral-7b-v0.1.json", longest=4096)["hidden"] == 4096
    with pytest.raises(ValueError, match="of sequences of up to 4,097 tokens"):
        read_model_config(CONFIGS / "mistral-7b-v0.1.json", longest=4097)


def test_embeddings_are_tied_where_the_release_has_them_so(tmp_path: Path) -> None:
    """Gemma's config does not say it."""
    gemma = ModelSizes.of(read_model_config(CONFIGS / "gemma-3-1b.json", longest=512))
    assert gemma.tied
    assert gemma.parameters == pytest.approx(1.0e9, rel=1e-3)
    assert "tied" not in read_model_config(changed(tmp_path, "llama3-8b", tie_word_embeddings=None))
    with pytest.raises(ValueError, match='tie_word_embeddings wants true or false, not "yes"'):
        read_model_config(changed(tmp_path, "llama3-8b", tie_word_embeddings="yes"))
