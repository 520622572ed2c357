"""Balanced steps under DeepSpeed's ZeRO: the losses and norms of one process."""

import functools
import os
import tempfile
from typing import Any

import pytest

pytest.importorskip("deepspeed")

import deepspeed
import torch
from test_huggingface_trainer import assert_equal_logs
from trainer_ranks import SAMPLES, arguments, model, on_ranks, packing, planned, planned_trainer


def under_zero(
    stage: int, recompute: dict[str, int] | None = None
) -> tuple[list[dict[str, float]], int]:
    """Train in fp32; return the logs of each step, and how often the engine stepped."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    # Collectives by gloo: its shared-memory ones would be compiled first, for minutes.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": stage, "overlap_comm": False},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        args = arguments(folder, deepspeed=settings, learning_rate=1e-2)
        trainer = planned_trainer()(
            model=model(torch.float32),
            args=args,
            train_dataset=SAMPLES,
            data_collator=packing(),
            planned=planned(recompute=recompute),
        )
        assert str(trainer.accelerator.distributed_type).endswith("DEEPSPEED")
        assert trainer.accelerator.num_processes == int(os.environ["WORLD_SIZE"])
        trainer.train()
        steps = trainer.deepspeed.global_steps
        return [entry for entry in trainer.state.log_history if "loss" in entry], steps


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_losses_and_norms_are_those_of_one_process(stage: int) -> None:
    for logs, steps in on_ranks(2, functools.partial(under_zero, stage), 300):
        assert_equal_logs(logs)
        assert steps == len(logs)


def test_recomputation_modes_do_not_change_losses() -> None:
    modes = {"none": 60, "elementwise": 110, "full": 160}
    for logs, _ in on_ranks(2, functools.partial(under_zero, 2, modes), 300):
        assert_equal_logs(logs)


def test_recomputation_modes_are_rejected_where_ranks_would_wait() -> None:
    with pytest.raises(RuntimeError, match="ZeRO stage with recomputation modes: 3"):
        on_ranks(2, functools.partial(under_zero, 3, {"none": 60, "full": 160}), 300)
