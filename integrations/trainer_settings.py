"""Settings of a trainer under which planned steps would fail, hang or be silently wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset

_UNSYNCED = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU")
"""accelerate's kinds of ranks that meet once a step."""

_STATE = "trainer_state.json"
"""The file of a checkpoint that the trainer writes last."""

_IN_BACKWARD = ("lomo", "adalomo")
"""Optimizers that step in each backward, next to those whose name ends in ``layerwise``."""


def is_sharded(trainer: Any) -> bool:
    """Whether ranks hold parts of the model, so that they meet in each micro-batch.

    By accelerate, or by transformers when it loaded the model (``DistributedConfig``).
    """
    loaded = getattr(trainer, "is_distributed_loading_by_transformers", False)
    return loaded or trainer.accelerator.distributed_type not in _UNSYNCED


def name_optimizer(trainer: Any) -> str:
    """Name the optimizer: the class that a trainer is given, or ``optim``."""
    if (chosen := getattr(trainer, "optimizer_cls_and_kwargs", None)) is not None:
        return str(chosen[0].__name__)
    return str(getattr(trainer.args.optim, "value", trainer.args.optim))


def list_reasons(trainer: Any, planned: int) -> list[str]:
    """List what cannot be planned in a trainer; ``planned``: sequences of the planned data set."""
    args, optimizer, other = trainer.args, name_optimizer(trainer), _find_other_trainer(trainer)
    checks = {
        "gradient_accumulation_steps must be 1: the plan accumulates": (
            args.gradient_accumulation_steps != 1
        ),
        "per_device_train_batch_size must be 1: a batch is a planned step": (
            args.per_device_train_batch_size != 1
        ),
        "auto_find_batch_size changes planned batches": (
            getattr(args, "auto_find_batch_size", False)
        ),
        "nn.DataParallel (more than one device a process)": args.n_gpu > 1,
        "model_init: the trainer would make the model anew. Give model": (
            getattr(trainer, "model_init", None) is not None
        ),
        "average_tokens_across_devices=False is not the mean over all tokens": (
            not args.average_tokens_across_devices
        ),
        "the model ignores num_items_in_batch: its loss would be a mean of means": (
            not (trainer.model_accepts_loss_kwargs or trainer.compute_loss_func)
        ),
        f"train_sampling_strategy={getattr(args, 'train_sampling_strategy', '')!r}": (
            getattr(args, "train_sampling_strategy", "random") != "random"
        ),
        "ignore_data_skip=True: a resumed epoch would repeat its sequences. Set it to False": (
            getattr(args, "ignore_data_skip", False)
        ),
        f"optim={optimizer} steps in backward, once a micro-batch. Use another, as adamw_torch": (
            optimizer.lower().endswith("layerwise") or optimizer.lower() in _IN_BACKWARD
        ),
        f"{other}: of TRL's trainers only SFTTrainer takes planned steps. Use it": bool(other),
        "packing=True: the plan packs": getattr(args, "packing", False),
        "an iterable data set has no places to plan": (
            isinstance(trainer.train_dataset, IterableDataset)
            or not hasattr(trainer.train_dataset, "__getitem__")
        ),
        "the trainer's tp, cp or sp above 1": (
            max(getattr(trainer, f"get_{kind}_size")() for kind in ("tp", "cp", "sp")) > 1
        ),
        "neftune_noise_alpha: its noise depends on the tokens of a micro-batch. Leave it out": bool(
            getattr(args, "neftune_noise_alpha", None)
        ),
        "output_router_logits: a mean over each micro-batch enters the loss": (
            getattr(trainer.model.config, "output_router_logits", False)
        ),
    }
    reasons = [reason for reason, applies in checks.items() if applies]
    if reasons:
        return reasons
    if (there := len(trainer.train_dataset)) != planned:
        return [f"steps are planned for {planned} sequences, the data set has {there}"]
    sample = trainer.train_dataset[0]
    if not isinstance(sample, Mapping) or "input_ids" not in sample:
        return ["the data set's samples have no input_ids. Tokenize the data set first"]
    return []


def find_cut_checkpoint(trainer: Any, resumed: str | bool) -> str | None:
    """Describe a checkpoint that lacks a part of the training's state; None for a whole one.

    ``resumed``: its folder, or True for the newest in ``output_dir``, as the trainer has it.
    """
    output = trainer.args.output_dir
    # DeepSpeed has the optimizer in files of its engine, and reports missing ones.
    deepspeed = getattr(trainer, "is_deepspeed_enabled", False)
    if resumed is True:
        inside = (path.name for path in Path(output).glob("*") if path.is_dir())
        named = (re.fullmatch(r"checkpoint-(\d+)", name) for name in inside)
        steps = sorted((int(name[1]) for name in named if name), reverse=True)
        folders = [Path(output, f"checkpoint-{step}") for step in steps]
    else:
        folders = [Path(str(resumed))]
    if not folders or not folders[0].is_dir():
        return None
    lack = _find_lack(folders[0], deepspeed)
    if lack is None:
        return None
    whole = next((folder for folder in folders if _find_lack(folder, deepspeed) is None), None)
    fix = "Train from the start" if whole is None else f"Give resume_from_checkpoint={str(whole)!r}"
    return f"{folders[0]} {lack}. {fix}"


def _find_lack(checkpoint: Path, deepspeed: bool) -> str | None:
    """Describe what a checkpoint lacks; None if it has all."""
    try:
        json.loads((checkpoint / _STATE).read_text("utf-8"))
    except (OSError, ValueError):
        return f"was not written to its end: it has no whole {_STATE}"
    if deepspeed:
        return None
    # FSDP writes optimizer.bin, or a folder such as optimizer_0.
    stored = [checkpoint / name for name in ("optimizer.pt", "optimizer.bin")]
    has_optimizer = any(path.is_file() for path in stored) or any(
        path.is_dir() for path in checkpoint.glob("*optimizer*")
    )
    has_scheduler = (checkpoint / "scheduler.pt").is_file()
    lacking = [] if has_optimizer else ["optimizer.pt"]
    lacking += [] if has_scheduler else ["scheduler.pt"]
    if not lacking:
        return None
    return f"has no {' and no '.join(lacking)}, as with save_only_model: the optimizer would be new"


def _find_other_trainer(trainer: Any) -> str | None:
    """Name the trainer of TRL that is used if it is not for supervised fine-tuning."""
    bases = type(trainer).__mro__
    if any(base.__name__ == "SFTTrainer" for base in bases):
        return None
    return next((base.__name__ for base in bases if base.__module__.split(".")[0] == "trl"), None)
