"""The times that a step states."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from seqplan.plans.scheme import Scheme
from seqplan.plans.views.rank_view import rank_view
from seqplan.profiler.measure.bench import make_full_plan
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.states.sharded_states import ShardedStates
from seqplan.runtime.states.sync import CollectiveSync, Finish
from seqplan.runtime.states.unit import Unit
from seqplan.runtime.training.prepare import make_preparer
from seqplan.runtime.training.run_step import run_step

LATE_S = 0.15


class LateSync(CollectiveSync):
    """Parameters that arrive late."""

    def all_gather(self, unit: Unit) -> Finish:
        finish = super().all_gather(unit)

        def finish_late() -> None:
            time.sleep(LATE_S)
            finish()

        return finish_late


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def test_waits_for_parameters_are_not_computing(group: dist.ProcessGroup) -> None:
    config = ModelConfig(layers=1)
    model = Llama(config)
    states = ShardedStates(model, group)
    optimizer = torch.optim.SGD([master for _, master in states.master_parameters()], lr=0.1)
    view = rank_view(make_full_plan(Scheme(), (16, 8), 1), 0)
    prepare = make_preparer(
        SeededTokens(config.vocab, 0), Peers(None), heads=config.heads, kv_heads=config.kv_heads
    )
    run_step(view, prepare(view), model, states, optimizer)
    states.syncs = [LateSync(group) for _ in states.units]
    result = run_step(view, prepare(view), model, states, optimizer)
    assert len(states.units) > 1
    assert result.step_s > LATE_S * len(states.units)
    assert 0.0 < result.compute_s < LATE_S
