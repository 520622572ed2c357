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
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.derived.expected_error import describe_expected_error, describe_expert_error
from seqplan.costs.derived.model_profiles import list_schemes
from seqplan.costs.model_files.listed_models import MODELS
from seqplan.costs.model_sizes import ModelSizes
from seqplan.costs.profile import Profile
from seqplan.costs.shipped import catalogue
from seqplan.plans.format.atomic_file import atomic_write
from seqplan.plans.recomputation import MODES

DENSE_NAMES = ("llama3-8b", "llama3-70b", "qwen3-8b", "qwen3-32b")
DENSE_DEVICES = ("h100-80gb", "h200-141gb")

EXPERT_DEGREES = {
    "qwen3-30b-a3b": (1, 8, 16, 32, 64),
    "gpt-oss-20b": (1, 8, 16, 32),
    "gpt-oss-120b": (1, 8, 16, 32, 64),
    "qwen3-235b-a22b": (1, 8, 16, 32, 64),
    "deepseek-v3": (8, 16, 32, 64, 128, 256),
}
"""Degrees of expert parallelism by model, those of published recipes among them."""

EXPERT_DEVICES = ("h100-80gb", "h200-141gb", "b200-180gb")

DENSE_NODES, EXPERT_NODES = 128, 32
"""Nodes of the profiles of dense models, and of models with experts."""

LEAST_TOKENS = 8192
"""MaxLen of a scheme that ships, at least, on all nodes."""


def _models() -> dict[str, tuple[str, str]]:
    """Return model and device by the profile's name."""
    pairs = [
        *((model, device) for model in DENSE_NAMES for device in DENSE_DEVICES),
        *((model, device) for model in EXPERT_DEGREES for device in EXPERT_DEVICES),
    ]
    return {f"{model}-{device}": (model, device) for model, device in pairs}


def names() -> list[str]:
    """List the profiles, model and device."""
    return list(_models())


def document_of(name: str) -> dict[str, Any]:
    """Derive the profile of this name, on nodes of eight GPUs; ``KeyError`` for another one."""
    model, device = _models()[name]
    nodes = EXPERT_NODES if model in EXPERT_DEGREES else DENSE_NODES
    sizes, cluster = (
        ModelSizes.from_mapping(MODELS[model]),
        ClusterHardware(DEVICES[device], nodes, 8),
    )
    deployment = Deployment(cluster=cluster, sizes=sizes, loss="chunked")
    schemes = list_schemes(sizes.shape, cluster)
    degrees = EXPERT_DEGREES.get(model, (1,))
    shape = derive_profile(deployment, schemes, name=name, modes=MODES, expert_degrees=degrees)
    profile = Profile.from_document(shape, name)
    roomy = [
        entry
        for entry in profile.schemes
        if profile.model(entry, cluster.gpus, 1).max_len >= LEAST_TOKENS
    ]
    expected = (
        describe_expert_error() if model in EXPERT_DEGREES else describe_expected_error("h100-80gb")
    )
    notes = [*shape.get("notes", ()), expected]
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
