"""What a planned trainer tries before its first step."""

import functools
import logging.handlers
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_huggingface_trainer import rejected
from trainer_ranks import (
    COST,
    NO_LABEL,
    SAMPLES,
    SEQUENCES,
    arguments,
    model,
    needs_trainer,
    on_ranks,
    packing,
    planned,
    planned_trainer,
)

from seqplan.integrations.balanced_steps import BalancedSteps
from seqplan.integrations.trainer_trial import cut_sample

pytestmark = needs_trainer


def test_an_overridden_loss_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    computed = []

    class Mean(planned_trainer()):  # type: ignore[misc]
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any
        ) -> torch.Tensor:
            labels = inputs.pop("labels")
            logits = model(**inputs).logits[0, :-1].float()
            self.log({"tried": 1.0})
            computed.append(1)
            return torch.nn.functional.cross_entropy(logits, labels[0, 1:], ignore_index=-100)

    class Counted(Mean):
        def compute_loss(self, model: Any, inputs: Any, **options: Any) -> torch.Tensor:
            tokens = int((inputs["labels"][0, 1:] != NO_LABEL).sum())
            loss = super().compute_loss(model, inputs, **options)
            return loss * tokens / options["num_items_in_batch"]

    options: dict[str, Any] = {
        "model": model(),
        "train_dataset": SAMPLES,
        "data_collator": packing(),
        "planned": planned(),
        "args": arguments(str(tmp_path), max_steps=1),
    }
    with pytest.raises(ValueError, match=r"^compute_loss ignores num_items_in_batch"):
        Mean(**options).train()
    trainer = Counted(**options)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "tried" in entry]
    assert len(logged) == len(computed) - 4  # without those of two trials


def test_columns_of_single_numbers_as_tensors_are_no_tokens() -> None:
    sample = {"input_ids": [1, 2, 3], "weight": torch.tensor(2.0), "length": torch.tensor(3)}
    assert cut_sample(sample, 2) == {"input_ids": [1, 2], "weight": torch.tensor(2.0), "length": 2}


def test_a_model_that_does_not_separate_documents_is_rejected_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import BloomConfig, BloomForCausalLM

    monkeypatch.chdir(tmp_path)
    bloom = BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_head=4, n_layer=2))
    text = rejected(model=bloom)
    assert text == (
        "BloomForCausalLM does not separate packed documents under attention eager. Use flash "
        "attention, or seqplan.huggingface.attach for models of docs/huggingface.md"
    )


def compute_sum(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
    """Return the sum over a micro-batch, divided by the step's tokens."""
    logits = outputs.logits[0, :-1].float()
    total = torch.nn.functional.cross_entropy(
        logits, labels[0, 1:], ignore_index=NO_LABEL, reduction="sum"
    )
    return total / num_items_in_batch


@pytest.mark.parametrize("weight", [1e-1, 1e-4])
def test_a_term_by_micro_batch_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weight: float
) -> None:
    monkeypatch.chdir(tmp_path)

    def compute(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        term: torch.Tensor = outputs.logits.logsumexp(-1).square().mean()
        return compute_sum(outputs, labels, num_items_in_batch) + weight * term

    text = rejected(compute_loss_func=compute)
    match = re.fullmatch(
        r"compute_loss_func: (\S+) of its loss of (\S+) is not divided by num_items_in_batch\. "
        "Divide every term by it, as sums over tokens",
        text,
    )
    assert match is not None, text
    # Random logits of 64 words: their logsumexp is about log 64.
    assert float(match[1]) == pytest.approx(weight * np.log(64) ** 2, rel=0.05)


def test_a_negative_loss_of_sums_is_accepted(tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        trainer = planned_trainer()(
            model=model(dtype),
            train_dataset=SAMPLES,
            data_collator=packing(),
            planned=planned(),
            args=arguments(str(tmp_path), max_steps=1),
            compute_loss_func=lambda *inputs, **named: -compute_sum(*inputs, **named),
        )
        trainer.train()
        assert trainer.state.global_step == 1


def train_overridden(factor: float, smooth: float) -> tuple[float, list[str]]:
    """Train a step with ``compute_loss`` overridden; return its loss, and warnings.

    ``factor``: of the loss; ``smooth``: the power to which each token's loss is raised.
    """

    class Overridden(planned_trainer()):  # type: ignore[misc]
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any
        ) -> torch.Tensor:
            labels = inputs.pop("labels")
            logits = model(**inputs).logits[0, :-1].float()
            of_tokens = torch.nn.functional.cross_entropy(
                logits, labels[0, 1:], ignore_index=NO_LABEL, reduction="none"
            )
            return factor * (of_tokens**smooth).sum() / options["num_items_in_batch"]

    handler = logging.handlers.BufferingHandler(100)
    logging.getLogger("seqplan.integrations.trainer_trial").addHandler(handler)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Overridden(
            model=model(),
            train_dataset=SAMPLES,
            data_collator=packing(),
            planned=planned(),
            args=arguments(folder, max_steps=1),
        )
        trainer.train()
    return trainer.state.log_history[0]["loss"], [record.getMessage() for record in handler.buffer]


def test_an_overridden_loss_without_the_factor_of_the_ranks_is_rejected() -> None:
    with pytest.raises(
        RuntimeError,
        match=r"compute_loss lacks the factor of the 2 ranks, over which gradients are means\. "
        r"Multiply its loss by accelerator\.num_processes",
    ):
        on_ranks(2, functools.partial(train_overridden, 1.0, 1.0))
    ((loss, warned),) = on_ranks(1, functools.partial(train_overridden, 1.0, 1.0))
    assert not warned
    for scaled, warned in on_ranks(2, functools.partial(train_overridden, 2.0, 1.0)):
        assert scaled == pytest.approx(loss, rel=1e-6)
        assert not warned


def test_an_overridden_loss_whose_factor_is_unknown_is_a_warning() -> None:
    (_, warned), (_, others) = on_ranks(2, functools.partial(train_overridden, 2.0, 1.5))
    (warning,) = warned
    assert warning == (
        "compute_loss needs the factor of the 2 ranks, which cannot be checked for its loss. "
        "Multiply it by accelerator.num_processes, as the trainer's compute_loss does"
    )
    assert not others


def collate_without_borders(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Packs labels as they are."""
    packed = packing()(samples)
    labels = [label for sample in samples for label in sample["labels"]]
    return {**packed, "labels": torch.tensor([labels])}


def collate_shifted(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Packs labels that are shifted already, over borders."""
    packed = collate_without_borders(samples)
    shifted = packed["labels"].roll(-1)
    shifted[0, -1] = NO_LABEL
    return {**packed, "shift_labels": shifted}


def collate_separated(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Packs with another separator than a label that is not counted."""
    packed: dict[str, torch.Tensor] = packing()(samples, separator_id=2)
    return packed


@pytest.mark.parametrize(
    ("collate", "label"),
    [(collate_separated, "2"), (collate_without_borders, r"\d+"), (collate_shifted, r"\d+")],
)
def test_labels_over_borders_of_documents_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collate: Any, label: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = rejected(data_collator=collate)
    assert re.fullmatch(
        f"the collator labels a document's first token after another: {label}. "
        "Pack with separator_id=-100",
        text,
    )


@pytest.mark.parametrize("keep", [slice(0, -1), slice(0, None)], ids=["drops", "truncates"])
def test_a_collator_that_loses_tokens_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: slice
) -> None:
    monkeypatch.chdir(tmp_path)

    def collate(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        if keep.stop is None:
            samples = [cut_sample(sample, 20) for sample in samples]
        packed: dict[str, torch.Tensor] = packing()(samples[keep] or samples)
        return packed

    message = (
        r"the collator packs (\d+) tokens of samples with (\d+), which plans are made for\. "
        "Cut and extend samples in the data set"
    )
    match = re.fullmatch(message, rejected(data_collator=collate))
    assert match is not None
    assert int(match[1]) < int(match[2])


def test_a_collator_that_drops_documents_is_rejected_if_each_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    samples = [cut_sample(sample, 7) for sample in SAMPLES]
    alone = BalancedSteps([7] * len(samples), SEQUENCES, 7, COST, seed=1)
    text = rejected(
        data_collator=lambda some: packing()(some[:1]), train_dataset=samples, planned=alone
    )
    assert text.startswith("the collator packs 7 tokens of samples with 14, which ")


def test_tokens_without_labels_after_all_documents_are_accepted(tmp_path: Path) -> None:
    def collate(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        filling = {"input_ids": [0, 0], "labels": [NO_LABEL] * 2}
        packed: dict[str, torch.Tensor] = packing()([*samples, filling])
        return packed

    trainer = planned_trainer()(
        model=model(),
        train_dataset=SAMPLES,
        data_collator=collate,
        planned=planned(),
        args=arguments(str(tmp_path), max_steps=1),
    )
    trainer.train()
    assert trainer.state.global_step == 1
