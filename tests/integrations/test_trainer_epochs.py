"""Epochs of a planned trainer: those of a plain one, also if a callback ends one early."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_ranks import (
    SAMPLES,
    SEQUENCES,
    STEPS,
    arguments,
    model,
    needs_trainer,
    on_ranks,
    packing,
    planned,
    planned_trainer,
)

pytestmark = needs_trainer


class DrawnPlaces(torch.utils.data.Sampler[int]):
    """Draws the samples of each epoch in the order of the planned steps."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return STEPS * SEQUENCES

    def __iter__(self) -> Any:
        for step in planned().epoch(self.epoch, 1, lockstep=False):
            yield from (place for micro_batch in step.micro_batches[0] for place in micro_batch)


def train_until(
    *, plain: bool = False, end: int, folder: str, resume: str | None = None, **more: Any
) -> list[dict[str, Any]]:
    """Train with a callback that ends the epoch after step ``end``; return the logs of steps."""
    from transformers import Trainer, TrainerCallback

    class PlainTrainer(Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any) -> DrawnPlaces:
            return DrawnPlaces()

    class EndEpoch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            control.should_epoch_stop = state.global_step == end
            return control

    options: dict[str, Any] = {"num_train_epochs": 3, "optim": "adamw_torch", **more}
    if plain:
        options["gradient_accumulation_steps"] = SEQUENCES
    trainer_class = (
        PlainTrainer if plain else functools.partial(planned_trainer(), planned=planned())
    )
    trainer = trainer_class(
        model=model(),
        args=arguments(folder, **options),
        train_dataset=SAMPLES,
        data_collator=packing(),
        callbacks=[EndEpoch()],
    )
    trainer.train(resume_from_checkpoint=resume)
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def assert_equal_steps(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    assert len(ours) == len(theirs) > STEPS
    for one, other in zip(ours, theirs, strict=True):
        assert one["epoch"] == other["epoch"]
        for name in ("loss", "grad_norm"):
            assert one[name] == pytest.approx(other[name], rel=1e-6), name


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_epoch_after_one_that_a_callback_ended_is_the_next(tmp_path: Path, ranks: int) -> None:
    ended = functools.partial(train_until, end=2, folder=str(tmp_path))
    (plain,) = on_ranks(1, functools.partial(ended, plain=True))
    assert_equal_steps(on_ranks(ranks, ended)[0], plain)


def test_a_run_that_resumes_within_an_epoch_ends_it_early_as_a_plain_one(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 4}
    logs = []
    for plain in (True, False):
        folder = str(tmp_path / str(plain))
        part = functools.partial(train_until, plain=plain, folder=folder, **saving)
        on_ranks(1, functools.partial(part, end=0, max_steps=4))
        checkpoint = f"{folder}/checkpoint-4"
        logs += on_ranks(1, functools.partial(part, end=5, resume=checkpoint))
    assert_equal_steps(logs[1], logs[0])
