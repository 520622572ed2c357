"""Meaning of the keys and model types of a config.json: modeled, without effect, or rejected."""

from __future__ import annotations

from typing import Any

SIZE_KEYS = {
    "hidden": ("hidden_size", "n_embd"),
    "layers": ("num_hidden_layers", "n_layer"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "ffn": ("intermediate_size", "n_inner"),
    "vocab": ("vocab_size",),
    "head_dim": ("head_dim",),
}
"""The keys of a size, the usual one first."""

STATE_KEYS = {
    "state_heads": ("mamba_num_heads", "mamba_n_heads"),
    "state_head_dim": ("mamba_head_dim", "mamba_d_head"),
    "state_size": ("ssm_state_size", "mamba_d_state"),
    "state_groups": ("n_groups", "mamba_n_groups"),
    "state_conv": ("conv_kernel", "mamba_d_conv"),
    "state_chunk": ("chunk_size", "mamba_chunk_size"),
}
"""The keys of a size of state-space layers (Mamba 2), NVIDIA's first."""

GATED = frozenset(
    {"baichuan", "cohere", "cohere2", "ernie4_5", "exaone", "exaone4", "gemma", "gemma2"}
    | {"gemma3_text", "glm", "glm4", "granite", "helium", "internlm2", "internlm3", "llama"}
    | {"minicpm", "ministral", "mistral", "olmo", "olmo2", "olmo3", "phi3", "qwen2", "qwen3"}
    | {"bamba", "iquestcoder", "ministral3", "seed_oss", "smollm3", "stablelm", "vaultgemma"}
    | {"qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text"}
)
"""Values of model_type that are decoders with a gated feed-forward, and nothing else in a layer but
the parts that other keys add."""

UNGATED = frozenset(
    {"apertus", "arcee", "gpt2", "gpt_neox", "jais2", "nemotron", "nemotron_h", "persimmon"}
    | {"phi"}
    | {"starcoder2"}
)
"""Those whose feed-forward has two matrices."""

SPARSE = frozenset(
    {"deepseek_v2", "deepseek_v3", "ernie4_5_moe", "flex_olmo", "glm4_moe", "gpt_oss"}
    | {
        "granitemoe",
        "granitemoehybrid",
        "kimi_k2",
        "llama4_text",
        "minimax_m2",
        "mixtral",
        "olmoe",
        "phimoe",
    }
    | {"qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_vl_moe_text"}
)
"""Those with experts, wherever other keys place them."""

EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Keys of the number of experts."""

SHARED_WIDTHS = (
    *("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
    "shared_intermediate_size",
)
"""Keys of the width of the feed-forward that runs next to experts."""

EXPERTS_OF_FFN = frozenset(
    {
        "flex_olmo",
        "gpt_oss",
        "granitemoe",
        "granitemoehybrid",
        "llama4_text",
        "minimax_m2",
        "mixtral",
        "olmoe",
    }
    | {"phimoe"}
)
"""Those whose experts are as wide as ``intermediate_size``."""

SLIDING_PERIOD = {
    "cohere2": 4,
    "gemma2": 2,
    "gemma3_text": 6,
    "gpt_oss": 2,
    "olmo3": 4,
    "vaultgemma": 2,
}
"""Of so many layers the last has full attention and the others a window, if neither layer_types
nor sliding_window_pattern states it."""

_STATE_SPACE = "state-space layers of a kind that is not known here"
_LINEAR = "layers of linear attention of a kind that is not known here"

BEYOND = {
    **dict.fromkeys(
        {"falcon_h1", "falcon_mamba", "jamba", "mamba", "mamba2", "zamba", "zamba2"},
        _STATE_SPACE,
    ),
    **dict.fromkeys({"kimi_linear", "minimax", "rwkv", "rwkv5", "rwkv6", "rwkv7"}, _LINEAR),
    "dbrx": "experts whose sizes are nested",
    "recurrent_gemma": "recurrent layers",
    **dict.fromkeys({"bert", "roberta"}, "no decoder"),
    **dict.fromkeys({"bart", "t5"}, "an encoder and a decoder"),
}
"""Unmodeled parts of the layers of a model_type; of types that are not above either, nothing
is known."""

TEXT_CONFIGS = ("text_config", "llm_config")
"""Keys of the text's part in a model of images or sound and text."""

TEXT_TYPES = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
"""Model types whose files may state the text's sizes at the top, and the types of their text."""

FURTHER_LAYERS = "num_nextn_predict_layers"

UNSUPPORTED = {
    "num_kv_shared_layers": "layers that share keys and values",
    "vision_config": "images, without a text_config: give the text's part as a separate file",
    "is_encoder_decoder": "an encoder and a decoder",
    **dict.fromkeys(("mamba_d_ssm", "ssm_cfg", "state_size"), _STATE_SPACE),
    **dict.fromkeys(("zero_expert_num", "num_zero_experts"), "experts that do nothing"),
}
"""Keys that mean something which is not modeled, unless null, false or 0."""

LAYER_TYPES = (
    *("full_attention", "sliding_attention", "chunked_attention", "linear_attention"),
    *("attention", "mamba", "state_space"),
)
"""Entries of layer_types that are modeled."""

MODELLED = frozenset(
    {key for keys in SIZE_KEYS.values() for key in keys}
    | {"model_type", "tie_word_embeddings", "max_position_embeddings", "n_positions", "n_ctx"}
    | {"layer_types", "sliding_window", "sliding_window_pattern", "use_sliding_window"}
    | {"_sliding_window_pattern"}
    | {"max_window_layers", "attention_chunk_size", "no_rope_layers", "no_rope_layer_interval"}
    | {"full_attention_interval", "linear_conv_kernel_dim", "linear_key_head_dim"}
    | {"linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim"}
    | {"kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"}
    | {"qk_head_dim", "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"}
    | {"num_experts_per_tok", "experts_per_token", "moe_k", "moe_intermediate_size"}
    | {"shared_expert_intermediate_size", "n_shared_experts", "moe_num_shared_experts"}
    | {"num_shared_experts", "decoder_sparse_step", "mlp_only_layers", "first_k_dense_replace"}
    | {"moe_layer_freq", "moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"}
    | {"interleave_moe_layer_step", "intermediate_size_mlp", "moe_layers"}
    | {"attn_output_gate", "n_group", "topk_group", "shared_intermediate_size"}
    | {"layers_block_type", "hybrid_override_pattern", "attn_layer_indices"}
    | {key for keys in STATE_KEYS.values() for key in keys}
    | {"expand", "mamba_expand", "moe_shared_expert_intermediate_size"}
    | {"moe_latent_size"}
)

_WITHOUT_EFFECT = frozenset(
    {"architectures", "auto_map", "activation_function", "hidden_act", "hidden_activation"}
    | {"hidden_act_mlp", "torch_dtype", "dtype", "transformers_version", "_name_or_path", "name"}
    | {"use_cache", "cache_implementation", "quantization_config", "pretraining_tp", "rotary_pct"}
    | {"attn_implementation", "_attn_implementation", "attn_type", "task_specific_params"}
    | {"original_max_position_embeddings", "initial_context_length", "seq_length", "logit_scale"}
    | {"max_sequence_length", "model_max_length", "rope_scaling", "rope_parameters", "rope_ratio"}
    | {"rope_type", "rope_interleave", "rotary_emb_base", "rotary_dim", "partial_rotary_factor"}
    | {"rope_local_base_freq", "clip_qkv", "qkv_bias", "attn_logit_softcapping"}
    | {"final_logit_softcapping", "query_pre_attn_scalar", "swiglu_limit", "swiglu_alpha"}
    | {"norm_topk_prob", "norm_type", "topk_method", "scoring_func"}
    | {"seq_aux", "aux_loss_alpha", "ep_size", "output_router_logits", "router_jitter_noise"}
    | {"input_jitter_noise", "use_qk_norm", "qk_layernorm", "use_parallel_residual"}
    | {"parallel_attn", "scale_emb", "dim_model_base", "scale_depth", "mup_denominator"}
    | {"attn_temperature_tuning", "floor_scale", "attn_scale", "for_llm_compressor"}
    | {"residual_in_fp32", "head_type", "tie_encoder_decoder", "bad_words_ids", "n_special"}
    | {"scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"}
    | {"predict_special_tokens", "summary_type", "summary_use_proj", "summary_activation"}
    | {"summary_proj_to_labels", "summary_first_dropout", "id2label", "label2id", "problem_type"}
    | {"output_attentions", "output_hidden_states", "use_return_dict", "return_dict"}
    | {"moe_norm_min", "moe_capacity", "moe_gate", "moe_use_aux_free", "qk_norm"}
    | {
        "sliding_window_size",
        "use_bidirectional_attention",
        "model_version",
        "is_decoder",
        "chunk_size_feed_forward",
    }
    | {"mlp_hidden_act", "mamba_hidden_act", "use_mamba_kernels", "mamba_ssm_cache_dtype"}
    | {"time_step_min", "time_step_max", "time_step_limit", "time_step_floor", "time_step_rank"}
    | {"rescale_prenorm_residual", "num_logits_to_keep", "moe_shared_expert_overlap"}
    | {"mtp_layers_block_type", "mtp_hybrid_override_pattern", "position_embedding_type"}
    | {"embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"}
)
_ENDINGS_WITHOUT_EFFECT = (
    *("_token_id", "_token_ids", "_token_index", "_dropout", "_pdrop", "_drop", "dropout_rate"),
    *("_eps", "_epsilon", "_bias", "_theta", "_coef", "_range", "_std", "_beta", "_factor"),
)


def without_effect(key: str, value: Any) -> bool:
    """Whether a key does not change the cost of layers: absent in effect, or known so."""
    if value is None or value is False or value in (0, "", [], {}):
        return True
    if key == "mlp_type" and value == "default":  # StarCoder2: two matrices
        return True
    return key in _WITHOUT_EFFECT or key.endswith(_ENDINGS_WITHOUT_EFFECT)
