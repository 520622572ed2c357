"""Values that the configuration class of a model_type gives to keys that its file leaves out."""

from __future__ import annotations

from typing import Any

_DEEPSEEK_V3: dict[str, Any] = {
    "moe_intermediate_size": 2048,
    "num_key_value_heads": 128,
    "n_shared_experts": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
}

CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "cohere": {"tie_word_embeddings": True},
    "cohere2": {"tie_word_embeddings": True, "sliding_window": 4096},
    "deepseek_v2": {
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "n_shared_experts": 2,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "moe_intermediate_size": 1407,
    },
    "deepseek_v3": _DEEPSEEK_V3,
    "ernie4_5": {"num_key_value_heads": 2, "tie_word_embeddings": True, "head_dim": 128},
    "ernie4_5_moe": {
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "moe_intermediate_size": 1536,
        "moe_k": 6,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
    },
    "exaone4": {"num_key_value_heads": 32, "sliding_window": 4096, "sliding_window_pattern": 4},
    "flex_olmo": {"num_experts_per_tok": 5},
    "gemma": {"num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": True},
    "gemma2": {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "tie_word_embeddings": True,
        "sliding_window": 4096,
    },
    "gemma3_text": {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "tie_word_embeddings": True,
        "sliding_window": 4096,
    },
    "glm": {"num_key_value_heads": 2, "head_dim": 128},
    "glm4": {"num_key_value_heads": 2, "head_dim": 128},
    "glm4_moe": {
        "num_key_value_heads": 8,
        "moe_intermediate_size": 1408,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    },
    "gpt2": {"tie_word_embeddings": True},
    "gpt_oss": {
        "head_dim": 64,
        "num_key_value_heads": 8,
        "sliding_window": 128,
        "num_experts_per_tok": 4,
    },
    "granitemoe": {"num_experts_per_tok": 2},
    "helium": {"num_key_value_heads": 20, "head_dim": 128},
    "internlm3": {"num_key_value_heads": 2, "head_dim": 128},
    "iquestcoder": {"num_key_value_heads": 8, "head_dim": 128},
    "kimi_k2": _DEEPSEEK_V3,
    "llama4_text": {
        "intermediate_size_mlp": 16384,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_experts_per_tok": 1,
        "attention_chunk_size": 8192,
    },
    "minicpm": {"tie_word_embeddings": True},
    "minimax_m2": {"num_key_value_heads": 8, "head_dim": 128, "num_experts_per_tok": 8},
    "ministral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "ministral3": {"num_key_value_heads": 8, "head_dim": 128},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "mixtral": {"num_key_value_heads": 8, "num_experts_per_tok": 2},
    "olmo3": {"sliding_window": 4096},
    "olmoe": {"num_experts_per_tok": 8},
    "phimoe": {"num_key_value_heads": 8, "num_experts_per_tok": 2},
    "qwen2": {
        "num_key_value_heads": 32,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "qwen2_moe": {
        "num_key_value_heads": 16,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts_per_tok": 4,
    },
    "qwen3": {
        "num_key_value_heads": 32,
        "head_dim": 128,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "qwen3_moe": {
        "num_key_value_heads": 4,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
    },
    "qwen3_next": {
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 10,
    },
    "seed_oss": {"num_key_value_heads": 8, "head_dim": 128},
    "smollm3": {"num_key_value_heads": 4, "use_sliding_window": False, "tie_word_embeddings": True},
    "stablelm": {"num_key_value_heads": 32},
    "starcoder2": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "vaultgemma": {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "tie_word_embeddings": True,
        "sliding_window": 4096,
    },
}
"""By model_type, as in transformers 5; a default that equals an absent key is left out."""


def with_class_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """Add the class's values for absent keys; a key that is null stays null."""
    defaults = CLASS_DEFAULTS.get(str(config.get("model_type")), {})
    return {**defaults, **config}
