"""Balanced steps in TRL's SFTTrainer: the losses and norms of one process, and adapters."""

import functools
import tempfile
from typing import Any

import pytest

pytest.importorskip("trl")

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from datasets import Dataset
from peft import LoraConfig
from test_huggingface_trainer import assert_equal_logs
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from trainer_ranks import FSDP, SAMPLES, arguments, expert_model, model, on_ranks, planned
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from seqplan.integrations.expert_trainer import PlannedExpertTrainerMixin
from seqplan.integrations.huggingface_trainer import PlannedTrainerMixin
from seqplan.integrations.trainer_trial import IGNORED


class PlannedSFTTrainer(PlannedTrainerMixin, SFTTrainer):
    """What a user writes."""


class PlannedExpertSFTTrainer(PlannedExpertTrainerMixin, SFTTrainer):
    """The same with experts over ranks."""


def fine_tuned(
    *, sharded: bool = False, adapters: bool = False, degree: int = 0, **more: Any
) -> list[dict[str, float]]:
    """Train; return the logs of each step."""
    if sharded:
        more |= FSDP
    words = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, 64)}}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    rows = [
        {
            "input_ids": sample["input_ids"],
            "completion_mask": [int(label != IGNORED) for label in sample["labels"]],
        }
        for sample in SAMPLES
    ]
    with tempfile.TemporaryDirectory() as folder:
        usual = arguments(folder).to_dict()
        names = ("per_device_train_batch_size", "num_train_epochs", "use_cpu", "logging_steps")
        names += ("learning_rate", "optim", "lr_scheduler_type", "save_strategy", "disable_tqdm")
        names += ("max_grad_norm", "bf16", "ddp_backend", "report_to")
        options: dict[str, Any] = {name: usual[name] for name in names}
        options.update(gradient_checkpointing=False, padding_free=True, max_length=None)
        options.update(completion_only_loss=True)
        config = SFTConfig(output_dir=folder, **{**options, **more})
        if sharded:
            # On CPUs accelerate takes plain data parallelism, for any setting.
            PartialState()
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        kind: Any = PlannedSFTTrainer
        if degree:
            kind = functools.partial(PlannedExpertSFTTrainer, expert_parallel=degree)
        dense = model(torch.float32 if config.bf16 else torch.float64)
        trainer = kind(
            model=expert_model() if degree else dense,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            planned=planned(),
            peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]) if adapters else None,
        )
        assert trainer.accelerator.is_fsdp2 == sharded
        trainer.train()
        return [entry for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("sharded", [False, True], ids=["ddp", "fsdp2"])
def test_masked_prompts_on_two_ranks(sharded: bool) -> None:
    logs = on_ranks(2, functools.partial(fine_tuned, sharded=sharded), 300)[0]
    assert_equal_logs(logs)
    assert all(entry["plan/predicted_ms"] > 0 for entry in logs)


@functools.cache
def alone(**more: Any) -> list[dict[str, float]]:
    (logs,) = on_ranks(1, functools.partial(fine_tuned, **more), 300)
    return logs


def test_adapters_on_two_ranks_are_those_of_one_process() -> None:
    for sharded in (False, True):
        both = functools.partial(fine_tuned, adapters=True, sharded=sharded)
        for ours, theirs in zip(on_ranks(2, both, 300)[0], alone(adapters=True), strict=True):
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
            assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)


def test_experts_over_two_ranks_are_those_of_one_process() -> None:
    logs = on_ranks(2, functools.partial(fine_tuned, degree=2, router_aux_loss_coef=0.0), 300)[0]
    for ours, theirs in zip(logs, alone(degree=1, router_aux_loss_coef=0.0), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=3e-6)


def test_bfloat16_under_fsdp2_is_within_twice_of_one_process() -> None:
    exact = alone()
    errors = []
    single = alone(bf16=True)
    two = on_ranks(2, functools.partial(fine_tuned, sharded=True, bf16=True), 300)[0]
    for logs in (single, two):
        pairs = zip(logs, exact, strict=True)
        errors.append(max(abs(ours["loss"] / true["loss"] - 1) for ours, true in pairs))
    assert errors[1] <= 2 * errors[0] + 1e-5
