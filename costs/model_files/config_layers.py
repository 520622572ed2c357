"""Which layers of a config.json have windows, chunks, states, experts, latent keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from seqplan.costs.model_files.config_keys import (
    EXPERT_COUNTS,
    EXPERTS_OF_FFN,
    LAYER_TYPES,
    SHARED_WIDTHS,
    SLIDING_PERIOD,
    SPARSE,
    STATE_KEYS,
    UNGATED,
)

MOST_LAYERS = 100_000


class ConfigError(ValueError):
    """A key of a config.json that is wrong or not modeled: ``key`` and why."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key, self.why = key, why


_BLOCKS = {
    **dict.fromkeys(("M", "mamba", "linear_attention"), "state_space"),
    **dict.fromkeys(("*", "attention", "full_attention"), "full_attention"),
    **dict.fromkeys(("E", "moe"), "moe"),
    **dict.fromkeys(("-", "mlp"), "mlp"),
}


def merge_blocks(config: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the blocks of a nemotron_h into layers: a mixer, and the feed-forward after it.

    Returns the keys that state so: ``bare_layers`` counts mixers that another mixer follows.
    """
    keys = ("layers_block_type", "layer_types", "hybrid_override_pattern")
    key = next((key for key in keys if config.get(key)), keys[0])
    blocks = config.get(key)
    known = isinstance(blocks, (list, str)) and all(block in _BLOCKS for block in blocks)
    if not blocks or not known:
        raise ConfigError(key, "must be blocks: M, *, E and -, or their names")
    mixers: list[str] = []
    fed: dict[int, str] = {}
    for block in blocks:
        kind, last = _BLOCKS[block], len(mixers) - 1
        if kind not in ("moe", "mlp"):
            mixers.append(kind)
        elif last < 0 or last in fed:
            raise ConfigError(key, "has a feed-forward that follows no mixer: not known here")
        else:
            fed[last] = kind
    return {
        "num_hidden_layers": len(mixers),
        "layer_types": mixers,
        "moe_layers": [layer for layer, kind in fed.items() if kind == "moe"],
        "bare_layers": len(mixers) - len(fed),
    }


class ConfigLayers:
    """Reads the sizes of an ``Architecture`` from a config; ``ConfigError`` for wrong keys.

    ``longest``: tokens of the longest sequence: a window or chunk that is no shorter is left out.
    """

    def __init__(self, config: Mapping[str, Any], layers: int, longest: int | None) -> None:
        if layers > MOST_LAYERS:
            raise ConfigError("num_hidden_layers", f"must be at most {MOST_LAYERS:,}")
        self.config, self.layers = config, layers
        self.kind = str(config.get("model_type"))
        stated = config.get("max_position_embeddings")
        self.longest = longest or (stated if type(stated) is int else None)

    def sizes(self) -> dict[str, Any]:
        """Return every size that is not that of a dense decoder, by name."""
        sizes: dict[str, Any] = {**self._attention(), **self._latent(), **self._experts()}
        if self.kind == "granitemoehybrid" and not sizes.get("experts"):
            sizes["ffn"] = self.whole("shared_intermediate_size")
        if bare := self.whole("bare_layers"):
            sizes["bare_layers"] = bare
        if self.kind in UNGATED:
            sizes["ungated"] = True
        if self.kind == "gpt_oss":
            sizes["sinks"] = True
        if self.kind == "llama4_text" and (dense := self.whole("intermediate_size_mlp")):
            sizes["ffn"] = dense
        if self.kind == "gpt2":
            sizes["positions"] = self.whole("n_positions") or self.whole("n_ctx") or 1024
        if self.kind == "qwen3_next" or self.config.get("attn_output_gate"):
            sizes["attention_gate"] = True
        return sizes

    def whole(self, key: str) -> int:
        """Return a whole number, 0 if it is absent, null or false."""
        value = self.config.get(key)
        if value is None or value is False:
            return 0
        if type(value) is not int or value < 0:
            raise ConfigError(key, "must be a whole number")
        return value

    def _attention(self) -> dict[str, Any]:
        """Count layers by kind of attention."""
        kinds = Counter(self._kinds())
        sizes: dict[str, Any] = {}
        for kind, name, key in (
            ("sliding_attention", "window", "sliding_window"),
            ("chunked_attention", "chunk", "attention_chunk_size"),
        ):
            reach = self.whole(key)
            if kinds[kind] and not reach:
                raise ConfigError("layer_types", f"has {kind}, and {key} does not state how long")
            if kinds[kind] and (self.longest is None or reach < self.longest):
                sizes[f"{name}_layers"], sizes[name] = kinds[kind], reach
        if kinds["linear_attention"]:
            sizes |= {
                "linear_layers": kinds["linear_attention"],
                "linear_key_heads": self.whole("linear_num_key_heads"),
                "linear_value_heads": self.whole("linear_num_value_heads"),
                "linear_key_dim": self.whole("linear_key_head_dim"),
                "linear_value_dim": self.whole("linear_value_head_dim"),
                "linear_conv": self.whole("linear_conv_kernel_dim"),
            }
        if kinds["state_space"]:
            sizes |= {"state_layers": kinds["state_space"], **self._states()}
        return sizes

    def _states(self) -> dict[str, int]:
        """Read the sizes of state-space layers; heads are as wide as needed if that is absent."""
        sizes = {}
        for name, keys in STATE_KEYS.items():
            key = next((key for key in keys if self.config.get(key) not in (None, "auto")), None)
            sizes[name] = self.whole(key) if key else 0
        if not sizes["state_head_dim"] and sizes["state_heads"]:
            expanded = (self.whole("mamba_expand") or 2) * self.whole("hidden_size")
            sizes["state_head_dim"] = expanded // sizes["state_heads"]
        for name, keys in STATE_KEYS.items():
            if not sizes[name]:
                raise ConfigError(keys[-1], "is missing, and state-space layers want it")
        return sizes

    def _kinds(self) -> list[str]:
        """List the kind of attention of each layer."""
        stated = self.config.get("layer_types")
        if self.kind == "bamba":
            attending = self.config.get("attn_layer_indices") or []
            if type(attending) is not list:
                raise ConfigError("attn_layer_indices", "must be a list of layers")
            return [
                "full_attention" if layer in attending else "state_space"
                for layer in range(self.layers)
            ]
        if stated is not None:
            return self._read_listed(stated)
        if self.kind == "granitemoehybrid":
            return ["state_space"] * self.layers
        if self.kind == "qwen3_next":
            period = self.whole("full_attention_interval") or 4
            return [
                "linear_attention" if (layer + 1) % period else "full_attention"
                for layer in range(self.layers)
            ]
        if self.whole("linear_num_key_heads"):
            raise ConfigError("linear_num_key_heads", "layer_types does not state which layers")
        if self.whole("attention_chunk_size"):
            return self._read_chunked()
        if not self.whole("sliding_window") or self.config.get("use_sliding_window") is False:
            return ["full_attention"] * self.layers
        sliding = self._read_sliding()
        return ["sliding_attention" if slides else "full_attention" for slides in sliding]

    def _read_listed(self, stated: Any) -> list[str]:
        """Read ``layer_types``, a kind for each layer."""
        if type(stated) is not list or len(stated) < self.layers:
            raise ConfigError("layer_types", f"must be a list of {self.layers} kinds")
        for kind in stated:
            if kind not in LAYER_TYPES:
                raise ConfigError("layer_types", f"layers of {kind} are not known here")
        renamed = {"attention": "full_attention", "mamba": "state_space"}
        if self.kind == "granitemoehybrid":
            renamed["linear_attention"] = "state_space"
        return [renamed.get(kind, str(kind)) for kind in stated[: self.layers]]

    def _read_sliding(self) -> list[bool]:
        """Read which layers have a sliding window: by the rule of the type, or by a pattern."""
        if self.config.get("use_sliding_window") is True:
            first = self.whole("max_window_layers")
            rotary = self._list_rotary(4) if self.kind == "smollm3" else []
            rules: dict[str, Callable[[int], bool]] = {
                "others": lambda layer: layer >= first,
                "qwen2_moe": lambda layer: layer < first and layer % 2 == 0,
                "qwen3_moe": lambda layer: True,
                "smollm3": lambda layer: not rotary[layer],
            }
            slides = rules[self.kind if self.kind in rules else "others"]
            return [slides(layer) for layer in range(self.layers)]
        pattern = self.config.get("_sliding_window_pattern", SLIDING_PERIOD.get(self.kind))
        pattern = self.config.get("sliding_window_pattern", pattern)
        if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
            return [pattern[layer % len(pattern)] == "L" for layer in range(self.layers)]
        if type(pattern) is int and pattern > 0:
            return [(layer + 1) % pattern != 0 for layer in range(self.layers)]
        if pattern is None:
            return [True] * self.layers
        raise ConfigError("sliding_window_pattern", "must be a whole number or L and G")

    def _read_chunked(self) -> list[str]:
        """Llama 4: layers with rotary positions attend within chunks, the others to all."""
        rotary = self._list_rotary(4 if "llama4" in self.kind else 0)
        return ["chunked_attention" if rotates else "full_attention" for rotates in rotary]

    def _list_rotary(self, interval: int) -> list[bool]:
        """List which layers have rotary positions; ``interval``: of those without, by default."""
        stated = self.config.get("no_rope_layers")
        if type(stated) is list and len(stated) >= self.layers:
            return [bool(value) for value in stated[: self.layers]]
        period = self.whole("no_rope_layer_interval") or interval
        return [not period or (at + 1) % period != 0 for at in range(self.layers)]

    def _latent(self) -> dict[str, Any]:
        if not self.whole("kv_lora_rank"):
            return {}
        return {
            "kv_rank": self.whole("kv_lora_rank"),
            "query_rank": self.whole("q_lora_rank"),
            "rope_dim": self.whole("qk_rope_head_dim"),
            "nope_dim": self.whole("qk_nope_head_dim"),
            "value_dim": self.whole("v_head_dim"),
        }

    def _experts(self) -> dict[str, Any]:
        """Count layers with experts and how wide these are."""
        counts = [(key, self.whole(key)) for key in EXPERT_COUNTS]
        count_key, count = max(counts, key=lambda pair: pair[1])
        if self.kind in SPARSE and all(self.config.get(key) is None for key in EXPERT_COUNTS):
            keys = ", ".join(EXPERT_COUNTS)
            raise ConfigError("model_type", f"the number of experts is missing. Add one of {keys}")
        if count < 2:
            return {}
        chosen = self.whole("num_experts_per_tok") or self.whole("moe_k")
        width_key = "intermediate_size" if self.kind in EXPERTS_OF_FFN else "moe_intermediate_size"
        width = self.whole(width_key)
        if not chosen or not width:
            missing = "num_experts_per_tok" if not chosen else width_key
            raise ConfigError(count_key, f"{count} experts want {missing} next to them")
        shared = self.whole("n_shared_experts") or self.whole("moe_num_shared_experts")
        shared = shared or self.whole("num_shared_experts")
        if self.kind == "llama4_text":
            shared = 1
        layers = sum(self._sparse(layer) for layer in range(self.layers))
        if not layers:
            return {}
        return {
            "expert_layers": layers,
            "experts": count,
            "experts_per_token": chosen,
            "expert_ffn": width,
            "shared_ffn": next(
                (wide for key in SHARED_WIDTHS if (wide := self.whole(key))), shared * width
            ),
            "expert_bias": self.kind == "gpt_oss",
            "expert_latent": self.whole("moe_latent_size"),
            **self._groups(),
        }

    def _groups(self) -> dict[str, int]:
        """Return the groups that routing limits a token's experts to, if there are several."""
        groups, chosen = self.whole("n_group"), self.whole("topk_group")
        limited = 0 < chosen < groups
        return {"expert_groups": groups, "groups_per_token": chosen} if limited else {}

    def _sparse(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has experts."""
        config = self.config
        listed = config.get("moe_layers")
        if type(listed) is list:
            return layer in listed
        dense = config.get("mlp_only_layers") or []
        if type(dense) is not list:
            raise ConfigError("mlp_only_layers", "must be a list of layers")
        if layer in dense:
            return False
        first = self.whole("first_k_dense_replace") or self.whole("moe_layer_start_index")
        last = config.get("moe_layer_end_index")
        if layer < first or (type(last) is int and 0 <= last < layer):
            return False
        frequency = config.get("moe_layer_freq")
        if type(frequency) is list:
            return layer < len(frequency) and bool(frequency[layer])
        if layer % (self.whole("moe_layer_freq") or 1):
            return False
        step = self.whole("decoder_sparse_step") or self.whole("interleave_moe_layer_step")
        step = step or self.whole("moe_layer_interval")
        return (layer + 1) % (step or 1) == 0
