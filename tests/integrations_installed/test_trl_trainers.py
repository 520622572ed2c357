"""Trainers of TRL that planned steps do not fit: rejected by name before the first step."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import trl
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from trainer_ranks import SAMPLES, model, planned
from transformers import LlamaForSequenceClassification, PreTrainedTokenizerFast

from seqplan.integrations.huggingface_trainer import PlannedTrainerMixin, UnplannableError


@pytest.mark.parametrize("kind", ["DPO", "Reward", "GRPO"])
def test_other_trainers_of_trl_are_rejected_by_name(kind: str, tmp_path: Path) -> None:
    words = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, 64)}}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    base: Any = getattr(trl, f"{kind}Trainer")
    planned_class: Any = type("PlannedTrainer", (PlannedTrainerMixin, base), {})
    dense: Any = model()
    options: dict[str, Any] = {"model": dense}
    settings: dict[str, Any] = {}
    if kind == "DPO":
        options["ref_model"] = model()
    elif kind == "Reward":
        dense.config.num_labels, dense.config.pad_token_id = 1, 0
        options["model"] = LlamaForSequenceClassification(dense.config)
    else:
        options["reward_funcs"] = lambda completions, **_: [1.0] * len(completions)
        settings.update(generation_batch_size=2, num_generations=2)
    row = {"prompt": "w3 w4", "chosen": "w5 w6 w7", "rejected": "w8 w9"}
    config = getattr(trl, f"{kind}Config")(
        output_dir=str(tmp_path),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=1,
        use_cpu=True,
        bf16=False,
        report_to=[],
        **settings,
    )
    message = f"{kind}Trainer: of TRL's trainers only SFTTrainer takes planned steps. Use it"
    with pytest.raises(UnplannableError, match=message):
        planned_class(
            args=config,
            train_dataset=Dataset.from_list([row for _ in SAMPLES]),
            processing_class=tokenizer,
            planned=planned(),
            **options,
        )
