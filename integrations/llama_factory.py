"""Balanced steps in LLaMA-Factory's supervised training: call ``install`` before ``run_exp``.

from llamafactory.train.tuner import run_exp
from seqplan import Cost
from seqplan.integrations import llama_factory

llama_factory.install(64, 16_384, Cost.from_profile("llama3-8b-h100-80gb", "tp1"))
run_exp()  # per_device_train_batch_size: 1, gradient_accumulation_steps: 1, packing: false
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from seqplan.integrations.balanced_steps import BalancedSteps
from seqplan.integrations.huggingface_trainer import PlannedTrainerMixin, list_planned_lengths
from seqplan.integrations.versions import import_with
from seqplan.planner.balance.cost import Cost

__all__ = ["install"]

WORKFLOW, NAME = "llamafactory.train.sft.workflow", "CustomSeq2SeqTrainer"


def install(sequences: int, capacity: int, cost: Cost, *, seed: int = 0) -> None:
    """Put a planned trainer in the place of LLaMA-Factory's for ``stage: sft``.

    ``sequences``: of the data set, in an optimizer step; ``capacity``: tokens of a micro-batch on
    one rank; ``cost``: what one costs. ``UnsupportedVersion`` if LLaMA-Factory has no such trainer.
    """
    workflow = import_with("llamafactory", WORKFLOW, NAME, known="0.9.5 has it")
    trainer = getattr(workflow, NAME)
    original: Any = getattr(trainer, "host_class", trainer)

    class PlannedSeq2SeqTrainer(PlannedTrainerMixin, original):  # type: ignore[misc]
        host_class = original

        def __init__(self, *, train_dataset: Any = None, **settings: Any) -> None:
            # LLaMA-Factory's collator pads; a planned micro-batch has no padding.
            flattening = import_module("transformers.data.data_collator").DataCollatorWithFlattening
            lengths = list_planned_lengths(train_dataset)
            planned = BalancedSteps(lengths, sequences, capacity, cost, seed=seed)
            super().__init__(
                train_dataset=train_dataset,
                planned=planned,
                **{**settings, "data_collator": flattening()},
            )

    setattr(workflow, NAME, PlannedSeq2SeqTrainer)
