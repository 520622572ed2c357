"""Progress of a job in addition to its states: rates, scheduler, random numbers, user data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from seqplan.runtime.checkpoint.parameter_groups import (
    Named,
    copy_options,
    match_groups,
    match_schedule,
    name_groups,
    record_groups,
    select_options,
)
from seqplan.runtime.communicators import raise_on_all_ranks


def progress(
    device: torch.device,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    user: Mapping[str, Any] | None,
    named: Named,
    group: dist.ProcessGroup,
) -> dict[str, Any]:
    """Return what a checkpoint keeps of this rank, see ``restore_progress``.

    Collective over ``group``, a CPU group; ``named``: the optimizer's parameters on this rank.
    """
    schedule = None if scheduler is None else scheduler.state_dict()
    return {
        "rank": dist.get_rank(group),
        "random": _random_state(device),
        "scheduler": schedule,
        "parameter_groups": record_groups(optimizer, schedule, named, group),
        "user": None if user is None else dict(user),
    }


def restore_progress(
    stored: Mapping[str, Any],
    device: torch.device,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    named: Named,
    group: dist.ProcessGroup,
    *,
    saved_by: int,
) -> Mapping[str, Any] | None:
    """Set what ``progress`` returned; give back the user's data.

    Collective over ``group``. Random numbers only if this rank kept them. ``ValueError``, on every
    rank, if a group's parameters had no options or several, a scheduler's values cannot be matched
    with groups, or only one of checkpoint and job has a scheduler. ``saved_by``: number of ranks.
    """
    names, error_message = name_groups(optimizer, named), None
    options: Sequence[Mapping[str, Any]] = ()
    schedule: Mapping[str, Any] | None = None
    try:
        if (stored["scheduler"] is None) != (scheduler is None):
            whose = "the job has" if stored["scheduler"] is None else "the checkpoint has"
            raise ValueError(f"only {whose} a scheduler: give the job the one that it started with")
        schedule = stored["scheduler"]
        if "parameter_groups" in stored:
            record = stored["parameter_groups"]
            matched = match_groups(record, names, dist.get_world_size(group))
            options = copy_options(record, matched)
            if schedule is not None:
                schedule = match_schedule(record, schedule, scheduler.state_dict(), matched)
        else:  # of a version that stored no names
            options = [select_options(of_group) for of_group in stored["groups"]]
            _check_same_groups(len(options), len(names), saved_by, dist.get_world_size(group))
    except ValueError as error:
        error_message = str(error)
    raise_on_all_ranks(error_message, group, "restoring the optimizer's options")
    if scheduler is not None:
        scheduler.load_state_dict(schedule)
    # Rates too: some schedulers go on from those of the step before.
    for of_group, before in zip(optimizer.param_groups, options, strict=True):
        of_group.update(before)
    if stored["rank"] == dist.get_rank(group):
        _set_random_state(stored["random"], device)
    user: Mapping[str, Any] | None = stored["user"]
    return user


def _check_same_groups(stored: int, groups: int, saved_by: int, ranks: int) -> None:
    """``ValueError`` if groups without names may be others than those of the job."""
    if (stored, saved_by) != (groups, ranks):
        raise ValueError(
            f"the checkpoint has {stored} groups without names, of {saved_by} ranks, and the job "
            f"{groups} on {ranks}. Resume with the same groups and ranks"
        )


def _random_state(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
