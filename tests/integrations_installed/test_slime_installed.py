"""The planned schedule in slime itself, which is no package: with a checkout on PYTHONPATH."""

import logging
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

from seqplan import Cost
from seqplan.integrations import slime

pytestmark = pytest.mark.skipif(find_spec("slime") is None, reason="slime is not on PYTHONPATH")

COST = Cost(2e-6, 0.1, 60.0)
PARALLEL = {"dp_size": 8, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}


def arguments(**more: object) -> SimpleNamespace:
    usual = {
        "use_dynamic_batch_size": True,
        "max_tokens_per_gpu": 8192,
        "micro_batch_size": 1,
        "balance_data": False,
        "balance_by_flops": False,
    }
    return SimpleNamespace(**{**usual, **more})


def lockstep_ms(schedule: slime.Schedule, lengths: list[int]) -> float:
    """Σ over micro-batches of the slowest rank."""
    partitions, places, _, _ = schedule
    times = [
        [COST.micro_batch_ms([lengths[samples[i]] for i in micro]) for micro in of_rank]
        for samples, of_rank in zip(partitions, places, strict=True)
    ]
    return sum(max(of_micro_step) for of_micro_step in zip(*times, strict=True))


def test_the_schedule_that_rollouts_ask_for_is_planned(caplog: pytest.LogCaptureFixture) -> None:
    from slime.utils import dp_schedule

    slime.install(COST)
    planned, original = dp_schedule.build_dp_schedule, dp_schedule.build_dp_schedule.host_function
    slime.install(COST)
    assert dp_schedule.build_dp_schedule.host_function is original
    lengths = np.minimum(np.random.default_rng(0).lognormal(7, 1, 256).astype(int) + 1, 8192)
    call = {"global_batch_size": 128, "rollout_indices": list(range(256))}
    ours = planned(arguments(), PARALLEL, lengths.tolist(), **call)
    theirs = original(arguments(), PARALLEL, lengths.tolist(), **call)
    assert ours[3] == theirs[3]
    first = [sorted(i for members in s[0] for i in members) for s in (ours, theirs)]
    assert first[0] == first[1]
    assert lockstep_ms(ours, lengths.tolist()) <= lockstep_ms(theirs, lengths.tolist())
    caplog.set_level(logging.WARNING)
    fixed = arguments(use_dynamic_batch_size=False, micro_batch_size=4)
    assert planned(fixed, PARALLEL, lengths.tolist(), **call) == original(
        fixed, PARALLEL, lengths.tolist(), **call
    )
    assert "these steps are scheduled as slime does it" in caplog.text
