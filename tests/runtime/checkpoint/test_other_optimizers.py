"""Checkpoints of another optimizer are rejected, and parameters without axes are restored."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import nn

from seqplan.plans.views.optimizer_sharding import Sharding
from seqplan.runtime.checkpoint.save_restore import Cursor, restore, save
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.states.sharded_states import ShardedStates

SGD = partial(torch.optim.SGD, lr=0.1)
ADAMW = partial(torch.optim.AdamW, lr=0.1)
OTHERS = (
    (partial(SGD, momentum=0.9), "has exp_avg, exp_avg_sq, step of AdamW, the job has SGD. "),
    (SGD, "of AdamW, the job has SGD. Restore with the optimizer and options of the job"),
    (partial(torch.optim.RMSprop, lr=0.1), "of AdamW, the job has RMSprop. "),
    (partial(ADAMW, amsgrad=True), "the job has AdamW with exp_avg, exp_avg_sq, max_exp_avg_sq, "),
)


class Scaled(nn.Module):
    """A layer and a scale without axes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 3), nn.Parameter(torch.tensor(1.5))


def make_states(sharding: Sharding, kind: Any) -> tuple[Communicators, ShardedStates, Any]:
    groups = Communicators.create()
    torch.manual_seed(0)
    states = ShardedStates(Scaled(), groups.states, sharding=sharding)
    masters = [master for _, master in states.master_parameters()]
    return groups, states, kind(masters or [{"params": []}])


def update(states: ShardedStates, optimizer: torch.optim.Optimizer, step: int) -> None:
    parts = [part for unit in states.units for part in unit.iterate_owned()]
    for (_, owned), (layout, start, master, _) in zip(
        states.master_parameters(), parts, strict=True
    ):
        places = torch.arange(start, start + master.numel(), dtype=torch.float32)
        owned.grad = states.view_owned(layout, torch.sin(places * step + 1)).reshape(owned.shape)
    optimizer.step()


def restore_others(rank: int, world_size: int, folder: Path) -> None:
    groups, states, optimizer = make_states("flat", ADAMW)
    update(states, optimizer, 1)
    path = save(folder, Cursor(1, None), states, optimizer, groups.control)
    before = [master.clone() for _, master in states.master_parameters()]
    update(states, optimizer, 2)
    now = [master.clone() for _, master in states.master_parameters()]
    masters = [master for _, master in states.master_parameters()]
    for kind, message in OTHERS:
        with pytest.raises(ValueError, match=message):
            restore(folder, states, kind(masters), groups.control)
        assert all(map(torch.equal, masters, now))
    torch.distributed.barrier()
    if rank == 0:  # as written before optimizers were recorded
        document = json.loads((path / "cursor.json").read_text())
        assert document.pop("optimizer") == "AdamW"
        (path / "cursor.json").write_text(json.dumps(document))
    torch.distributed.barrier()
    for kind, _ in (OTHERS[0], OTHERS[3]):
        with pytest.raises(ValueError, match="of another optimizer, the job has"):
            restore(folder, states, kind(masters), groups.control)
    restore(folder, states, ADAMW(masters), groups.control)
    assert all(map(torch.equal, masters, before))


def test_another_optimizer_is_rejected_before_anything_changes(tmp_path: Path) -> None:
    run_ranks(restore_others, 2, tmp_path)


def save_scaled(
    rank: int, world_size: int, folder: Path, sharding: Sharding, last: int
) -> dict[str, torch.Tensor]:
    groups, states, optimizer = make_states(sharding, ADAMW)
    cursor = restore(folder, states, optimizer, groups.control)
    for step in range(0 if cursor is None else cursor.next_step, last):
        update(states, optimizer, step)
    save(folder, Cursor(last, None), states, optimizer, groups.control)
    for parameter, state in optimizer.state.items():
        assert {state[kind].shape for kind in ("exp_avg", "exp_avg_sq")} == {parameter.shape}
    return dict(states.export())


@pytest.mark.parametrize("before", ["flat", "by_parameter"])
@pytest.mark.parametrize("after", ["flat", "by_parameter"])
def test_a_parameter_without_axes_is_restored(
    tmp_path: Path, before: Sharding, after: Sharding
) -> None:
    straight = run_ranks(save_scaled, 1, tmp_path / "straight", after, 4)[0]
    run_ranks(save_scaled, 2, tmp_path / "job", before, 2)
    restored = run_ranks(save_scaled, 3, tmp_path / "job", after, 4)[0]
    for name, value in straight.items():
        assert torch.allclose(value, restored[name], atol=1e-6), name
