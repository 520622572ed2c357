"""The estimated profiles that ship, with the error that the tables here let one expect.

``python -m seqplan.costs.analytic.validation.shipped_estimates`` writes them into
``costs/shipped``.
"""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.devices import DEVICES
from seqplan.costs.analytic.hardware import ClusterHardware
from seqplan.costs.analytic.validation.training_tables import training_checks
from seqplan.costs.model_sizes import MODELS, ModelSizes
from seqplan.costs.profile import Profile
from seqplan.costs.scheme_rules import scheme_problem
from seqplan.costs.shipped import catalogue
from seqplan.plans.format.atomic_file import atomic_write
from seqplan.plans.scheme import Scheme

CHECKPOINTING = {
    "llama3-8b": "none",
    "llama3-70b": "full",
    "qwen3-8b": "none",
    "qwen3-32b": "full",
    "qwen3-30b-a3b": "full",
    "gpt-oss-20b": "full",
}
"""The models, and their recomputation: that of long sequences on 80 GB."""

DEVICE_NAMES = ("h100-80gb", "h200-141gb")
NODES = 8

MOST_SHARES, MOST_RING, MOST_STAGES, LEAST_TOKENS = 16, 8, 2, 8192
"""Of a scheme that ships: ulysses·ring, ring, pp at most, and MaxLen at least, on all nodes."""

CHECKED_BY = "llm-foundry, h100-80gb bf16"
"""The table whose errors are stated: training in bf16 on the same devices."""


def names() -> list[str]:
    """List the profiles, model and device."""
    return [f"{model}-{device}" for model in CHECKPOINTING for device in DEVICE_NAMES]


def document_of(name: str) -> dict[str, Any]:
    """Derive the profile of this name, on eight nodes of eight; ``KeyError`` for another one."""
    model, device = {f"{m}-{d}": (m, d) for m in CHECKPOINTING for d in DEVICE_NAMES}[name]
    sizes, cluster = (
        ModelSizes.from_mapping(MODELS[model]),
        ClusterHardware(DEVICES[device], NODES, 8),
    )
    deployment = Deployment(cluster=cluster, sizes=sizes, checkpointing=CHECKPOINTING[model])
    powers = [2**power for power in range(MOST_SHARES.bit_length())]
    schemes = [
        scheme
        for degrees in product((1, 2, 4, 8), (1, MOST_STAGES), powers, powers)
        if (scheme := Scheme(*degrees)).sp <= MOST_SHARES
        and scheme.ring <= MOST_RING
        and scheme.gpus <= cluster.gpus
        and scheme.tp * scheme.ulysses <= cluster.gpus_per_node
        and scheme_problem(scheme, sizes.shape) is None
    ]
    shape = derive_profile(deployment, schemes, name=name)
    profile = Profile.from_document(shape, name)
    roomy = {
        entry.scheme
        for entry in profile.schemes
        if profile.model(entry, cluster.gpus, 1).max_len >= LEAST_TOKENS
    }
    notes = [*shape.get("notes", ()), _describe_expected_error()]
    return {**shape, "schemes": profile.entries_of(roomy), "notes": notes}


def _describe_expected_error() -> str:
    """Describe how far published training runs on an H100 are from their predictions."""
    (check,) = (check for check in training_checks() if check.name == CHECKED_BY)
    return (
        f"expected error: {check.median_error:.0%} (median) and {check.p90_error:.0%} (p90), as of "
        f"{len(check.rows)} published training runs on H100 in bf16 ({CHECKED_BY}; seqplan "
        "profile validate), none of them with sequence parallelism between nodes; more where "
        "something here is unchecked"
    )


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
