"""Balanced steps in ms-swift's fine-tuning: call ``install`` in a file of ``--external_plugins``.

from seqplan import Cost
from seqplan.integrations import ms_swift

ms_swift.install(64, 16_384, Cost.from_profile("llama3-8b-h100-80gb", "tp1"))

swift sft --external_plugins steps.py --per_device_train_batch_size 1 \
    --gradient_accumulation_steps 1 …
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from seqplan.integrations.balanced_steps import BalancedSteps
from seqplan.integrations.huggingface_trainer import PlannedTrainerMixin, UnplannableError
from seqplan.integrations.trainer_trial import IGNORED
from seqplan.integrations.versions import import_with
from seqplan.planner.balance.cost import Cost

__all__ = ["install"]

MODULE, NAME = "swift.trainers", "Seq2SeqTrainer"


def install(sequences: int, capacity: int, cost: Cost, *, seed: int = 0) -> None:
    """Register a planned trainer for ms-swift's task ``causal_lm``.

    ``sequences``: of the data set, in an optimizer step; ``capacity``: tokens of a micro-batch on
    one rank; ``cost``: of a micro-batch. ``UnsupportedVersion`` if ms-swift has no such trainer.
    """
    trainers = import_with("ms-swift", MODULE, NAME, "TrainerFactory", known="4.6.0 has both")
    original: Any = getattr(trainers, NAME)

    class PlannedSwiftTrainer(PlannedTrainerMixin, original):  # type: ignore[misc]
        def __init__(self, *, args: Any, template: Any, train_dataset: Any, **others: Any) -> None:
            check_settings(args, template, train_dataset)
            template.padding_free = True
            lengths = np.array([max(of_sample) for of_sample in train_dataset["lengths"]])
            planned = BalancedSteps(lengths, sequences, capacity, cost, seed=seed)
            super().__init__(
                args=args,
                template=template,
                train_dataset=train_dataset,
                planned=planned,
                **others,
            )

        def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
            """Return the loss; 0 without labels, of which ms-swift takes a mean."""
            if not (inputs["labels"] != IGNORED).any():
                inputs.setdefault("loss_scale", torch.zeros_like(inputs["labels"]))
            return super().compute_loss(model, inputs, *arguments, **named)

    setattr(trainers, PlannedSwiftTrainer.__name__, PlannedSwiftTrainer)
    trainers.TrainerFactory.TRAINER_MAPPING["causal_lm"] = (
        f"{MODULE}.{PlannedSwiftTrainer.__name__}"
    )


def check_settings(args: Any, template: Any, samples: Any) -> None:
    """Check that ms-swift can take planned steps; ``UnplannableError`` lists the settings."""
    columns = getattr(getattr(samples, "dataset", samples), "column_names", None) or []
    checks = {
        f"images, videos and audio (model {template.model_meta.model_type}): not supported": (
            template.model_meta.is_multimodal
        ),
        f"template {type(template).__name__} cannot pack": template.support_padding_free is False,
        "packing: true. Set it to false: the plan packs": template.packing,
        "streaming or lazy_tokenize: true. Set both to false: lengths must be known": (
            "lengths" not in columns and not template.packing
        ),
        "group_by_length: true. Set it to false: the plan draws": args.group_by_length,
        f"sequence_parallel_size: {template.sequence_parallel_size}. Set it to 1": (
            template.sequence_parallel_size > 1
        ),
        "label_smoothing_factor or router_aux_loss_coef above 0: means over each micro-batch": (
            max(args.label_smoothing_factor, args.router_aux_loss_coef or 0) > 0
        ),
    }
    if reasons := [reason for reason, applies in checks.items() if applies]:
        raise UnplannableError("; ".join(reasons))
