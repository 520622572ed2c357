"""The estimated profiles that ship, with the error that the tables here let one expect.

``python -m seqplan.costs.derived.shipped_estimates`` writes them into
``costs/shipped``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.devices import DEVICES
from seqplan.costs.analytic.hardware import ClusterHardware
from seqplan.costs.derived.expected_error import describe_expected_error
from seqplan.costs.derived.model_profiles import list_schemes
from seqplan.costs.model_sizes import MODELS, ModelSizes
from seqplan.costs.profile import Profile
from seqplan.costs.shipped import catalogue
from seqplan.plans.format.atomic_file import atomic_write
from seqplan.plans.recomputation import MODES

MODEL_NAMES = (
    "llama3-8b",
    "llama3-70b",
    "qwen3-8b",
    "qwen3-32b",
    "qwen3-30b-a3b",
    "gpt-oss-20b",
)

DEVICE_NAMES = ("h100-80gb", "h200-141gb")
NODES = 8

LEAST_TOKENS = 8192
"""MaxLen of a scheme that ships, at least, on all nodes."""


def names() -> list[str]:
    """List the profiles, model and device."""
    return [f"{model}-{device}" for model in MODEL_NAMES for device in DEVICE_NAMES]


def document_of(name: str) -> dict[str, Any]:
    """Derive the profile of this name, on eight nodes of eight; ``KeyError`` for another one."""
    model, device = {f"{m}-{d}": (m, d) for m in MODEL_NAMES for d in DEVICE_NAMES}[name]
    sizes, cluster = (
        ModelSizes.from_mapping(MODELS[model]),
        ClusterHardware(DEVICES[device], NODES, 8),
    )
    deployment = Deployment(cluster=cluster, sizes=sizes, loss="chunked")
    schemes = list_schemes(sizes.shape, cluster)
    shape = derive_profile(deployment, schemes, name=name, modes=MODES)
    profile = Profile.from_document(shape, name)
    roomy = [
        entry
        for entry in profile.schemes
        if profile.model(entry, cluster.gpus, 1).max_len >= LEAST_TOKENS
    ]
    notes = [*shape.get("notes", ()), describe_expected_error("h100-80gb")]
    return {**shape, "schemes": profile.entries_of(roomy), "notes": notes}


def text_of(document: dict[str, Any]) -> str:
    """Write a profile, a scheme a line."""
    rest = {key: value for key, value in document.items() if key != "schemes"}
    head = json.dumps(rest, indent=1, ensure_ascii=False).removesuffix("\n}")
    lines = ",\n".join("  " + json.dumps(entry) for entry in document["schemes"])
    return f'{head},\n "schemes": [\n{lines}\n ]\n}}\n'


def main() -> None:
    """Write the profiles that are named, by default all."""
    folder = Path(catalogue.__file__).parent
    for name in sys.argv[1:] or names():
        with atomic_write(folder / f"{name}.json", "w") as file:
            file.write(text_of(document_of(name)))
        print(name)


if __name__ == "__main__":
    main()
