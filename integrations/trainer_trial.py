"""What a planned trainer tries before the first step: short samples, and losses of token counts."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

LABELS = ("labels", "shift_labels")

SEEN = 1e-3
"""A token's logits may change by this share of the largest where another document changes."""


def find_inexact(trainer: Any, model: Any) -> str | None:
    """Return why packed micro-batches would not be exact; None if they are.

    ``trainer``: of ``PlannedTrainerMixin``. If one document of a micro-batch changes, another one's
    logits must not; and the loss must be of the step's count of tokens.
    """
    places = 0, min(1, len(trainer.train_dataset) - 1)  # twice the same if it has one sample
    first, second = (cut_sample(trainer.train_dataset[place], 16) for place in places)
    ids, other_id = [int(i) for i in first["input_ids"]], int(second["input_ids"][0])
    length = len(ids)
    others = [other_id if i != other_id else (i - 1 if i else 1) for i in ids]
    changed = {**first, "input_ids": others}
    logits = []
    was_training = model.training
    model.eval()
    with torch.no_grad(), trainer.compute_loss_context_manager():
        for other in (first, changed):
            packed = trainer._prepare_input(trainer.data_collator([other, second]))
            inputs = {key: value for key, value in packed.items() if key not in LABELS}
            logits.append(model(**inputs).logits[0, length:])
        losses = _measure_losses(trainer, model, packed)
    model.train(was_training)
    if not losses[0] > 1.5 * losses[1]:
        what = "compute_loss_func" if trainer.compute_loss_func else "the model"
        what = "compute_loss" if _has_loss(trainer) else what
        return f"{what} ignores num_items_in_batch: its loss would be a mean of means"
    if (logits[0] - logits[1]).abs().max() > SEEN * logits[0].abs().max():
        config = trainer.model.config
        cached = getattr(config, "use_cache", None)
        if "position_ids" in packed and "attention_mask" not in packed and not cached:
            return (
                f"{type(trainer.model).__name__} does not separate packed documents under "
                f"attention {config._attn_implementation}. Use flash attention, or "
                "seqplan.huggingface.attach for models of docs/huggingface.md"
            )
        return (
            "documents of a micro-batch see each other: attention "
            f"{config._attn_implementation}, use_cache={cached}; pack with position_ids and no "
            "attention_mask, and leave use_cache off"
        )
    return None


def _measure_losses(trainer: Any, model: Any, packed: Mapping[str, Any]) -> list[float]:
    """Return the losses of one sample in steps of 8 and of 16 tokens.

    The second is half of the first if the loss is a sum that is divided by the step's tokens.
    """
    labels, count = packed["input_ids"].clone(), packed["input_ids"].new_tensor
    function, inputs = trainer.compute_loss_func, {**packed, "labels": labels}
    if _has_loss(trainer):
        compute, metrics = trainer.compute_loss, copy.deepcopy(getattr(trainer, "_metrics", None))
        trainer.log = lambda *_, **__: None  # the trial leaves no mark in the user's metrics
        try:
            counts = [count(n) for n in (8, 16)]
            return [float(compute(model, dict(inputs), num_items_in_batch=n)) for n in counts]
        finally:
            del trainer.log
            if metrics is not None:
                trainer._metrics = metrics
    if function is None:
        return [float(model(**inputs, num_items_in_batch=count(n)).loss) for n in (8, 16)]
    outputs = model(**{key: value for key, value in packed.items() if key not in LABELS})
    return [float(function(outputs, labels, num_items_in_batch=count(n))) for n in (8, 16)]


def _has_loss(trainer: Any) -> bool:
    """Whether a class that is neither of transformers nor of TRL overrides ``compute_loss``."""
    owner = next(base for base in type(trainer).__mro__ if "compute_loss" in vars(base))
    return owner.__module__.split(".")[0] not in ("transformers", "trl")


def _has_tokens(value: Any, length: int) -> bool:
    """Whether a field has an entry for each token; a tensor may be a number."""
    if isinstance(value, str) or not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0:
        return False
    return len(value) == length


def cut_sample(sample: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """Cut every field that has an entry for each token to its first tokens."""
    length = len(sample["input_ids"])
    cut = {
        key: value[:tokens] if _has_tokens(value, length) else value
        for key, value in sample.items()
    }
    return {**cut, "length": min(tokens, length)} if "length" in sample else cut
