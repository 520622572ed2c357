"""A model by name, by its release's config.json, or by a file of sizes by their names here."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from seqplan.costs.model_files.config_keys import SIZE_KEYS
from seqplan.costs.model_files.description_file import (
    SUFFIXES,
    check_fields,
    check_integer,
    read_fields,
)
from seqplan.costs.model_files.listed_models import MODELS, find_release
from seqplan.costs.model_files.model_config import read_model_config
from seqplan.costs.model_sizes import SIZES

FIELDS = ("base", *SIZES, "head_dim", "tied")
"""Fields of a file of sizes: ``base`` names the model whose other sizes it has."""

_CONFIG_KEYS = {key for keys in SIZE_KEYS.values() for key in keys} - {"head_dim"} | {"model_type"}


def name_known(name: str) -> str | None:
    """Return the known model of a name or a release's name; None if it names a file or folder."""
    if name.lower() in MODELS:
        return name.lower()
    return None if Path(name).exists() else find_release(name)


def find_model(name: str, longest: int | None = None, parameter: str = "model") -> dict[str, int]:
    """Return the sizes of a model as far as they are known.

    ``name``: a known model or its release, a config.json or its folder, or a .json or .toml file
    of ``FIELDS``. ``longest``: tokens of the longest sequence, see ``read_config``. ``parameter``:
    its name for the reader. ``ValueError`` for an unknown name and a bad file.
    """
    if known := name_known(name):
        return dict(MODELS[known])
    path = Path(name)
    if path.is_dir() and not (path / "config.json").exists():
        raise ValueError(
            f"{parameter} {name!r}: a folder without config.json. Give the folder of a model, or "
            f"one of {', '.join(MODELS)}"
        )
    if path.is_dir():
        return read_model_config(path / "config.json", longest)
    if path.suffix not in SUFFIXES:
        near = get_close_matches(name.rpartition("/")[2].lower(), MODELS, 1)
        listed = f"Did you mean {near[0]}?" if near else f"There are {', '.join(MODELS)}."
        raise ValueError(
            f"{parameter} {name!r}: neither a known model nor a file of sizes (.json, .toml). "
            f"{listed} Or give the model's config.json or its folder"
        )
    fields = read_fields(path)
    if path.suffix == ".json" and (_CONFIG_KEYS & set(fields) or not set(FIELDS) & set(fields)):
        return read_model_config(path, longest)
    return _read_sizes(path, fields, longest)


def _read_sizes(path: Path, fields: dict[str, Any], longest: int | None) -> dict[str, int]:
    check_fields(path, fields, FIELDS)
    sizes: dict[str, int] = {}
    if "base" in fields:
        sizes |= _read_base(path, fields.pop("base"), longest)
    for name, value in fields.items():
        if name == "tied":
            if type(value) is not bool:
                raise ValueError(f"{path}: tied must be true or false: {value!r}")
            sizes[name] = value
        else:
            sizes[name] = check_integer(path, name, value)
    return sizes


def _read_base(path: Path, base: object, longest: int | None) -> dict[str, int]:
    """Return the sizes of ``base``; a config.json is relative to the file's folder."""
    if isinstance(base, str) and base in MODELS:
        return dict(MODELS[base])
    if not isinstance(base, str) or not base.endswith(".json"):
        raise ValueError(
            f"{path}: base must be a known model ({', '.join(MODELS)}) or a config.json: {base!r}"
        )
    return read_model_config(path.parent / base, longest)
