"""Sizes of real releases' config.json, and what of them is rejected by name."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from seqplan.costs.model_files.config_keys import MODELLED
from seqplan.costs.model_files.model_config import read_model_config
from seqplan.costs.model_sizes import ModelSizes

CONFIGS = Path(__file__).parent / "model_configs"
"""Those of the releases, without keys that do not concern their layers."""


def changed(tmp_path: Path, name: str, **keys: Any) -> Path:
    """A release's config with other values; None takes a key away."""
    config = {**json.loads((CONFIGS / f"{name}.json").read_text()), **keys}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return path


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("llama3-8b", 8.030, 8.030),
        ("qwen3-32b", 32.76, 32.76),  # heads of 128, and 5120/64 = 80
        ("qwen3-4b", 4.022, 4.022),  # tied, heads of 128
        ("qwen2.5-7b", 7.615, 7.615),  # a window that is switched off
        ("mistral-7b-v0.3", 7.248, 7.248),
        ("phi-3-mini-128k", 3.821, 3.821),  # a window beyond its longest sequence
        ("gemma-3-1b", 1.000, 1.000),  # windows in 22 of 26 layers
        ("gpt2", 0.1244, 0.1244),  # two matrices, learned positions
        ("pythia-6.9b", 6.857, 6.857),
        ("qwen3-30b-a3b", 30.53, 3.35),  # "30.5B in total and 3.3B activated"
        ("gpt-oss-120b", 116.83, 5.71),  # "117B parameters with 5.1B active", the embedding not
        ("qwen3-next-80b", 79.67, 3.87),  # "80B in total and 3B activated", embeddings apart
    ],
)
def test_parameters_are_those_of_the_release(name: str, billions: float, active: float) -> None:
    sizes = ModelSizes.from_mapping(read_model_config(CONFIGS / f"{name}.json"))
    assert sizes.parameters == pytest.approx(billions * 1e9, rel=1e-3)
    of_token = sizes.active_parameters + sizes.embedding_parameters
    assert of_token == pytest.approx(active * 1e9, rel=2e-3)


def test_deepseek_without_its_further_layer() -> None:
    """DeepSeek-V3: "671B total parameters with 37B activated for each token"."""
    sizes = ModelSizes.from_mapping(read_model_config(CONFIGS / "deepseek-v3.json"))
    (left_out,) = sizes.left_out
    assert left_out.startswith("layers that predict further tokens (num_nextn_predict_layers 1)")
    assert sizes.parameters == pytest.approx(671e9, rel=1e-3)
    of_token = sizes.active_parameters + sizes.vocab * sizes.hidden
    assert of_token == pytest.approx(37e9, rel=0.02)
    assert sizes.head_width == (128 + 64 + 128) // 2
    assert sizes.architecture.expert_layers == 58


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("mistral-7b-v0.1", {"window_layers": 32, "window": 4096}),
        ("phi-3-mini-4k", {"window_layers": 32, "window": 2047}),
        ("gemma-3-1b", {"window_layers": 22, "window": 512}),  # each sixth is full
        (
            "gpt-oss-120b",
            {
                "window_layers": 18,
                "window": 128,
                "sinks": True,
                "expert_bias": True,
                "expert_layers": 36,
                "experts": 128,
                "experts_per_token": 4,
                "expert_ffn": 2880,
            },
        ),
        (
            "qwen3-next-80b",
            {
                "attention_gate": True,
                "linear_layers": 36,
                "linear_key_heads": 16,
                "linear_value_heads": 32,
                "linear_key_dim": 128,
                "linear_value_dim": 128,
                "linear_conv": 4,
                "expert_layers": 48,
                "experts": 512,
                "expert_ffn": 512,
                "experts_per_token": 10,
                "shared_ffn": 512,
            },
        ),
        ("gpt2", {"ungated": True, "positions": 1024}),
        ("qwen2.5-7b", {}),
    ],
)
def test_layers_of_every_kind(name: str, layers: dict[str, int]) -> None:
    sizes = ModelSizes.from_mapping(read_model_config(CONFIGS / f"{name}.json"))
    assert sizes.architecture.as_dict() == layers
    assert ModelSizes.from_mapping(sizes.as_dict()) == sizes


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ({"model_type": "gemma2", "sliding_window": 64}, {"window_layers": 16, "window": 64}),
        ({"model_type": "cohere2", "sliding_window": 64}, {"window_layers": 24, "window": 64}),
        (
            {"model_type": "exaone4", "sliding_window": 64, "sliding_window_pattern": "LLLG"},
            {"window_layers": 24, "window": 64},
        ),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 64,
                "use_sliding_window": True,
                "max_window_layers": 20,
            },
            {"window_layers": 12, "window": 64},
        ),
        (
            {"layer_types": ["chunked_attention"] * 31 + ["full_attention"]}
            | {"attention_chunk_size": 2048},
            {"chunk_layers": 31, "chunk": 2048},
        ),
        (
            {
                "model_type": "llama4_text",
                "attention_chunk_size": 2048,
                "num_local_experts": 16,
                "num_experts_per_tok": 1,
                "intermediate_size": 512,
                "intermediate_size_mlp": 1024,
                "interleave_moe_layer_step": 2,
            },
            {
                "chunk_layers": 24,
                "chunk": 2048,
                "expert_layers": 16,
                "experts": 16,
                "experts_per_token": 1,
                "expert_ffn": 512,
                "shared_ffn": 512,
            },
        ),
        (
            {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
            {"expert_layers": 32, "experts": 8, "experts_per_token": 2, "expert_ffn": 14336},
        ),
        (
            {
                "model_type": "qwen2_moe",
                "num_experts": 8,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 64,
                "shared_expert_intermediate_size": 96,
                "decoder_sparse_step": 2,
                "mlp_only_layers": [1, 3],
            },
            {
                "expert_layers": 14,
                "experts": 8,
                "experts_per_token": 2,
                "expert_ffn": 64,
                "shared_ffn": 96,
            },
        ),
        (
            {
                "model_type": "ernie4_5_moe",
                "moe_num_experts": 8,
                "moe_k": 2,
                "moe_intermediate_size": 64,
                "moe_num_shared_experts": 2,
                "moe_layer_start_index": 1,
                "moe_layer_end_index": 30,
                "moe_layer_interval": 1,
            },
            {
                "expert_layers": 30,
                "experts": 8,
                "experts_per_token": 2,
                "expert_ffn": 64,
                "shared_ffn": 128,
            },
        ),
    ],
)
def test_where_layers_are_special(
    tmp_path: Path, keys: dict[str, Any], layers: dict[str, int]
) -> None:
    sizes = read_model_config(changed(tmp_path, "llama3-8b", **keys))
    assert ModelSizes.from_mapping(sizes).architecture.as_dict() == layers


def test_text_of_gemma_3_4b_is_read_alone() -> None:
    """Gemma 3 4B: 3.9 billion parameters of text (arXiv 2503.19786, table 1), tied."""
    sizes = ModelSizes.from_mapping(read_model_config(CONFIGS / "gemma-3-4b.json"))
    assert sizes.left_out == ("parts of the model next to its text_config: vision_config",)
    assert sizes.parameters == pytest.approx(3.88e9, rel=5e-3)
    assert sizes.tied


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "mamba2"}, 'model_type "mamba2": state-space layers'),
        ({"model_type": "rwkv"}, 'model_type "rwkv": layers of linear attention'),
        ({"model_type": "brand_new"}, 'model_type "brand_new": layers that are not known here'),
        ({"is_encoder_decoder": True}, "is_encoder_decoder true: an encoder and a decoder"),
        ({"cross_layers": 3, "memory_slots": "8"}, 'cross_layers 3, memory_slots "8": not known'),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers 4: layers that share keys and values"),
    ],
)
def test_single_keys_are_rejected(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="not modeled") as raised:
        read_model_config(changed(tmp_path, "llama3-8b", **keys))
    text = str(raised.value)
    assert message in text
    assert "A file can state sizes by their names here (hidden, layers, …)" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"layer_types": ["full_attention", "unheard_of"] * 16},
            "layers of unheard_of are not known",
        ),
        ({"layer_types": ["full_attention"]}, "must be a list of 32 kinds"),
        ({"layer_types": ["sliding_attention"] * 32}, "sliding_window does not state how long"),
        ({"num_local_experts": "8"}, 'num_local_experts must be a whole number: "8"'),
        ({"num_local_experts": 8}, "8 experts want num_experts_per_tok next to them"),
        ({"linear_num_key_heads": 4}, "layer_types does not state which layers"),
        (
            {"sliding_window": 64, "sliding_window_pattern": "LX"},
            'sliding_window_pattern must be a whole number or L and G: "LX"',
        ),
        ({"sliding_window": -1}, "sliding_window must be a whole number: -1"),
    ],
)
def test_wrong_keys_are_named(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    path = changed(tmp_path, "llama3-8b", **keys)
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        read_model_config(path)
    assert str(raised.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    "keys",
    [
        {"num_experts": 0, "num_local_experts": 1},
        {"sliding_window": 8192},  # as long as max_position_embeddings
        {"sliding_window": 128, "use_sliding_window": False},
        {"sliding_window": 128, "layer_types": ["full_attention"] * 32},
        {"attention_chunk_size": 8192, "kv_lora_rank": 0},
        {"head_dim": 128},
        {"rope_scaling": {"factor": 8.0}, "initializer_range": 0.02, "unheard_of": None},
    ],
)
def test_keys_that_change_nothing_are_taken(tmp_path: Path, keys: dict[str, Any]) -> None:
    usual = ModelSizes.from_mapping(read_model_config(CONFIGS / "llama3-8b.json"))
    sizes = ModelSizes.from_mapping(read_model_config(changed(tmp_path, "llama3-8b", **keys)))
    assert sizes.as_dict() == usual.as_dict()


def test_a_window_no_shorter_than_the_longest_has_no_effect() -> None:
    path = CONFIGS / "mistral-7b-v0.1.json"
    assert "window" not in read_model_config(path, longest=4096)
    assert read_model_config(path, longest=4097)["window"] == 4096


def test_embeddings_are_tied_where_the_release_has_them_so(tmp_path: Path) -> None:
    """Gemma's config does not state it."""
    gemma = ModelSizes.from_mapping(read_model_config(CONFIGS / "gemma-3-1b.json", longest=512))
    assert gemma.tied
    assert gemma.parameters == pytest.approx(1.0e9, rel=1e-3)
    assert "tied" not in read_model_config(changed(tmp_path, "llama3-8b", tie_word_embeddings=None))
    with pytest.raises(ValueError, match='tie_word_embeddings must be true or false: "yes"'):
        read_model_config(changed(tmp_path, "llama3-8b", tie_word_embeddings="yes"))


VALUES = (None, True, False, 0, -1, 2, 7, 1.5, "8", "LG", "", [], [1], {"a": 1}, 10**30, 10**8)


def test_any_value_of_a_key_gives_sizes_or_one_line(tmp_path: Path) -> None:
    rng = random.Random(1)
    configs = [json.loads(path.read_text()) for path in sorted(CONFIGS.glob("*.json"))]
    path, lines, read = tmp_path / "config.json", [], 0
    for _ in range(500):
        config = dict(rng.choice(configs))
        for _ in range(rng.randint(1, 3)):
            config[rng.choice(sorted(MODELLED | set(config)))] = rng.choice(VALUES)
        path.write_text(json.dumps(config))
        try:
            read += read_model_config(path).get("layers", 1) >= 1
        except ValueError as raised:
            lines.append(str(raised))
    assert read > 50
    assert len(lines) > 50
    assert all(line.startswith(f"{path}: ") and "\n" not in line for line in lines)
