"""LLaMA-Factory's trainer, planned, by the interface of its release 0.9.5."""

import sys
import tempfile
from types import ModuleType
from typing import Any

import pytest
import torch
from test_huggingface_trainer import assert_equal_logs
from trainer_ranks import COST, SAMPLES, SEQUENCES, arguments, model, needs_trainer

from seqplan.integrations.versions import UnsupportedVersion

pytestmark = needs_trainer


class Samples(list[dict[str, Any]]):
    """A data set as ``run_sft`` has it: samples by place, columns by name."""

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return [sample[key] for sample in self]
        return super().__getitem__(key)


@pytest.fixture
def workflow(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Its module with a trainer of the same keywords: the release needs an older TRL."""
    from transformers import Seq2SeqTrainer

    class CustomSeq2SeqTrainer(Seq2SeqTrainer):
        def __init__(
            self,
            finetuning_args: Any,
            processor: Any,
            model_args: Any = None,
            gen_kwargs: Any = None,
            ref_model: Any = None,
            **kwargs: Any,
        ) -> None:
            kwargs["processing_class"] = kwargs.pop("tokenizer")
            super().__init__(**kwargs)

    module: Any = ModuleType("llamafactory.train.sft.workflow")
    module.CustomSeq2SeqTrainer = CustomSeq2SeqTrainer
    monkeypatch.setitem(sys.modules, "llamafactory.train.sft.workflow", module)
    return module


def test_losses_and_norms_are_those_of_one_process(workflow: Any) -> None:
    from transformers import Seq2SeqTrainingArguments

    from seqplan.integrations import llama_factory

    original = workflow.CustomSeq2SeqTrainer
    for _ in range(2):
        llama_factory.install(SEQUENCES, 160, COST, seed=1)
    assert workflow.CustomSeq2SeqTrainer.__mro__.count(original) == 1
    assert workflow.CustomSeq2SeqTrainer.host_class is original
    with tempfile.TemporaryDirectory() as folder:
        usual = arguments(folder).to_dict()
        names = ("per_device_train_batch_size", "num_train_epochs", "use_cpu", "logging_steps")
        names += ("learning_rate", "optim", "lr_scheduler_type", "save_strategy", "disable_tqdm")
        names += ("max_grad_norm", "bf16", "report_to", "output_dir")
        trainer = workflow.CustomSeq2SeqTrainer(
            model=model(torch.float64),
            args=Seq2SeqTrainingArguments(**{name: usual[name] for name in names}),
            finetuning_args=None,
            data_collator="its collator, which pads",
            callbacks=None,
            gen_kwargs={},
            ref_model=None,
            train_dataset=Samples(SAMPLES),
            tokenizer=None,
            processor=None,
        )
        trainer.train()
        assert_equal_logs([entry for entry in trainer.state.log_history if "loss" in entry])


def test_absent_llama_factory_is_named() -> None:
    from seqplan.integrations import llama_factory

    with pytest.raises(UnsupportedVersion, match="has no CustomSeq2SeqTrainer in llamafactory"):
        llama_factory.install(SEQUENCES, 160, COST)
