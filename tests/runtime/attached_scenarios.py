"""All that ranks do with Hugging Face models that they attach, in one program."""

import tempfile
from pathlib import Path
from typing import Any

from attached_inputs import CASES, model
from attached_rejections import memory, rejections, unlike_plans
from attached_training import page, resumed, trained_on_ranks, trained_plainly

from seqplan import runtime


def load() -> None:
    """What every rank would import and make for itself: the models' code, and the table of how
    transformers reads and writes their weights, which it makes once a process."""
    models = [make(0) for make in CASES.values()]
    with tempfile.TemporaryDirectory() as folder:
        models[0].save_pretrained(folder)
    model("gpt2", n_embd=32, n_layer=2, n_head=4)


def on_rank(rank: int, world_size: int, folder: Path, url: str) -> dict[str, Any]:
    groups = runtime.Communicators.create(200)
    return {
        **{name: trained_on_ranks(rank, groups, folder, url, name) for name in CASES},
        "unlike": unlike_plans(rank, groups),
        "resumed": resumed(rank, groups, folder / "checkpoints"),
        "page": page(folder),
    }


def rejected_on_rank(rank: int, world_size: int) -> dict[str, Any]:
    groups = runtime.Communicators.create(200)
    return {"rejections": rejections(groups), "memory": memory(groups)}


def meanwhile() -> dict[str, Any]:
    return {name: trained_plainly(name) for name in CASES}
