"""Releases of known models, by the names that their makers publish them under."""

from __future__ import annotations

import re

from seqplan.costs.model_sizes import MODELS

RELEASES: dict[str, str] = {
    "llama-2-7b": "llama-7b",
    "llama-2-13b": "llama-13b",
    **{
        f"{maker}llama-3{minor}-{size}": f"llama3-{size}"
        for maker in ("", "meta-")
        for minor, size in (*(("", "8b"), (".1", "8b"), ("", "70b"), (".1", "70b"), (".3", "70b")),)
    },
    "llama-3.2-1b": "llama3.2-1b",
    "llama-3.2-3b": "llama3.2-3b",
    "deepseek-r1": "deepseek-v3",
}
"""Releases, in small letters, with the sizes of a model in ``MODELS``."""

_VARIANT = re.compile(r"(-(instruct|base|chat|hf|it|thinking))*(-v\d\.\d|-\d{4})?$")


def find_release(name: str) -> str | None:
    """Return the name in ``MODELS`` of a release; None for an unknown one.

    ``meta-llama/Llama-3.1-8B-Instruct`` stands for ``llama3-8b``.
    """
    release = _VARIANT.sub("", name.rpartition("/")[2].lower())
    known = RELEASES.get(release, release)
    return known if known in MODELS else None
