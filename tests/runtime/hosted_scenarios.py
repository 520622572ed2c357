"""All that ranks do with Hugging Face models that they host, in one program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hosted_inputs import CASES
from hosted_refusals import memory, refusals, unlike_plans
from hosted_training import page, resumed, trained_on_ranks, trained_plainly

from seqplan import runtime


def on_rank(rank: int, world_size: int, folder: Path, url: str) -> dict[str, Any]:
    groups = runtime.Communicators.create(200)
    return {
        **{name: trained_on_ranks(rank, groups, folder, url, name) for name in CASES},
        "refusals": refusals(groups),
        "memory": memory(groups),
        "unlike": unlike_plans(rank, groups),
        "resumed": resumed(rank, groups, folder / "checkpoints"),
        "page": page(folder),
    }


def beside() -> dict[str, Any]:
    return {name: trained_plainly(name) for name in CASES}
