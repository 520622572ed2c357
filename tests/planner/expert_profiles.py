"""Profiles with expert parallelism for tests: a dense profile's costs with a part of b shared."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from seqplan.costs.profile import Profile
from seqplan.costs.shipped.catalogue import load_shipped

BASE = "llama3-8b-h100-80gb"


def make_expert_profile(
    shares: Mapping[int, float], *, slower: Mapping[int, float] | None = None
) -> Profile:
    """Make a profile of tp1 schemes; ``shares``: the shared part of b by degree.

    ``slower``: factors on b. Larger degrees hold more, as experts take most of the layers' bytes.
    """
    base = load_shipped(BASE).restrict(layout=(1, 1)).document
    document: dict[str, Any] = deepcopy(dict(base))
    document["model"].update(expert_layers=32, experts=64, experts_per_token=2, expert_ffn=1792)
    entries = []
    for degree, share in shares.items():
        for entry in deepcopy(document["schemes"]):
            for of_mode in entry.get("modes", {"": entry}).values():
                of_mode["b"] *= (slower or {}).get(degree, 1.0)
                of_mode["b_shared"] = share * of_mode["b"]
            entries.append({**entry, "expert_parallel": degree})
    memory = document["memory"]
    memory["resident_expert_bytes"] = 0.8 * memory["resident_layer_bytes"]
    memory["resident_layer_bytes"] *= 0.3
    return Profile.from_document({**document, "name": "experts", "schemes": entries}, "test")
