"""What a planned trainer tries before the first step: short samples, and losses of token counts."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

LABELS = ("labels", "shift_labels")

IGNORED = -100
"""A label that no loss counts."""

COUNTS = 8, 8192
"""Tokens of the steps in which a loss is tried: powers of two, by which division is exact.

Far apart, so that a part of the loss that is not divided shows, however small it is.
"""

logger = logging.getLogger(__name__)

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
    packed = trainer.data_collator([first, second])
    if reason := find_wrong_packing(packed, [length, len(second["input_ids"])]):
        return reason
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
    if reason := _find_inexact_loss(trainer, losses):
        return reason
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


def find_wrong_packing(packed: Mapping[str, Any], lengths: Sequence[int]) -> str | None:
    """Return why a packed micro-batch is not of documents of these lengths; None if it is."""
    rows, tokens = packed["input_ids"].shape
    if rows != 1:
        return "the collator pads; use DataCollatorWithFlattening or padding_free=True"
    *borders, total = accumulate(lengths)
    key = "shift_labels" if "shift_labels" in packed else "labels"
    labels = packed[key][0] if key in packed else packed["input_ids"].new_tensor([])
    if tokens < total or (labels[total:] != IGNORED).any():
        return (
            f"the collator packs {tokens} tokens of samples with {total}, which plans are made "
            "for. Cut and extend samples in the data set"
        )
    # The label by which the last token of a document would predict the next document.
    for place in borders if len(labels) else ():
        label = int(labels[place - 1 if key == "shift_labels" else place])
        if label != IGNORED:
            return (
                f"the collator labels a document's first token after another: {label}. Pack with "
                f"separator_id={IGNORED}"
            )
    return None


def _find_inexact_loss(trainer: Any, losses: Sequence[torch.Tensor]) -> str | None:
    """Return why the losses at ``COUNTS`` tokens are not sums divided by these; None if so.

    A factor of the ranks that is missing is rejected if the loss is known, or a warning.
    """
    part = "compute_loss_func" if trainer.compute_loss_func else "the model"
    part = "compute_loss" if _has_loss(trainer) else part
    factor = COUNTS[1] / COUNTS[0]
    few, many, *known = map(float, losses)
    tolerance = max(1e-3, 2 * torch.finfo(losses[0].dtype).eps) * abs(few)
    if few == many == 0:
        logger.warning(
            "%s is 0 on the samples tried: whether it is a sum over num_items_in_batch is unknown",
            part,
        )
        return None
    if abs(few - many) <= tolerance:
        return f"{part} ignores num_items_in_batch: its loss would be a mean of means"
    if not abs(few - factor * many) <= tolerance:
        rest = (factor * many - few) / (factor - 1)
        return (
            f"{part}: {rest:.3g} of its loss of {few:.3g} is not divided by num_items_in_batch. "
            "Divide every term by it, as sums over tokens"
        )
    ranks = trainer.accelerator.num_processes
    if not known or ranks == 1 or abs(few - ranks * known[0]) <= tolerance:
        return None
    if abs(few - known[0]) <= tolerance:
        return (
            f"compute_loss lacks the factor of the {ranks} ranks, over which gradients are means. "
            "Multiply its loss by accelerator.num_processes"
        )
    if trainer.accelerator.is_main_process:
        logger.warning(
            "compute_loss needs the factor of the %d ranks, which cannot be checked for its loss. "
            "Multiply it by accelerator.num_processes, as the trainer's compute_loss does",
            ranks,
        )
    return None


def _measure_losses(trainer: Any, model: Any, packed: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the losses of one sample in steps of ``COUNTS`` tokens.

    If ``compute_loss`` is overridden, a third one is the first without the override, or NaN.
    """
    labels = packed["input_ids"].clone()
    function, inputs = trainer.compute_loss_func, {**packed, "labels": labels}
    counts = [labels.new_tensor(count) for count in COUNTS]
    losses = []
    if _has_loss(trainer):
        compute, metrics = trainer.compute_loss, copy.deepcopy(getattr(trainer, "_metrics", None))
        trainer.log = lambda *_, **__: None  # the trial leaves no mark in the user's metrics
        try:
            losses = [compute(model, dict(inputs), num_items_in_batch=n) for n in counts]
        finally:
            del trainer.log
            if metrics is not None:
                trainer._metrics = metrics
        counts = counts[:1]
    if function is not None:
        outputs = model(**{key: value for key, value in packed.items() if key not in LABELS})
        return losses + [function(outputs, labels, num_items_in_batch=n) for n in counts]
    given = [getattr(model(**inputs, num_items_in_batch=n), "loss", None) for n in counts]
    return losses + [torch.tensor(torch.nan) if loss is None else loss for loss in given]


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
