"""A model's sizes from the config.json that its release carries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_KEYS = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
}


def read_model_config(path: Path) -> dict[str, int]:
    """Read the sizes that a config.json states, by their names here; the others are left out.

    Where key/value heads are not stated they are as many as the attention heads. ``ValueError``
    that begins with the path for what is no such file.
    """
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path}: wants an object of sizes")
    sizes = {}
    for name, key in _KEYS.items():
        value = config.get(key, config.get(_KEYS["heads"]) if name == "kv_heads" else None)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise ValueError(f"{path}: {key} wants a whole number above 0, not {value!r}")
        sizes[name] = value
    return sizes
