"""Settings and checkpoints that a planned trainer rejects, and models that are loaded in shards."""

import functools
import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_huggingface_trainer import assert_equal_logs, rejected
from trainer_ranks import (
    FSDP,
    SAMPLES,
    arguments,
    model,
    needs_trainer,
    on_ranks,
    packing,
    planned,
    planned_trainer,
    trained,
)

from seqplan.integrations.trainer_settings import find_cut_checkpoint

pytestmark = needs_trainer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optim": "galore_adamw_layerwise", "optim_target_modules": ["q_proj"]}, "optim=galore_"),
        ({"optim": "apollo_adamw_layerwise", "optim_target_modules": ["q_proj"]}, "optim=apollo_"),
        ({"optim": "lomo"}, "optim=lomo steps in backward, once a micro-batch. Use another, as"),
        ({"optim": "adalomo"}, "optim=adalomo steps in backward, once a micro-batch. Use another"),
        ({"ignore_data_skip": True}, "ignore_data_skip=True: a resumed epoch would repeat its"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha: its noise depends on the tokens of"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_are_rejected_before_training(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planned_trainer(), "train", lambda _: pytest.fail("it was not rejected"))
    assert message in rejected(arguments=options)


def test_data_that_is_not_tokenized_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [{"text": "some"} for _ in SAMPLES]
    text = rejected(train_dataset=texts)
    assert text == "the data set's samples have no input_ids. Tokenize the data set first"


def test_a_checkpoint_without_a_record_of_steps_is_not_resumed(tmp_path: Path) -> None:
    from transformers import Trainer

    options: dict[str, Any] = {"train_dataset": SAMPLES, "data_collator": packing()}
    saved = arguments(str(tmp_path), max_steps=2, save_strategy="steps", save_steps=2)
    Trainer(model=model(), args=saved, **options).train()
    resumed = planned_trainer()(
        model=model(), args=arguments(str(tmp_path)), planned=planned(), **options
    )
    message = (
        "the checkpoint of step 2 has no record of BalancedSteps. Resume from one of planned "
        "steps, or train without resume_from_checkpoint"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        resumed.train(resume_from_checkpoint=True)


def test_a_checkpoint_whose_writing_was_cut_is_named(tmp_path: Path) -> None:
    options: dict[str, Any] = {"train_dataset": SAMPLES, "data_collator": packing()}
    saved = arguments(str(tmp_path), max_steps=2, save_strategy="steps", save_steps=1)
    trainer = planned_trainer()(model=model(), args=saved, planned=planned(), **options)
    trainer.train()
    newest, before = tmp_path / "checkpoint-2", tmp_path / "checkpoint-1"
    (newest / "trainer_state.json").write_text('{"epo')
    (tmp_path / "checkpoint-3").write_text("no folder")
    message = f"{newest} was not written to its end: it has no whole trainer_state.json. "
    with pytest.raises(
        ValueError, match=re.escape(f"{message}Give resume_from_checkpoint='{before}'")
    ):
        trainer.train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match=re.escape(message + "Train from the start")):
        trainer.train(resume_from_checkpoint=str(newest))
    trainer.train(resume_from_checkpoint=str(before))
    assert trainer.state.global_step == 2


@pytest.mark.parametrize(
    ("removed", "lacking"),
    [
        ([], "no optimizer.pt and no scheduler.pt"),
        (["optimizer.pt"], "no optimizer.pt"),
        (["scheduler.pt"], "no scheduler.pt"),
    ],
    ids=["save_only_model", "optimizer", "scheduler"],
)
def test_a_checkpoint_without_the_optimizer_is_not_resumed(
    tmp_path: Path, removed: list[str], lacking: str
) -> None:
    options: dict[str, Any] = {"train_dataset": SAMPLES, "data_collator": packing()}
    saved = arguments(
        str(tmp_path),
        max_steps=2,
        save_strategy="steps",
        save_steps=1,
        save_only_model=not removed,
    )
    trainer = planned_trainer()(model=model(), args=saved, planned=planned(), **options)
    trainer.train()
    newest, before = tmp_path / "checkpoint-2", tmp_path / "checkpoint-1"
    for name in removed:
        (newest / name).unlink()
    message = f"{newest} has {lacking}, as with save_only_model: the optimizer would be new. "
    fix = f"Give resume_from_checkpoint='{before}'" if removed else "Train from the start"
    with pytest.raises(ValueError, match=f"^{re.escape(message + fix)}$"):
        trainer.train(resume_from_checkpoint=True)


def test_checkpoints_of_sharded_ranks_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FSDP["fsdp_config"], "state_dict_type", "SHARDED_STATE_DICT")
    train = functools.partial(trained, sharded=True, folder=str(tmp_path))
    on_ranks(2, functools.partial(train, max_steps=2, save_strategy="steps", save_steps=2))
    checkpoint = tmp_path / "checkpoint-2"
    assert not (checkpoint / "optimizer.pt").exists()
    assert_equal_logs(on_ranks(2, functools.partial(train, resume=str(checkpoint)))[0])


@pytest.mark.parametrize(
    ("files", "deepspeed", "whole"),
    [
        (["optimizer.bin", "scheduler.pt"], False, True),  # FSDP with FULL_STATE_DICT
        ([], False, False),
        ([], True, True),
    ],
)
def test_optimizers_in_other_files_are_found(
    tmp_path: Path, files: list[str], deepspeed: bool, whole: bool
) -> None:
    for name in ("trainer_state.json", *files):
        (tmp_path / name).write_text("{}")
    trainer = SimpleNamespace(
        args=SimpleNamespace(output_dir=str(tmp_path)), is_deepspeed_enabled=deepspeed
    )
    assert (find_cut_checkpoint(trainer, str(tmp_path)) is None) == whole


def load_shards(folder: str) -> Any:
    """Load a model of which each of two ranks has a half (FSDP2)."""
    from transformers import AutoModelForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, distributed_config=DistributedConfig(fsdp_size=2)
    )


def train_shards(folder: str) -> list[dict[str, Any]]:
    """Train a stored model on two ranks, which meet in each micro-batch."""
    return trained(made=functools.partial(load_shards, folder))


@pytest.mark.skipif(
    find_spec("transformers") is None
    or find_spec("transformers.distributed.configuration_utils") is None,
    reason="transformers does not load models in shards",
)
def test_a_model_that_is_loaded_in_shards_trains_as_in_one_process(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    logs = on_ranks(2, functools.partial(train_shards, str(tmp_path)))[0]
    assert_equal_logs(logs)
