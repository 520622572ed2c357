"""What a planned trainer tries before its first step."""

from pathlib import Path
from typing import Any

import pytest
import torch
from test_huggingface_trainer import rejected
from trainer_ranks import (
    NO_LABEL,
    SAMPLES,
    arguments,
    model,
    needs_trainer,
    packing,
    planned,
    planned_trainer,
)

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
