"""Options of an optimizer's groups and a scheduler's values, resumed by other numbers of ranks."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from attached_inputs import data, model, optimizer
from ranks import run_ranks, run_ranks_expecting_failure
from torch.optim import lr_scheduler
from transformers_ranks import Program, needs_transformers, run_with_transformers

from seqplan.runtime.huggingface.progress import progress, restore_progress

CPU = torch.device("cpu")
RATES = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}
"""Rates of the groups of four parameters."""

Job = tuple[list[tuple[str, torch.nn.Parameter]], torch.optim.Optimizer, Any]


class Counting(lr_scheduler.LambdaLR):
    """A scheduler with another list of a value for each group."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer, lambda step: 0.5**step)
        self.counts = [len(optimizer.param_groups) + at for at in range(len(self.base_lrs))]


def chain(optimizer: torch.optim.Optimizer) -> lr_scheduler.SequentialLR:
    parts = [lr_scheduler.LinearLR(optimizer, 0.1), lr_scheduler.ExponentialLR(optimizer, 0.5)]
    return lr_scheduler.SequentialLR(optimizer, parts, [2])


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "linear": lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.1, total_iters=9),
    "chained": chain,
    "counting": Counting,
}


def make_job(groups: list[str], schedule: str | None = None) -> Job:
    """Make an optimizer with a group for each text, of the parameters that it spells."""
    named = [(name, torch.nn.Parameter(torch.ones(2))) for text in groups for name in text]
    known = dict(named)
    param_groups: Any = [
        {"params": [known[name] for name in text], "lr": RATES.get(text[:1], 1.0)}
        for text in groups
    ]
    stepping = torch.optim.SGD(param_groups, lr=1.0)
    return named, stepping, SCHEDULERS[schedule](stepping) if schedule else None


def save_groups(
    rank: int, world_size: int, groups: list[list[str]], schedule: str | None = None
) -> dict[str, Any]:
    """Store groups after three steps, with base rates that the job has changed."""
    named, stepping, scheduling = make_job(groups[rank], schedule)
    for group in stepping.param_groups:
        group["momentum"] = group["lr"] / 7
    for _ in range(3 if schedule else 0):
        stepping.step()
        scheduling.step()
    return progress(CPU, stepping, scheduling, None, named, dist.group.WORLD)


def resume_groups(
    rank: int,
    world_size: int,
    stored: list[dict[str, Any]],
    groups: list[list[str]],
    schedule: str | None = None,
) -> dict[str, tuple[float, float]]:
    """Return momentum, and the rate after two more steps, by parameter."""
    named, stepping, scheduling = make_job(groups[rank], schedule)
    read = stored[rank if rank < len(stored) else 0]
    arguments = CPU, stepping, scheduling, named, dist.group.WORLD
    restore_progress(read, *arguments, saved_by=len(stored))
    for _ in range(2 if schedule else 0):
        stepping.step()
        scheduling.step()
    names = {id(value): name for name, value in named}
    return {
        names[id(value)]: (group["momentum"], group["lr"])
        for group in stepping.param_groups
        for value in group["params"]
    }


TWO = [["a", "b"], ["b", "c", "d"]]
ONE, THREE = [["a", "b", "c", "d"]], [["c"], ["d", "b"], ["a"]]


@pytest.mark.parametrize("schedule", [None, "linear", "chained"])
def test_groups_follow_their_parameters(schedule: str | None) -> None:
    """Groups of other numbers of ranks, in another order, have the values of one process."""
    (straight,) = run_ranks(save_and_resume, 1, ONE, schedule)
    stored = run_ranks(save_groups, 2, TWO, schedule)
    for groups in (ONE, TWO, THREE):
        for resumed in run_ranks(resume_groups, len(groups), stored, groups, schedule):
            assert resumed
            assert resumed == {name: straight[name] for name in resumed}


def save_and_resume(
    rank: int, world_size: int, groups: list[list[str]], schedule: str | None
) -> dict[str, tuple[float, float]]:
    stored = [save_groups(rank, world_size, groups, schedule)]
    return resume_groups(rank, world_size, stored, groups, schedule)


def test_empty_groups_resume() -> None:
    """Those that ranks keep, as parts of joined optimizers, have the options of their place."""
    stored = run_ranks(save_groups, 2, [["a", "b", ""], ["a", "", "c"]])
    assert run_ranks(resume_groups, 1, stored, [["a", "", "c"]])[0] == {
        name: (RATES[name] / 7, RATES[name]) for name in "ac"
    }


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([["a"], ["b", "e"], ["c"]], "e: is in no group of the checkpoint. Make the optimizer's"),
        ([["a"], ["b"], ["cd"]], "d: had other options than c. Make the optimizer's groups as"),
    ],
)
def test_other_groups_are_rejected_by_name_on_every_rank(
    groups: list[list[str]], message: str
) -> None:
    stored = run_ranks(save_groups, 2, TWO)
    errors = run_ranks_expecting_failure(resume_groups, 3, stored, groups)
    assert all(error.startswith(f"ValueError: {message}") for error in errors), errors


def test_options_that_differ_over_ranks_are_rejected_unless_ranks_are_as_before() -> None:
    stored = run_ranks(save_groups, 2, [["ab"], ["b"]])
    assert run_ranks(resume_groups, 2, stored, [["ab"], ["b"]])[1] == {"b": (0.2 / 7, 0.2)}
    (error,) = run_ranks_expecting_failure(resume_groups, 1, stored, [["b"]])
    assert error.startswith("ValueError: b: had different options on several ranks. Make the")


def test_other_lists_of_a_scheduler_are_rejected_if_groups_differ() -> None:
    stored = run_ranks(save_groups, 2, TWO, "counting")
    assert run_ranks(resume_groups, 2, stored, TWO, "counting")
    errors = run_ranks_expecting_failure(resume_groups, 3, stored, THREE, "counting")
    message = "ValueError: scheduler: counts may have a value for each group, and the groups are"
    assert all(error.startswith(message) for error in errors), errors


def test_groups_without_names_resume_on_as_many_ranks() -> None:
    stored = run_ranks(save_groups, 2, TWO, "linear")
    expected = run_ranks(resume_groups, 2, stored, TWO, "linear")
    for of_rank in stored:
        record = of_rank.pop("parameter_groups")
        of_rank["groups"] = [record["groups"][place]["options"] for place in record["of_rank"]]
    assert run_ranks(resume_groups, 2, stored, TWO, "linear") == expected
    errors = run_ranks_expecting_failure(resume_groups, 3, stored, THREE, "linear")
    message = "ValueError: the checkpoint has 2 groups without names, of 2 ranks, and the job 1"
    assert all(error.startswith(message) for error in errors), errors


def lock_options(rank: int, world_size: int) -> None:
    named, stepping, _ = make_job(["a"])
    stepping.param_groups[0]["rule"] = object() if rank else None
    progress(CPU, stepping, None, None, named, dist.group.WORLD)


def test_options_that_cannot_be_stored_are_rejected_on_every_rank() -> None:
    for error in run_ranks_expecting_failure(lock_options, 2):
        assert error.startswith("ValueError: group 0['options']['rule']: object, which a check")


def train_on(rank: int, world_size: int, folder: Path, *, resume: bool) -> dict[str, Any]:
    """Weight decay by parameter name, of whole parameters, which ranks may have none of."""
    from seqplan import huggingface

    names: dict[int, str] = {}

    def make(named: Any) -> torch.optim.Optimizer:
        names.update((id(value), name) for name, value in named)
        return optimizer(named)

    job = huggingface.attach(
        model("llama"), data(), optimizer=make, scheduler=chain, sharding="by_parameter"
    )
    if resume:
        job.resume(folder)
    else:
        for group in job.optimizer.param_groups:
            group["weight_decay"] *= 2
        job.save_checkpoint(folder)
    return {
        names[id(value)]: group["weight_decay"]
        for group in job.optimizer.param_groups
        for value in group["params"]
    }


def save_job(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    return train_on(rank, world_size, folder, resume=False)


def resume_job(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    return train_on(rank, world_size, folder, resume=True)


@needs_transformers
def test_a_job_resumes_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    programs = [Program(save_job, 4, (tmp_path,))]
    programs += [Program(resume_job, ranks, (tmp_path,)) for ranks in (1, 2, 6)]
    saved, *resumed = [ranks for ranks, _ in run_with_transformers(programs)]
    expected = {name: decay for rank in saved for name, decay in rank.items()}
    assert len({len(set(rank.values())) for rank in saved}) > 1  # ranks differ in groups
    for ranks in resumed:
        assert {name: decay for rank in ranks for name, decay in rank.items()} == expected


def make_schedule() -> tuple[torch.nn.Parameter, torch.optim.Optimizer, Any]:
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([{"params": [parameter], "weight_decay": 0.1}], lr=1.0)
    return parameter, optimizer, lr_scheduler.LinearLR(optimizer, 0.1, total_iters=9)


def resume_rates(rank: int, world_size: int) -> None:
    """Rates of a multiplicative schedule, and a weight decay that was changed."""
    parameter, optimizer, scheduler = make_schedule()
    for _ in range(4):
        parameter.grad = torch.ones(4)
        optimizer.step()
        scheduler.step()
    optimizer.param_groups[0]["weight_decay"] = 0.3
    named, group = [("a", parameter)], dist.group.WORLD
    stored = progress(CPU, optimizer, scheduler, None, named, group)
    other, again, resumed = make_schedule()
    other.data.copy_(parameter.data)
    restore_progress(stored, CPU, again, resumed, [("a", other)], group, saved_by=1)
    for _ in range(3):
        for value, optimizer_, schedule in (
            (parameter, optimizer, scheduler),
            (other, again, resumed),
        ):
            value.grad = torch.ones(4)
            optimizer_.step()
            schedule.step()
        assert torch.equal(parameter, other)
        assert again.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


def test_learning_rates_resume() -> None:
    run_ranks(resume_rates, 1)


def resume_equal_rates(rank: int, world_size: int) -> None:
    """Groups of equal options may have different rates later, as tensors, too."""
    rates: list[list[float]] = []
    stored: Any = None
    for resumed in (False, True):
        parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
        named = list(zip("ab", parameters, strict=True))
        groups = [{"params": [parameter], "lr": torch.tensor(0.1)} for parameter in parameters]
        stepping = torch.optim.SGD(groups)
        factors = [lambda step: 0.5 if step > 2 else 1.0, lambda step: 0.2 if step > 2 else 1.0]
        schedule = lr_scheduler.LambdaLR(stepping, factors)
        if resumed:
            restore_progress(stored, CPU, stepping, schedule, named, dist.group.WORLD, saved_by=1)
        else:
            for _ in range(2):
                stepping.step()
                schedule.step()
            of_rank = progress(CPU, stepping, schedule, None, named, dist.group.WORLD)
            stored = copy.deepcopy(of_rank)
        stepping.step()
        schedule.step()
        rates.append([float(group["lr"]) for group in stepping.param_groups])
    assert rates[0] == rates[1] == pytest.approx([0.05, 0.02])


def test_equal_options_may_become_different_rates() -> None:
    run_ranks(resume_equal_rates, 1)
