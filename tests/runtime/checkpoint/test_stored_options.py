"""Options of an optimizer's groups come back, so that a scheduler goes on from its rates."""

import json
from pathlib import Path

import torch
from ranks import run_ranks, run_ranks_expecting_failure
from torch import nn

from seqplan.runtime.checkpoint.save_restore import Cursor, restore, save
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.states.sharded_states import ShardedStates

SAVED_AT, STEPS, RATE = 10, 20, 0.01
Scheduler = torch.optim.lr_scheduler.CosineAnnealingLR
Rates = list[list[float]]


def make(groups: Communicators) -> tuple[ShardedStates, torch.optim.Optimizer, Scheduler]:
    """Make two groups, of which a rank may have no parameters."""
    torch.manual_seed(0)
    states = ShardedStates(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), groups.states)
    named = states.master_parameters()
    first = [parameter for name, parameter in named if name.startswith("0.")]
    second = [parameter for name, parameter in named if name.startswith("1.")]
    optimizer = torch.optim.AdamW(
        [{"params": first, "weight_decay": 0.1}, {"params": second, "lr": 2 * RATE}], lr=RATE
    )
    return states, optimizer, Scheduler(optimizer, STEPS)


def step(
    states: ShardedStates, optimizer: torch.optim.Optimizer, scheduler: Scheduler, last: int
) -> Rates:
    """Step up to ``last``; list the rates of both groups of each step."""
    rates = []
    while scheduler.last_epoch < last:
        rates.append([group["lr"] for group in optimizer.param_groups])
        for _, parameter in states.master_parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        scheduler.step()
    return rates


def start(rank: int, world_size: int, folder: Path) -> Rates:
    """Save a job on its way, with a decay that is changed, and go on."""
    groups = Communicators.create()
    states, optimizer, scheduler = make(groups)
    step(states, optimizer, scheduler, SAVED_AT)
    optimizer.param_groups[1]["weight_decay"] = 0.3
    cursor, extra = Cursor(SAVED_AT, None), {"scheduler": scheduler.state_dict()}
    save(folder, cursor, states, optimizer, groups.control, extra=extra)
    return step(states, optimizer, scheduler, STEPS)


def resume(rank: int, world_size: int, folder: Path) -> tuple[Rates, list[float]]:
    groups = Communicators.create()
    states, optimizer, scheduler = make(groups)
    cursor = restore(folder, states, optimizer, groups.control)
    assert cursor is not None
    assert cursor.extra is not None
    scheduler.load_state_dict(dict(cursor.extra["scheduler"]))
    decays = [group["weight_decay"] for group in optimizer.param_groups if group["params"]]
    return step(states, optimizer, scheduler, STEPS), decays


def test_rates_go_on_with_any_number_of_ranks(tmp_path: Path) -> None:
    straight = run_ranks(start, 2, tmp_path)[0]
    assert straight[0][0] < RATE
    for ranks in (2, 1, 3):
        resumed = run_ranks(resume, ranks, tmp_path)
        assert [rates for rates, _ in resumed] == [straight] * ranks, ranks
        assert {decay for _, decays in resumed for decay in decays} == {0.1, 0.3}


def test_checkpoint_without_options_leaves_those_of_the_job(tmp_path: Path) -> None:
    run_ranks(start, 2, tmp_path)
    document = tmp_path / f"step-{SAVED_AT:08d}" / "cursor.json"
    cursor = json.loads(document.read_text())
    for file in document.parent.glob("groups-*.pt"):
        del cursor["sizes"][file.name]
        file.unlink()
    document.write_text(json.dumps(cursor))
    for rates, _ in run_ranks(resume, 2, tmp_path):
        assert rates[0] == [RATE, 2 * RATE]


def save_foreach(rank: int, world_size: int, folder: Path) -> None:
    """Save options of how the job computes, which differ between ranks, with a changed rate."""
    groups = Communicators.create()
    states, optimizer, _ = make(groups)
    for of_group in optimizer.param_groups:
        of_group.update(lr=RATE / 4, foreach=rank == 0, fused=False)
    save(folder, Cursor(1, None), states, optimizer, groups.control)


def resume_default(rank: int, world_size: int, folder: Path) -> set[tuple[object, ...]]:
    groups = Communicators.create()
    states, optimizer, _ = make(groups)
    restore(folder, states, optimizer, groups.control)
    keys = "lr", "foreach", "fused"
    return {tuple(of_group[key] for key in keys) for of_group in optimizer.param_groups}


def test_options_of_how_a_job_computes_stay(tmp_path: Path) -> None:
    run_ranks(save_foreach, 2, tmp_path)
    for ranks in (2, 1):
        assert run_ranks(resume_default, ranks, tmp_path) == [{(RATE / 4, None, None)}] * ranks


def resume_regrouped(rank: int, world_size: int, folder: Path) -> None:
    groups = Communicators.create()
    states, _, _ = make(groups)
    optimizer = torch.optim.AdamW([parameter for _, parameter in states.master_parameters()])
    restore(folder, states, optimizer, groups.control)


def save_function(rank: int, world_size: int, folder: Path) -> None:
    groups = Communicators.create()
    states, optimizer, _ = make(groups)
    optimizer.param_groups[1]["scale"] = lambda step: step
    save(folder, Cursor(1, None), states, optimizer, groups.control)


def test_options_that_cannot_come_back_are_rejected(tmp_path: Path) -> None:
    for message in run_ranks_expecting_failure(save_function, 2, tmp_path):
        assert message.startswith("ValueError: group 1['options']['scale']: function, which a")
    run_ranks(start, 2, tmp_path)
    for message in run_ranks_expecting_failure(resume_regrouped, 2, tmp_path):
        assert "had other options than" in message
