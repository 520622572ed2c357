"""``--model``: a model by name, by its Hugging Face config, or by its sizes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from seqplan.api.cli.terminal import positive
from seqplan.profiler.analytic.models import PRESETS

SIZES = ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab")

SMALL = {"hidden": 512, "layers": 8, "heads": 8, "kv_heads": 4, "ffn": 1408, "vocab": 8192}
"""A model for trying things on a CPU."""

NAMES = {"small": SMALL, **PRESETS}
"""Models known by name."""

_CONFIG = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
}


def add_model(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add ``--model`` and a flag for every size."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="NAME|FILE",
        required=required,
        help=f"{', '.join(NAMES)}, or a config.json",
    )
    for size in SIZES:
        group.add_argument(f"--{size.replace('_', '-')}", metavar="N", type=positive)


def sizes_of(args: argparse.Namespace) -> dict[str, int]:
    """The sizes that were asked for, single flags over those of the named model.

    ``ValueError`` for an unknown name, a file that is no config, or a size that is missing.
    """
    sizes = dict(_named(args.model)) if args.model else {}
    sizes.update({size: value for size in SIZES if (value := getattr(args, size)) is not None})
    if missing := [size for size in SIZES if size not in sizes]:
        raise ValueError(
            f"model: {', '.join(missing)} not given; name a --model or give every size"
        )
    return sizes


def _named(name: str) -> dict[str, int]:
    if name in NAMES:
        return NAMES[name]
    path = Path(name)
    if path.suffix != ".json":
        raise ValueError(
            f"--model {name!r}: neither a known model ({', '.join(NAMES)}) nor a config.json"
        )
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path}: wants an object of sizes")
    found = {}
    for size, key in _CONFIG.items():
        value = config.get(key, config.get("num_attention_heads") if size == "kv_heads" else None)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise ValueError(f"{path}: {key} wants a whole number above 0, not {value!r}")
        found[size] = value
    return found
