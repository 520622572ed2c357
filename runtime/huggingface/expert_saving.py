"""Saving a model of transformers of whose experts each rank has a part.

The first rank writes a layer's experts at a time, which it gathers from its block, next to the
files that the model's ``save_pretrained`` writes of all else; an index names every tensor's file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from seqplan.runtime.checkpoint.checkpoint_files import attempt_together
from seqplan.runtime.huggingface.attached import copy_state
from seqplan.runtime.huggingface.experts import AttachedExperts

_INDEX = "model.safetensors.index.json"
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")
_WRITING = "saving the model"
_UNSUPPORTED = ("push_to_hub", "variant", "distributed_checkpoint")


def save_split_model(
    folder: str | os.PathLike[str],
    model: PreTrainedModel,
    experts: AttachedExperts,
    group: dist.ProcessGroup,
    options: Mapping[str, Any],
) -> None:
    """Write ``model`` as its ``save_pretrained`` does, on the first rank; collective.

    The files are complete, or those of before. ``group``: any CPU group; ``options``: of
    ``save_pretrained``. ``ValueError`` on every rank for options that are not supported,
    ``CheckpointError`` if the first rank cannot write.
    """
    for option in _UNSUPPORTED:
        if options.get(option):
            raise ValueError(
                f"{option}: not supported with expert_parallel. Save without it, and copy the files"
            )
    final = Path(folder)
    files = _ModelFiles(final / ".partial", model, options) if not dist.get_rank(group) else None
    problem = f"{final}: cannot be written"

    def run(function: Callable[..., None], *arguments: Any) -> None:
        attempt_together(
            lambda: None if files is None else function(files, *arguments), problem, group, _WRITING
        )

    run(_ModelFiles.write_others, experts)
    for state in experts.gather_on_first():
        run(_ModelFiles.write_experts, state)
    run(_ModelFiles.finish, final)


class _ModelFiles:
    """The files of a model under way in ``folder``; ``files``: bytes of the tensors of each."""

    def __init__(self, folder: Path, model: Any, options: Mapping[str, Any]) -> None:
        self.folder, self.model, self.options = folder, model, options
        self.files: list[dict[str, int]] = []

    def write_others(self, experts: AttachedExperts) -> None:
        """Write the configuration and all tensors but experts."""
        from safetensors import safe_open

        shutil.rmtree(self.folder, ignore_errors=True)
        state = copy_state(self.model, experts.split.names)
        self.model.save_pretrained(self.folder, state_dict=state, **self.options)
        (self.folder / _INDEX).unlink(missing_ok=True)
        for path in sorted(self.folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as stored:
                names = list(stored.keys())
                sizes = {name: _count_bytes(stored.get_tensor(name)) for name in names}
            self._add(path, sizes)

    def write_experts(self, state: Mapping[str, Tensor]) -> None:
        """Write a layer's whole experts by name, in the model's stored form."""
        from huggingface_hub import split_torch_state_dict_into_shards
        from safetensors.torch import save_file
        from transformers.core_model_loading import revert_weight_conversion

        stored = dict(state)
        if self.options.get("save_original_format", True):
            stored = revert_weight_conversion(self.model, stored)
        limit = self.options.get("max_shard_size", "50GB")
        shards = split_torch_state_dict_into_shards(stored, max_shard_size=limit)
        for names in shards.filename_to_tensors.values():
            part = {name: stored.pop(name).contiguous() for name in names}
            path = self.folder / "experts.safetensors"
            save_file(part, path, metadata={"format": "pt"})
            self._add(path, {name: _count_bytes(value) for name, value in part.items()})

    def _add(self, path: Path, sizes: dict[str, int]) -> None:
        """Number a file, which holds tensors of so many bytes."""
        path.rename(self._part(len(self.files)))
        self.files.append(sizes)

    def _part(self, at: int) -> Path:
        return self.folder / f"{at}.part"

    def finish(self, final: Path) -> None:
        """Name the files, write their index, and put all in place of those in ``final``."""
        count = len(self.files)
        weight_map = {}
        for at, sizes in enumerate(self.files):
            name = f"model-{at + 1:05d}-of-{count:05d}.safetensors"
            self._part(at).rename(self.folder / name)
            weight_map.update(dict.fromkeys(sizes, name))
        total = sum(size for sizes in self.files for size in sizes.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (self.folder / _INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
        for old in final.iterdir():
            if _WEIGHTS.fullmatch(old.name):
                old.unlink()
        for path in sorted(self.folder.iterdir()):
            path.replace(final / path.name)
        self.folder.rmdir()


def _count_bytes(value: Tensor) -> int:
    return value.numel() * value.element_size()
