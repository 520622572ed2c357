"""Meaning of the keys and model types of a config.json: see ``config_keys.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seqplan.costs.model_files.description_file import read_fields

_LISTED: dict[str, dict[str, Any]] = read_fields(Path(__file__).with_name("config_keys.toml"))
_TYPES, _KEYS = _LISTED["types"], _LISTED["keys"]

SIZE_KEYS: dict[str, list[str]] = _LISTED["sizes"]
STATE_KEYS: dict[str, list[str]] = _LISTED["states"]
GATED, UNGATED, SPARSE, EXPERTS_OF_FFN = (
    frozenset[str](_TYPES[name]) for name in ("gated", "ungated", "sparse", "experts_of_ffn")
)
SLIDING_PERIOD: dict[str, int] = _LISTED["sliding_period"]
BEYOND: dict[str, str] = {kind: why for why, of in _LISTED["beyond"].items() for kind in of}
TEXT_TYPES: dict[str, str] = _LISTED["text_types"]
UNSUPPORTED: dict[str, str] = {key: why for why, of in _LISTED["unsupported"].items() for key in of}
EXPERT_COUNTS, SHARED_WIDTHS, TEXT_CONFIGS, LAYER_TYPES = (
    tuple[str, ...](_KEYS[name])
    for name in ("expert_counts", "shared_widths", "text_configs", "layer_types")
)
FURTHER_LAYERS = "num_nextn_predict_layers"
MODELLED = frozenset[str](_KEYS["modeled"]).union(*SIZE_KEYS.values(), *STATE_KEYS.values())
_WITHOUT_EFFECT = frozenset[str](_KEYS["without_effect"])
_ENDINGS_WITHOUT_EFFECT = tuple[str, ...](_KEYS["endings_without_effect"])


def without_effect(key: str, value: Any) -> bool:
    """Whether a key does not change the cost of layers: absent in effect, or known so."""
    if value is None or value is False or value in (0, "", [], {}):
        return True
    if key == "mlp_type" and value == "default":  # StarCoder2: two matrices
        return True
    return key in _WITHOUT_EFFECT or key.endswith(_ENDINGS_WITHOUT_EFFECT)
