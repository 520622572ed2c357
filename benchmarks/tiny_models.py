"""Tiny causal language models of many architectures, with random weights, for ``architectures``."""

from __future__ import annotations

from typing import Any

VOCAB = 97

SEED = 200
"""Of the first rank's weights. With some seeds, rounding puts a token on the other side of a ReLU's
kink (opt) or to another expert (granitemoe) in one of the ten steps, which norms show by 1e-5."""

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_WIDE = {"head_dim": 16}
_FULL = {"layer_types": ["full_attention"] * 2}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_MLA = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
}
_ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
}
_LLAMA4 = {
    **_WIDE,
    "num_local_experts": 4,
    "intermediate_size_mlp": 96,
    "no_rope_layers": [1, 0],
    "floor_scale": 32,  # so that its tuning changes within these documents
}
_SLIDING = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
_ROUTER_LOSS = {"output_router_logits": True, "router_aux_loss_coef": 0.1}
_GPT_OSS = {**_WIDE, "num_local_experts": 4, "num_experts_per_tok": 2}


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **parameters}}


_LLAMA3_ROPE = _rope(
    "llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
_LONGROPE = _rope(
    "longrope", short_factor=[1.0] * 8, long_factor=[4.0] * 8, original_max_position_embeddings=64
)
_GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512, "n_inner": 96}
_NO_DROPOUT = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}

MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, tied": {"tie_word_embeddings": True},
    "llama, rope llama3": _LLAMA3_ROPE,
    "llama, rope dynamic": {"max_position_embeddings": 64, **_rope("dynamic", factor=4.0)},
    "phi3, rope longrope": {"original_max_position_embeddings": 64, **_LONGROPE},
    "llama, rope yarn": _rope("yarn", factor=4.0, original_max_position_embeddings=128),
    "qwen2": {},
    "qwen3": _WIDE,
    "mistral": {**_WIDE, "sliding_window": None},
    "ministral": _WIDE,
    "gemma": _WIDE,
    "gemma2, no caps": {**_WIDE, **_FULL, "attn_logit_softcapping": None},
    "gemma3_text": _WIDE,
    "phi": {},
    "phi3": {},
    "gpt2": {**_GPT2, **_NO_DROPOUT},
    "gpt_neox": {},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64, "dropout": 0.0},
    "stablelm": {},
    "starcoder2": {"sliding_window": None},
    "olmo": {},
    "olmo2": {},
    "olmo3": {},
    "smollm3": {},
    "glm": _WIDE,
    "glm4": _WIDE,
    "granite": {},
    "cohere": {},
    "cohere2": _WIDE,
    "helium": _WIDE,
    "exaone4": {},
    "ernie4_5": _WIDE,
    "hunyuan_v1_dense": _WIDE,
    "arcee": {},
    "nemotron": {},
    "seed_oss, no dropout": {**_WIDE, "attention_dropout": 0.0, "residual_dropout": 0.0},
    "mixtral": {"num_local_experts": 4, "sliding_window": None},
    "qwen2_moe": {**_MOE, "shared_expert_intermediate_size": 32},
    "qwen3_moe": {**_WIDE, **_MOE},
    "qwen3_moe, router loss": {**_WIDE, **_MOE, **_ROUTER_LOSS},
    "mixtral, router loss": {"num_local_experts": 4, "num_experts_per_tok": 2, **_ROUTER_LOSS},
    "gpt_oss, router loss": {**_GPT_OSS, **_SLIDING, **_ROUTER_LOSS},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "glm4_moe": {**_WIDE, **_ROUTED},
    "deepseek_v2": {**_MLA, **_ROUTED, "head_dim": 8, "topk_method": "greedy"},
    "deepseek_v3": {**_MLA, **_ROUTED},
    "llama4_text, no tuning": {**_LLAMA4, "attn_temperature_tuning": False},
    "mistral, window of 64": {**_WIDE, "sliding_window": 64},
    "ministral, window of 64": {**_WIDE, **_SLIDING},
    "gemma2": _WIDE,
    "gemma2, window of 64": {**_WIDE, **_SLIDING},
    "gemma3_text, window of 64": {**_WIDE, **_SLIDING},
    "olmo3, window of 64": _SLIDING,
    "exaone4, window of 64": _SLIDING,
    "afmoe": {**_WIDE, **_MOE, **_FULL, "num_dense_layers": 1},
    "jetmoe": {"kv_channels": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": _GPT_OSS,
    "gpt_oss, window of 64": {**_GPT_OSS, **_SLIDING},
    "llama4_text": _LLAMA4,
    "llama4_text, chunks of 64": {**_LLAMA4, "attention_chunk_size": 64},
}
"""By ``model_type``, and its special feature."""

REJECTED: dict[str, dict[str, Any]] = {
    "seed_oss": _WIDE,
    "qwen3_next": {
        **_WIDE,
        **_MOE,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    },
    "mamba": {"state_size": 4},
    "jamba": {"mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False, **_MOE},
    "falcon_h1": {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_ssm": 128, "mamba_d_state": 16},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "recurrent_gemma": {"lru_width": 64, "num_hidden_layers": 3},
    "rwkv": {"attention_hidden_size": 64},
    "doge": {},
    "bloom": {"n_layer": 2, "n_head": 4},
    "mpt": {"d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 512},
    "falcon, alibi": {"alibi": True, "new_decoder_architecture": False},
}


def tiny_model(name: str, seed: int, attention: str = "eager") -> Any:
    """Make the model of a name in one of the tables, in fp32."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    changes = (MODELS | REJECTED)[name]
    config = AutoConfig.for_model(name.split(",")[0], **{**_BASE, **changes})
    torch.manual_seed(SEED + seed)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention)
