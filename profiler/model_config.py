"""A model's sizes from the config.json that its release carries, or what of it is not modelled."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_KEYS = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "head_dim": "head_dim",
}

_TIED = "tie_word_embeddings"

DENSE = frozenset(
    {"baichuan", "cohere", "cohere2", "ernie4_5", "exaone", "exaone4", "gemma", "gemma2"}
    | {"gemma3_text", "glm", "glm4", "granite", "helium", "internlm2", "internlm3", "llama"}
    | {"minicpm", "ministral", "mistral", "olmo", "olmo2", "olmo3", "phi3", "qwen2", "qwen3"}
    | {"seed_oss", "smollm3", "stablelm"}
)
"""Values of model_type that are decoders with gated feed-forward, and nothing else in a layer but
what other keys say: windows are looked for there."""

_TIED_UNSAID = frozenset({"cohere", "cohere2", "gemma", "gemma2", "gemma3_text"})
"""Values of model_type whose embeddings are tied where the file does not say."""

_UNGATED = "a feed-forward without gate"
_STATE_SPACE = "state-space layers"
_LINEAR = "layers of linear attention"
_EXPERTS = "a mixture of experts"
_LATENT = "latent attention (MLA)"

_MODEL_TYPES = {
    **dict.fromkeys(
        {"apertus", "arcee", "bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo"}
        | {"gpt_neox", "gptj", "mpt", "nemotron", "opt", "persimmon", "phi", "starcoder2", "xglm"},
        _UNGATED,
    ),
    **dict.fromkeys(
        {"bamba", "falcon_h1", "falcon_mamba", "jamba", "mamba", "mamba2", "nemotron_h"}
        | {"zamba", "zamba2"},
        _STATE_SPACE,
    ),
    **dict.fromkeys({"kimi_linear", "minimax", "rwkv", "rwkv5", "rwkv6", "rwkv7"}, _LINEAR),
    **dict.fromkeys(
        {"dbrx", "ernie4_5_moe", "glm4_moe", "granitemoe", "mixtral", "olmoe", "phimoe"}
        | {"qwen2_moe", "qwen3_moe"},
        _EXPERTS,
    ),
    **dict.fromkeys({"llama4", "llama4_text"}, f"attention within chunks and {_EXPERTS}"),
    **dict.fromkeys({"deepseek_v2", "deepseek_v3"}, f"{_LATENT} and {_EXPERTS}"),
    "qwen3_next": f"{_LINEAR} and {_EXPERTS}",
    "recurrent_gemma": "recurrent layers",
    "gpt_oss": "attention sinks",
    **dict.fromkeys({"bert", "roberta"}, "no decoder"),
    **dict.fromkeys({"bart", "t5"}, "an encoder and a decoder"),
}
"""What the layers of a model_type have that is not modelled; of any other not in ``DENSE`` nothing
is known."""

_COUNTS = {
    **dict.fromkeys(
        ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), _EXPERTS
    ),
    "num_nextn_predict_layers": "layers that predict further tokens",
    "num_kv_shared_layers": "layers that share keys and values",
}
"""Keys of which a number above 0 means something, of experts one above 1."""

_WIDTHS = {
    "moe_intermediate_size": _EXPERTS,
    "n_shared_experts": _EXPERTS,
    **dict.fromkeys(
        ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
        _LATENT,
    ),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), _LINEAR),
    **dict.fromkeys(("mamba_d_state", "mamba_d_ssm", "ssm_cfg", "ssm_state_size"), _STATE_SPACE),
    "text_config": "a part of a larger model: give it as a file of its own",
    "is_encoder_decoder": "an encoder and a decoder",
}
"""Keys that mean something wherever they are stated, unless null, false or 0."""

_LAYER_TYPES = {
    "linear_attention": _LINEAR,
    **dict.fromkeys(("mamba", "mamba2", "ssm"), _STATE_SPACE),
}
"""What entries of layer_types mean; full attention is known, windows and chunks have a length."""

_WINDOWS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}

_MODELLED = (
    "Modelled are dense decoders with full attention and gated feed-forward: for one of such sizes "
    "give them as flags (--hidden, --layers, …) without --model"
)


def read_model_config(path: Path, longest: int | None = None) -> dict[str, int]:
    """Read the sizes that a config.json states, by their names here; the others are left out.

    ``longest``: tokens of the longest sequence that is meant, by default
    ``max_position_embeddings``: an attention window that is no shorter changes nothing. Where
    key/value heads are not stated they are as many as the attention heads. ``ValueError`` that
    begins with the path for what is no such file, and for a model that has what is not modelled,
    with every key that says so.
    """
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path}: wants an object of sizes")
    keys_by_meaning: dict[str, list[str]] = {}
    for key, meaning in _not_modelled(config, longest):
        keys_by_meaning.setdefault(meaning, []).append(f"{key} {_shown(config[key])}")
    if keys_by_meaning:
        beyond = (f"{', '.join(keys)}: {meaning}" for meaning, keys in keys_by_meaning.items())
        raise ValueError(f"{path}: not modelled: {'; '.join(beyond)}. {_MODELLED}")
    sizes = {}
    for name, key in _KEYS.items():
        value = config.get(key, config.get(_KEYS["heads"]) if name == "kv_heads" else None)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise ValueError(f"{path}: {key} wants a whole number above 0, not {_shown(value)}")
        sizes[name] = value
    tied = config.get(_TIED)
    if tied is None:
        tied = config.get("model_type") in _TIED_UNSAID
    if type(tied) is not bool:
        raise ValueError(f"{path}: {_TIED} wants true or false, not {_shown(tied)}")
    if tied:
        sizes["tied"] = True
    return sizes


def _not_modelled(config: Mapping[str, Any], longest: int | None) -> Iterator[tuple[str, str]]:
    """Yield every key that means something which is not modelled, and what."""
    for key, meaning in _COUNTS.items():
        least = 2 if meaning == _EXPERTS else 1
        value = config.get(key)
        if value and not (isinstance(value, int) and value < least):
            yield key, meaning
    for key, meaning in _WIDTHS.items():
        if config.get(key):
            yield key, meaning
    yield from _windows(config, longest)
    model_type = config.get("model_type")
    if model_type is not None and str(model_type) not in DENSE:
        yield "model_type", _MODEL_TYPES.get(str(model_type), "layers that are not known here")


def _windows(config: Mapping[str, Any], longest: int | None) -> Iterator[tuple[str, str]]:
    """Yield the keys of layers that do not attend to the whole of ``longest`` tokens, and why."""
    layer_types = config.get("layer_types")
    kinds = set(map(str, layer_types)) if isinstance(layer_types, list) else None
    for kind in sorted(kinds or ()):
        if kind in _LAYER_TYPES or kind not in {"full_attention", *_WINDOWS}:
            yield "layer_types", _LAYER_TYPES.get(kind, f"layers of {kind}")
    if longest is None:
        stated = config.get("max_position_embeddings")
        longest = stated if type(stated) is int else None
    for kind, key in _WINDOWS.items():
        value = config.get(key)
        named = kinds is not None and kind in kinds
        if not value and not named:
            continue
        if kind == "sliding_attention" and config.get("use_sliding_window") is False:
            continue
        if kinds is not None and not named:
            continue
        if type(value) is int and longest is not None and value >= longest:
            continue
        within = "a window" if kind == "sliding_attention" else "chunks"
        of = "" if longest is None else f" of sequences of up to {longest:,} tokens"
        yield (key if value else "layer_types"), f"attention within {within}{of}"


def _shown(value: Any) -> str:
    """Write a value as JSON has it, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "…"
