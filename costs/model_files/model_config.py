"""A model's sizes from the config.json of its release, or its unsupported parts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seqplan.costs.model_files.config_defaults import with_class_defaults
from seqplan.costs.model_files.config_keys import (
    BEYOND,
    FURTHER_LAYERS,
    GATED,
    MODELLED,
    SIZE_KEYS,
    SPARSE,
    TEXT_CONFIGS,
    TEXT_TYPES,
    UNGATED,
    UNSUPPORTED,
    without_effect,
)
from seqplan.costs.model_files.config_layers import ConfigError, ConfigLayers, merge_blocks
from seqplan.costs.model_files.description_file import read_fields

_TIED = "tie_word_embeddings"

_FIX = (
    "A file can state sizes by their names here (hidden, layers, …); a key without effect on "
    "the layers can be taken out of the file"
)


def read_model_config(path: Path, longest: int | None = None) -> dict[str, Any]:
    """Read the sizes that a config.json states, as ``read_config``.

    ``ValueError``, which begins with the path, also for a file that cannot be read.
    """
    return read_config(read_fields(path), str(path), longest)


def read_config(config: dict[str, Any], origin: str, longest: int | None = None) -> dict[str, Any]:
    """Read the sizes that a configuration states, by their names here; others are left out.

    ``longest``: tokens of the longest sequence that is meant, by default
    ``max_position_embeddings``: an attention window that is no shorter changes nothing. An absent
    key has the value of its model_type's class in transformers. Of a model of images and text the
    text's part is read, and layers that predict further tokens are not: ``left_out`` states such
    parts. ``ValueError``, which begins with ``origin``, for a model with unsupported parts: it
    lists every such key, and the keys that are not known here.
    """
    config, left_out = _choose_part(config)
    keys_by_meaning: dict[str, list[str]] = {}
    for key, meaning in _list_unsupported(config):
        keys_by_meaning.setdefault(meaning, []).append(f"{key} {_shown(config[key])}")
    if keys_by_meaning:
        beyond = (f"{', '.join(keys)}: {meaning}" for meaning, keys in keys_by_meaning.items())
        raise ValueError(f"{origin}: not modeled: {'; '.join(beyond)}. {_FIX}")
    config = with_class_defaults(config)
    try:
        if config.get("model_type") == "nemotron_h":
            config |= merge_blocks(config)
        sizes = _sizes(config)
        if "layers" in sizes:
            sizes |= ConfigLayers(config, sizes["layers"], longest).sizes()
    except ConfigError as error:
        key, value = error.key, _shown(config.get(error.key))
        if error.why.startswith("must be"):
            raise ValueError(f"{origin}: {key} {error.why}: {value}") from None
        raise ValueError(f"{origin}: {key} {value}: {error.why}") from None
    return sizes | {"left_out": left_out} if left_out else sizes


def _choose_part(config: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Choose the part of a model to plan, and list the parts left out."""
    left_out: list[str] = []
    for key in TEXT_CONFIGS:
        if isinstance(text := config.get(key), dict):
            others = [name for name, value in config.items() if name != key and _is_part(value)]
            left_out.append(f"parts of the model next to its {key}: {', '.join(others) or 'none'}")
            config = text | {name: config[name] for name in (_TIED,) if name in config}
            break
    if (kind := str(config.get("model_type"))) in TEXT_TYPES and "vision_config" in config:
        left_out.append("parts of the model next to its text: vision_config")
        text = {key: value for key, value in config.items() if key != "vision_config"}
        config = text | {"model_type": TEXT_TYPES[kind]}
    if config.get(FURTHER_LAYERS):
        left_out.append(
            f"layers that predict further tokens ({FURTHER_LAYERS} {config[FURTHER_LAYERS]}), "
            "which transformers does not run"
        )
        config = {key: value for key, value in config.items() if key != FURTHER_LAYERS}
    return config, tuple(left_out)


def _is_part(value: Any) -> bool:
    """Whether a key's value is the configuration of a part of the model."""
    return isinstance(value, dict) and any(key.endswith("hidden_size") for key in value)


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    """Read the sizes of a dense decoder."""
    sizes: dict[str, Any] = {}
    for name, keys in SIZE_KEYS.items():
        key = next((key for key in keys if config.get(key) is not None), None)
        if key is None:
            continue
        if type(config[key]) is not int or config[key] < 1:
            raise ConfigError(key, "must be a whole number above 0")
        sizes[name] = config[key]
    if "heads" in sizes:
        sizes.setdefault("kv_heads", sizes["heads"])
    kind = str(config.get("model_type"))
    if kind == "gpt2" and "hidden" in sizes:
        sizes.setdefault("ffn", 4 * sizes["hidden"])
    if config.get("kv_lora_rank"):
        sizes.pop("head_dim", None)  # the rotary part of one, if it is stated
    tied = config.get(_TIED, False)
    if type(tied) is not bool:
        raise ConfigError(_TIED, "must be true or false")
    if tied:
        sizes["tied"] = True
    return sizes


def _list_unsupported(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every key whose meaning is not modeled, and the meaning."""
    for key, meaning in UNSUPPORTED.items():
        if config.get(key):
            yield key, meaning
    model_type = config.get("model_type")
    if model_type is not None and str(model_type) not in GATED | UNGATED | SPARSE:
        yield "model_type", BEYOND.get(str(model_type), "layers that are not known here")
        return
    for key, value in config.items():
        if key not in MODELLED and key not in UNSUPPORTED and not without_effect(key, value):
            yield key, "not known here"


def _shown(value: Any) -> str:
    """Write a value as JSON has it, cut if it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "…"
