"""Jobs one after the other in a process: on one model, and each on another."""

import gc
import os
from typing import Any

import numpy as np
import pytest
import torch
from attached_inputs import data, model
from random_plans import random_plan

from seqplan import Plan
from seqplan.runtime.errors import UnsupportedModel

JOBS = 3


def attach(trained: Any) -> Any:
    from seqplan import huggingface

    return huggingface.attach(
        trained,
        data(),
        optimizer=lambda named: torch.optim.SGD([value for _, value in named], lr=0.1),
        loss_rows=16,
    )


def train(trained: Any, plans: list[Plan]) -> dict[str, Any]:
    """Losses of a job on ``plans``, and logits of the model in its evaluation and after it."""
    job = attach(trained)
    job.next_step = plans[0].step
    losses = [job.run(step).loss for step in job.steps(iter(plans))]
    tokens = torch.arange(10).view(2, 5)
    with job.evaluation() as evaluated:
        within = evaluated(input_ids=tokens).logits
    job.close()
    job.close()  # which does nothing
    for call in (lambda: job.steps(iter(plans)), lambda: job.save_pretrained("trained")):
        with pytest.raises(RuntimeError, match=r"^the job is closed\. Attach the model again$"):
            call()
    with torch.no_grad():
        after = trained(input_ids=tokens).logits
    return {"losses": losses, "within": within.numpy(), "after": after.numpy()}


def attach_again(rank: int, world_size: int) -> dict[str, Any]:
    """One job of four steps; two of two steps on one model; threads after jobs on new ones.

    And why the model of an open job cannot be attached.
    """
    rng = np.random.default_rng(3)
    plans = [random_plan(rng, world_size, step=step, heads=4, longest=60) for step in range(4)]
    once, twice = model("llama"), model("llama")
    outcome: dict[str, Any] = {
        "once": train(once, plans),
        "twice": [train(twice, plans[:2]), train(twice, plans[2:])],
    }
    job = attach(once)
    with pytest.raises(UnsupportedModel) as rejected:
        attach(once)
    job.close()
    threads = []
    for _ in range(JOBS):
        train(model("llama"), plans[:1])
        gc.collect()
        threads.append(len(os.listdir("/proc/self/task")))
    return {**outcome, "threads": threads, "rejected": str(rejected.value)}
