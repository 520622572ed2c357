"""Balanced steps in a plain DeepSpeed loop, as the page shows it: its losses are plain torch's."""

import functools
import os
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepspeed")

import deepspeed
import torch
import torch.distributed as dist
from trainer_ranks import NO_LABEL, SAMPLES, model, on_ranks, packing, planned

from seqplan.integrations.balanced_steps import RankedStep

PAGE = Path(__file__).parents[2] / "docs" / "transformers-trainer.md"
(LOOP,) = re.findall(r"```python\n(for step in .*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def labels_of(step: RankedStep) -> int:
    """Count the labels of a step, over all ranks."""
    of_all = [place for of_rank in step.micro_batches for micro in of_rank for place in micro]
    return sum(token != NO_LABEL for place in of_all for token in SAMPLES[place]["labels"][1:])


def trained_plain() -> list[float]:
    """Train an epoch in one process without DeepSpeed; return the mean loss of each step."""
    net = model(torch.float32)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    losses = []
    for step in planned().epoch(0, 1, lockstep=True):
        total = 0.0
        for places in step.micro_batches[0]:
            batch = packing()([SAMPLES[place] for place in places])
            loss = net(**batch, num_items_in_batch=labels_of(step), use_cache=False).loss
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def trained(stage: int) -> float:
    """Train an epoch by the page's loop; return the sum of the steps' mean losses."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    # Collectives by gloo: its shared-memory ones would be compiled first, for minutes.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": stage, "overlap_comm": False},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    net = model(torch.float32)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=settings)
    losses: list[torch.Tensor] = []
    names = {"rank": dist.get_rank(), "ranks": dist.get_world_size(), "planned": planned()}
    names |= {"engine": engine, "dataset": SAMPLES, "collate": packing(), "losses": losses}
    exec(LOOP, {**names, "count_labels": labels_of})
    total = torch.stack(losses).sum()
    dist.all_reduce(total)
    return float(total)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_losses_on_two_ranks_are_those_of_one_process(stage: int) -> None:
    alone = sum(trained_plain())
    for losses in on_ranks(2, functools.partial(trained, stage), 300):
        assert losses == pytest.approx(alone, rel=1e-5)
