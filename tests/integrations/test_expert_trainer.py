"""Experts over ranks in ``transformers.Trainer``: losses and norms of one process, or an error."""

import functools
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trainer_ranks import (
    SAMPLES,
    arguments,
    expert_model,
    needs_trainer,
    on_ranks,
    packing,
    planned,
)

pytestmark = needs_trainer

STEPS = 3


@functools.cache
def expert_trainer(made: Any, degree: int, folder: str, evaluated: int = 0, **more: Any) -> Any:
    """The trainer that a user writes, of a model."""
    from transformers import Trainer

    from seqplan.integrations.expert_trainer import PlannedExpertTrainerMixin

    class PlannedExpertTrainer(PlannedExpertTrainerMixin, Trainer):  # type: ignore[misc]
        pass

    return PlannedExpertTrainer(
        model=made,
        args=arguments(folder, num_train_epochs=1, **more),
        train_dataset=SAMPLES,
        eval_dataset=SAMPLES[:evaluated] or None,
        data_collator=packing(),
        planned=planned(),
        expert_parallel=degree,
    )


def train(degree: int, **more: Any) -> tuple[list[dict[str, float]], dict[str, Any], int]:
    """Train and save; return the logs, the saved model's values and a layer's experts here."""
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        trainer = expert_trainer(expert_model(), degree, folder, **more)
        trainer.train()
        held = trainer.model.model.layers[0].mlp.experts.down_proj.shape[0]
        trainer.save_model()
        logs = [entry for entry in trainer.state.log_history if "loss" in entry]
        saved: dict[str, Any] = {}
        if trainer.is_world_process_zero():
            again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
            saved = {name: value.detach().numpy() for name, value in again.named_parameters()}
            assert (Path(folder) / "training_args.bin").is_file()
        return logs, saved, held


PAGE = Path(__file__).parents[2] / "docs" / "transformers-trainer.md"


def train_as_the_page(folder: str) -> list[float]:
    """Run the page's program on a stored model; return its losses."""
    _, code, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {
        "name": Path(folder) / "stored",
        "degree": 2,
        "dtype": torch.float64,
        "args": arguments(folder, num_train_epochs=1),
        "dataset": SAMPLES,
        "planned": planned(),
    }
    os.chdir(folder)
    exec(code.replace("dtype=dtype", 'dtype=dtype, experts_implementation="eager"'), names)
    return [entry["loss"] for entry in names["trainer"].state.log_history if "loss" in entry]


def store(folder: str) -> None:
    expert_model().save_pretrained(Path(folder) / "stored")


def test_the_page_trains_in_parts(tmp_path: Path) -> None:
    on_ranks(1, functools.partial(store, str(tmp_path)))
    losses, _ = on_ranks(2, functools.partial(train_as_the_page, str(tmp_path)))
    assert losses == pytest.approx([entry["loss"] for entry in reference()[0]], rel=1e-6)
    assert (tmp_path / "trained" / "model.safetensors.index.json").is_file()


@functools.cache
def reference() -> tuple[list[dict[str, float]], dict[str, Any], int]:
    """Of one process."""
    (outcome,) = on_ranks(1, functools.partial(train, 1))
    return outcome  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("ranks", "degree", "options"),
    [(2, 2, {}), (4, 2, {"activation_checkpointing": True})],
    ids=["one block", "two blocks"],
)
def test_losses_norms_and_values_are_those_of_one_process(
    ranks: int, degree: int, options: dict[str, Any]
) -> None:
    logs, values, held = reference()
    outcomes = on_ranks(ranks, functools.partial(train, degree, **options))
    assert held == 4
    assert {outcome[2] for outcome in outcomes} == {held // degree}
    assert len(outcomes[0][0]) == len(logs) == STEPS
    for ours, theirs in zip(outcomes[0][0], logs, strict=True):
        for name in ("loss", "grad_norm"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-6), name
    assert any(entry["grad_norm"] > 0.5 for entry in logs), "nothing is clipped"
    saved = outcomes[0][1]
    assert saved.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_allclose(saved[name], value, rtol=0, atol=5e-5)


def resume(degree: int, folder: str, checkpoint: str | None, **more: Any) -> list[float]:
    """Train on, or from the start, with checkpoints; return the losses of all steps."""
    saving = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 3}
    trainer = expert_trainer(
        expert_model(), degree, folder, optim="adamw_torch", **{**saving, **more}
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@functools.cache
def straight() -> list[float]:
    """Losses of one process without a stop."""
    (losses,) = on_ranks(1, functools.partial(resume, 1, tempfile.mkdtemp(), None))
    return losses  # type: ignore[no-any-return]


def test_a_run_resumes_on_any_number_of_ranks(tmp_path: Path) -> None:
    first, stopped, again = (str(tmp_path / name) for name in ("first", "stopped", "again"))
    losses, *_ = on_ranks(2, functools.partial(resume, 2, first, None))
    assert losses == pytest.approx(straight(), rel=1e-6)
    checkpoint = f"{first}/checkpoint-1"
    assert sorted(path.name for path in Path(checkpoint).glob("optimizer*")) == [
        "optimizer.pt",
        "optimizer_experts_1_of_2.pt",
    ]
    # Two parts are read as four, and these as one; two as one, and that as two.
    on_ranks(4, functools.partial(resume, 4, stopped, checkpoint, max_steps=2))
    on_ranks(1, functools.partial(resume, 1, again, checkpoint, max_steps=2))
    (losses,) = on_ranks(1, functools.partial(resume, 1, first, f"{stopped}/checkpoint-2"))
    assert losses == pytest.approx(straight(), rel=1e-6)
    old = Path(stopped, "checkpoint-3", "optimizer_experts_1_of_4.pt")
    old.parent.mkdir()
    old.touch()
    losses, *_ = on_ranks(2, functools.partial(resume, 2, stopped, f"{again}/checkpoint-2"))
    assert losses == pytest.approx(straight(), rel=1e-6)
    assert not old.exists()
    for name, message in (
        ("optimizer_experts_2_of_4.pt", r"optimizer_experts_2_of_4\.pt is missing, or is of"),
        ("optimizer.pt", r"has no optimizer\.pt, as with save_only_model"),
        ("model.safetensors.index.json", "cannot be loaded: .*model.safetensors"),
        ("config.json", r"checkpoint-2 has no config\.json\. Resume from another checkpoint"),
    ):
        copy = tmp_path / "copy" / "checkpoint-2"
        shutil.copytree(f"{stopped}/checkpoint-2", copy)
        (copy / name).unlink()
        with pytest.raises(RuntimeError, match=message):
            on_ranks(2, functools.partial(resume, 2, again, str(copy)))
        shutil.rmtree(copy)


def load_wide(folder: str) -> tuple[list[str], str]:
    """Name values of a model in bf16 with norms in fp32 that differ after they are loaded again.

    And the message of a folder that lacks a tensor.
    """
    from safetensors.torch import load_file, save_file

    made = expert_model().bfloat16()
    for name, parameter in made.named_parameters():
        if "norm" in name:
            parameter.data = parameter.data.float() * (1 + 1e-4)
    trainer = expert_trainer(made, 1, folder)
    trainer.save_model(folder)
    before = {name: value.clone() for name, value in made.state_dict().items()}
    for parameter in made.parameters():
        parameter.data.zero_()
    trainer._load_from_checkpoint(folder)
    changed = [name for name, value in made.state_dict().items() if not value.equal(before[name])]
    path = Path(folder) / "model.safetensors"
    stored = load_file(path)
    stored.pop("model.layers.0.self_attn.q_proj.weight")
    save_file(stored, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="lacks ") as error:
        trainer._load_from_checkpoint(folder)
    return changed, str(error.value)


def test_values_are_loaded_as_they_are_stored(tmp_path: Path) -> None:
    ((changed, message),) = on_ranks(1, functools.partial(load_wide, str(tmp_path)))
    assert changed == []
    assert message.endswith("q_proj.weight. Resume from another checkpoint")


def find_best(degree: int, folder: str) -> float:
    """Train by steps that are too large; return the best loss, which the model at the end has."""
    trainer = expert_trainer(
        expert_model(),
        degree,
        folder,
        learning_rate=5.0,
        save_strategy="steps",
        save_steps=1,
        eval_strategy="steps",
        eval_steps=1,
        per_device_eval_batch_size=1,
        load_best_model_at_end=True,
        evaluated=4,
    )
    trainer.train()
    losses = [e["eval_loss"] for e in trainer.state.log_history if "eval_loss" in e]
    assert min(losses) < losses[-1]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(min(losses), rel=1e-6)
    return min(losses)


def test_the_best_model_is_loaded_with_its_experts(tmp_path: Path) -> None:
    one, two = (str(tmp_path / name) for name in ("one", "two"))
    whole = on_ranks(2, functools.partial(find_best, 1, one))
    parts = on_ranks(2, functools.partial(find_best, 2, two))
    assert parts == pytest.approx(whole, rel=1e-6)


def reject() -> dict[str, str]:
    """The messages of settings and models that are rejected, on one rank of two."""
    from trainer_ranks import model

    def attempt(made: Any, degree: int, **more: Any) -> str:
        with tempfile.TemporaryDirectory() as folder:
            try:
                expert_trainer(made, degree, folder, **more)
            except (TypeError, ValueError) as error:
                return str(error)
        return "made"

    shards = expert_model()
    shards._is_distributed_loading_by_transformers = True
    return {
        "shards": attempt(shards, 2),
        "ranks": attempt(expert_model(), 3),
        "dense": attempt(model(), 2),
        "optimizer": attempt(expert_model(), 2, optim="adafactor"),
        "checkpoints": attempt(expert_model(), 2, save_on_each_node=True),
        "kind": attempt(expert_model(), 1.5),  # type: ignore[arg-type]
    }


def test_other_settings_are_rejected() -> None:
    for messages in on_ranks(2, reject):
        assert "sharded at load with expert_parallel. Load it whole" in messages["shards"]
        assert "expert_parallel: 3 does not divide the 2 ranks" in messages["ranks"]
        assert re.search("LlamaForCausalLM: .*has no experts", messages["dense"])
        assert "optim=adafactor with expert_parallel" in messages["optimizer"]
        assert "Save into a folder that all ranks share" in messages["checkpoints"]
        assert messages["kind"].startswith("expert_parallel")
        assert all(len(message.splitlines()) == 1 for message in messages.values())
