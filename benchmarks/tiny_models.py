"""Tiny causal language models of many architectures, with random weights, for ``architectures``.

``tiny_models.json`` has the changes of each model: names of parts, and further fields. Its
``floor_scale`` is so small that the tuning of llama4 changes within these documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SEED = 200
"""Of the first rank's weights. With some seeds, rounding puts a token on the other side of a ReLU's
kink (opt) or to another expert (granitemoe) in one of the ten steps, which norms show by 1e-5."""

_FILE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def _merge(parts: Iterable[str | dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for part in parts:
        merged |= _FILE["parts"][part] if isinstance(part, str) else part
    return merged


VOCAB: int = _FILE["base"]["vocab_size"]
MODELS = {name: _merge(parts) for name, parts in _FILE["models"].items()}
"""Changes by ``model_type``, and its special feature."""

REJECTED = {name: _merge(parts) for name, parts in _FILE["rejected"].items()}


def make_tiny_model(name: str, seed: int, attention: str = "eager") -> Any:
    """Make the model of a name in one of the tables, in fp32."""
    config = AutoConfig.for_model(
        name.split(",")[0], **{**_FILE["base"], **(MODELS | REJECTED)[name]}
    )
    torch.manual_seed(SEED + seed)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention)
