"""Experts over ranks in ``transformers.Trainer``: losses and norms of one process, or an error."""

import functools
import os
import re
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
def expert_trainer(made: Any, degree: int, folder: str, **more: Any) -> Any:
    """The trainer that a user writes, of a model."""
    from transformers import Trainer

    from seqplan.integrations.expert_trainer import PlannedExpertTrainerMixin

    class PlannedExpertTrainer(PlannedExpertTrainerMixin, Trainer):  # type: ignore[misc]
        pass

    return PlannedExpertTrainer(
        model=made,
        args=arguments(folder, num_train_epochs=1, **more),
        train_dataset=SAMPLES,
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


def reject() -> dict[str, str]:
    """The messages of settings and models that are rejected, on one rank of two."""
    from trainer_ranks import model

    def attempt(made: Any, degree: int, **more: Any) -> str:
        with tempfile.TemporaryDirectory() as folder:
            try:
                expert_trainer(made, degree, folder, **more)
            except ValueError as error:
                return str(error)
        return "made"

    return {
        "ranks": attempt(expert_model(), 3),
        "dense": attempt(model(), 2),
        "optimizer": attempt(expert_model(), 2, optim="adafactor"),
        "checkpoints": attempt(expert_model(), 2, save_strategy="epoch"),
    }


def test_other_settings_are_rejected() -> None:
    for messages in on_ranks(2, reject):
        assert "expert_parallel: 3 does not divide the 2 ranks" in messages["ranks"]
        assert re.search("LlamaForCausalLM: .*has no experts", messages["dense"])
        assert "optim=adafactor with expert_parallel" in messages["optimizer"]
        assert "Set save_only_model=True" in messages["checkpoints"]
        assert all(len(message.splitlines()) == 1 for message in messages.values())
