"""Models that have a name here, and the names that their makers publish them under."""

from __future__ import annotations

import re
from pathlib import Path

from seqplan.costs.model_files.description_file import read_listed

_LISTED = read_listed(Path(__file__).with_name("models.toml"))

MODELS: dict[str, dict[str, int]] = {
    name: {key: value for key, value in values.items() if key not in ("source", "releases")}
    for name, values in _LISTED.items()
}
"""Sizes by name; the file has their origin."""

_NAMES = {
    release: name for name, values in _LISTED.items() for release in values.get("releases", ())
}
_VARIANT = re.compile(r"(-(instruct|base|chat|hf|it|thinking))*(-v\d\.\d|-\d{4})?$")


def find_release(name: str) -> str | None:
    """Return the name in ``MODELS`` of a release; None for an unknown one.

    ``meta-llama/Llama-3.1-8B-Instruct`` stands for ``llama3-8b``.
    """
    release = _VARIANT.sub("", name.rpartition("/")[2].lower()).removeprefix("meta-")
    listed = _NAMES.get(release, release)
    return listed if listed in MODELS else None
