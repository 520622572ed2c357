"""Loading a model of transformers of whose experts each rank reads its part only."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PreTrainedModel

from seqplan.runtime.errors import UnsupportedModel
from seqplan.runtime.experts.blocks import check_degree
from seqplan.runtime.huggingface.experts import PART, find_experts, find_unsupported_experts

_SOURCE = ("revision", "subfolder", "token", "cache_dir", "local_files_only", "force_download")
"""Options of ``from_pretrained`` that name the files."""

_NUMBERED = re.compile(r"\.experts\.(\d+)\.")
"""In the name of a stored tensor of one expert."""


def load_pretrained(name: str | os.PathLike[str], *, expert_parallel: int, **options: Any) -> Any:
    """Load a causal language model, of whose experts only this rank's part is read.

    For ``attach`` with the same ``expert_parallel``, which alone runs such a model. ``name``: a
    folder or a model's name, with safetensors files; ``options``: of transformers'
    ``from_pretrained``. Every rank calls it; its place is that in the process group or, without
    one, in the launcher's variables.

    ``ValueError`` for a degree that does not divide the ranks; ``UnsupportedModel`` for a model
    whose experts cannot be split, or whose files are quantized or no safetensors.
    """
    rank, world_size = _find_place()
    check_degree(expert_parallel, world_size)
    config = options.pop("config", None)
    if config is None:
        source = {option: options[option] for option in _SOURCE if option in options}
        config = AutoConfig.from_pretrained(name, **source)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModel(f"{config.model_type} is no causal language model of transformers")
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if expert_parallel == 1:
        return kind.from_pretrained(name, config=config, **options)
    part = rank % expert_parallel, expert_parallel

    def load(model: PreTrainedModel, state_dict: Any, files: Any, settings: Any) -> Any:
        if state_dict is not None or not all(str(file).endswith(".safetensors") for file in files):
            raise UnsupportedModel(f"{name}: expert_parallel needs weights in safetensors files")
        if settings.is_quantized:
            raise UnsupportedModel(f"{name}: quantized weights are not read with expert_parallel")
        names = _split_without_values(model, part)
        with ExitStack() as opened:
            read = dict(_iterate_part(model, files, settings, names, part, opened))
            loaded = kind._load_pretrained_model(model, read, files, settings)
        lacking = names & {*loaded[0].missing_keys, *(key for key, *_ in loaded[0].mismatched_keys)}
        if lacking:
            raise UnsupportedModel(
                f"{name}: has no part of {min(lacking)}. Name files that have it, or load the "
                "whole model on the first rank"
            )
        return loaded

    reading = type(kind.__name__, (kind,), {"_load_pretrained_model": staticmethod(load)})
    result: Any = reading.from_pretrained(name, config=config, **options)  # type: ignore[attr-defined]
    model = result[0] if isinstance(result, tuple) else result  # with ``output_loading_info``
    model.__class__ = kind
    return result


def _find_place() -> tuple[int, int]:
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def _split_without_values(model: PreTrainedModel, part: tuple[int, int]) -> set[str]:
    """Cut the experts of a model on the meta device to one part; return their names."""
    modules = find_experts(model)
    if reason := find_unsupported_experts(model, modules, part):
        raise UnsupportedModel(reason)
    names = set()
    for prefix, module in modules.items():
        for key, value in list(module.named_parameters(recurse=False)):
            cut = value.detach()[: value.shape[0] // part[1]].clone()
            setattr(module, key, nn.Parameter(cut, value.requires_grad))
            names.add(f"{prefix}.{key}")
        setattr(module, PART, part)
    return names


class _Rows:
    """The first-axis rows of a part of a stored tensor, read when they are indexed."""

    def __init__(self, stored: Any, part: tuple[int, int]) -> None:
        self._stored = stored
        rows = stored.get_shape()[0] // part[1]
        self._rows = slice(part[0] * rows, (part[0] + 1) * rows)

    def __getitem__(self, _: Any) -> Tensor:
        rows: Tensor = self._stored[self._rows]
        return rows


def _iterate_part(
    model: PreTrainedModel,
    files: Collection[str | Path],
    settings: Any,
    split: Collection[str],
    part: tuple[int, int],
    opened: ExitStack,
) -> Iterator[tuple[str, Any]]:
    """Yield this rank's stored tensors by name, each read when it is indexed."""
    from safetensors import safe_open
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        rename_source_key,
    )

    mapping = settings.weight_mapping or []
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    present = model.state_dict()
    counts = {
        f"{prefix}.{key}": int(module.num_experts)
        for prefix, module in find_experts(model).items()
        for key, _ in module.named_parameters(recurse=False)
    }
    for file in files:
        stored = opened.enter_context(safe_open(file, framework="pt", device="cpu"))
        for key in stored.keys():  # noqa: SIM118 - a file, which is no mapping
            target, _ = rename_source_key(
                key, renamings, converters, model.base_model_prefix, present
            )
            if target not in split:
                yield key, stored.get_slice(key)
                continue
            local = counts[target] // part[1]
            numbered = _NUMBERED.search(key)
            if numbered is None:
                yield key, _Rows(stored.get_slice(key), part)
            elif int(numbered[1]) // local == part[0]:
                yield key, stored.get_slice(key)
