"""ms-swift's whole ``sft`` on planned steps: the losses and norms of its plain trainer."""

import functools
import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("binpacking")  # installed with ms-swift, whose import changes transformers

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from trainer_ranks import COST, SAMPLES, SEQUENCES, model, on_ranks
from transformers import PreTrainedTokenizerFast

from seqplan.integrations import ms_swift
from seqplan.integrations.balanced_steps import BalancedSteps
from seqplan.integrations.huggingface_trainer import UnplannableError

PLUGIN = """
from seqplan import Cost
from seqplan.integrations import ms_swift
ms_swift.install({}, 160, Cost({}, {}, {}), seed=1)
"""


def write_inputs(folder: Path) -> None:
    """Write a model, a tokenizer, plugins and conversations: as they are, and in planned order."""
    words = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, 64)}}
    core = Tokenizer(WordLevel(words, unk_token="<pad>"))
    core.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>"
    ).save_pretrained(folder / "model")
    model(torch.float32).save_pretrained(folder / "model")
    rows = []
    for place, sample in enumerate(SAMPLES):
        text = [f"w{i}" for i in sample["input_ids"]]
        prompt = max(1, len(text) * (place % 4) // 5)
        parts = {"user": text[:prompt], "assistant": text[prompt:]}
        rows.append(
            {"messages": [{"role": role, "content": " ".join(of)} for role, of in parts.items()]}
        )
    lengths = [len(sample["input_ids"]) for sample in SAMPLES]
    for count in (SEQUENCES, 1):
        (folder / f"plugin{count}.py").write_text(PLUGIN.format(count, COST.a, COST.b, COST.c))
        steps = BalancedSteps(lengths, count, 160, COST, seed=1).epoch(0, 1, lockstep=False)
        order = [i for step in steps for micro in step.micro_batches[0] for i in micro]
        for name, places in (("planned", range(len(rows))), ("plain", order)):
            file = folder / f"{name}{count}.jsonl"
            file.write_text("\n".join(json.dumps(rows[place]) for place in places))


def train(folder: Path, sequences: int, *, planned: bool, **more: Any) -> list[dict[str, float]]:
    """Train an epoch by ``swift sft``; the plain trainer accumulates the planned sequences."""
    from swift.pipelines import sft_main
    from swift.trainers import TrainerFactory

    options = {
        "model_type": "llama",
        "template": "default",
        "split_dataset_ratio": 0,
        "tuner_type": "full",
        "torch_dtype": "float32",
        "gradient_accumulation_steps": 1 if planned else sequences,
        "dataset_shuffle": False,
        "train_dataloader_shuffle": False,
        "optim": "sgd",
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "warmup_ratio": 0,
        "max_grad_norm": 0.5,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "save_strategy": "no",
        "check_model": False,
        "use_cpu": True,
        "num_train_epochs": 1,
        "per_device_train_batch_size": 1,
        "dataloader_num_workers": 0,
        "add_version": False,
        **more,
    }
    name = "planned" if planned else "plain"
    options.update(model=folder / "model", dataset=folder / f"{name}{sequences}.jsonl")
    if planned:
        options["external_plugins"] = folder / f"plugin{sequences}.py"
    if "RANK" in os.environ:
        options["ddp_backend"] = "gloo"
    before = dict(TrainerFactory.TRAINER_MAPPING)
    with tempfile.TemporaryDirectory() as scratch:
        options.setdefault("output_dir", scratch)
        trained = sft_main(
            [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        )
    TrainerFactory.TRAINER_MAPPING.update(before)
    return [entry for entry in trained["log_history"] if "loss" in entry]


def train_all(folder: Path, runs: list[tuple[int, bool]]) -> list[list[dict[str, float]]]:
    return [train(folder, sequences, planned=planned) for sequences, planned in runs]


def test_losses_and_norms_are_those_of_the_plain_trainer(tmp_path: Path) -> None:
    """With one sequence in a step, one of two ranks has none."""
    write_inputs(tmp_path)
    runs = [(SEQUENCES, False), (SEQUENCES, True), (1, False)]
    ((plain, planned, single),) = on_ranks(1, functools.partial(train_all, tmp_path, runs), 300)
    runs = [(SEQUENCES, True), (1, True)]
    together = on_ranks(2, functools.partial(train_all, tmp_path, runs), 300)[0]
    for ours, theirs in ((planned, plain), (together[0], plain), (together[1], single)):
        assert len(ours) == len(theirs)
        for step, (mine, others) in enumerate(zip(ours, theirs, strict=True)):
            for name in ("loss", "grad_norm"):
                assert mine[name] == pytest.approx(others[name], rel=2e-5), (name, step)
    assert all(entry["plan/predicted_ms"] > 0 for entry in planned + together[0])


ADAPTERS = {"tuner_type": "lora", "target_modules": "all-linear", "lora_dropout": 0}


def train_adapters(folder: Path) -> list[list[dict[str, float]]]:
    """Train adapters by both trainers, and save what the planned one has after two steps."""
    saved = {"output_dir": folder / "saved", "save_strategy": "steps", "save_steps": 2}
    plain = train(folder, SEQUENCES, planned=False, **ADAPTERS)
    return [plain, train(folder, SEQUENCES, planned=True, **ADAPTERS, **saved)]


def test_adapters_train_the_same_and_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    ((plain, planned),) = on_ranks(1, functools.partial(train_adapters, tmp_path), 300)
    last = tmp_path / "saved" / "checkpoint-2"
    go_on = functools.partial(train, tmp_path, SEQUENCES, planned=True, **ADAPTERS)
    # A plugin is read once by a process.
    (resumed,) = on_ranks(1, functools.partial(go_on, resume_from_checkpoint=last), 300)
    assert len(plain) == len(planned) == len(resumed) > 2
    for ours, theirs in ((planned, plain), (resumed, planned)):
        for step, (mine, others) in enumerate(zip(ours, theirs, strict=True)):
            for name in ("loss", "grad_norm"):
                assert mine[name] == pytest.approx(others[name], rel=2e-5), (name, step)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"lazy_tokenize": True}, "lazy_tokenize: true. Set both to false"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor or router_aux_loss_coef"),
    ],
)
def test_settings_that_cannot_be_planned_are_named(
    options: Any, sentence: str, tmp_path: Path
) -> None:
    write_inputs(tmp_path)
    work = functools.partial(train, tmp_path, SEQUENCES, planned=True, **options)
    with pytest.raises(RuntimeError, match=sentence):
        on_ranks(1, work, 300)


def test_images_are_rejected_by_the_model_that_takes_them() -> None:
    template = SimpleNamespace(
        model_meta=SimpleNamespace(model_type="qwen2_5_vl", is_multimodal=True),
        support_padding_free=None,
        packing=False,
        sequence_parallel_size=1,
    )
    args = SimpleNamespace(
        group_by_length=False, label_smoothing_factor=0.0, router_aux_loss_coef=None
    )
    samples = SimpleNamespace(column_names=["lengths"])
    with pytest.raises(UnplannableError, match=r"\(model qwen2_5_vl\): not supported"):
        ms_swift.check_settings(args, template, samples)
