"""Progress of a job in addition to its states: rates, scheduler, random numbers, user data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def progress(
    rank: int,
    device: torch.device,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    user: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return what a checkpoint keeps of this rank, see ``restore_progress``."""
    return {
        "rank": rank,
        "random": _random_state(device),
        "scheduler": None if scheduler is None else scheduler.state_dict(),
        "groups": [
            {name: value for name, value in group.items() if name not in _OF_PARAMETERS}
            for group in optimizer.param_groups
        ],
        "user": None if user is None else dict(user),
    }


def restore_progress(
    stored: Mapping[str, Any],
    rank: int,
    device: torch.device,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
) -> Mapping[str, Any] | None:
    """Set what ``progress`` returned; give back the user's data.

    Random numbers only if this rank kept them. ``ValueError`` if the optimizer has other
    groups, or only one of checkpoint and job has a scheduler.
    """
    if (stored["scheduler"] is None) != (scheduler is None):
        whose = "the job has" if stored["scheduler"] is None else "the checkpoint has"
        raise ValueError(f"only {whose} a scheduler: give the job the one that it started with")
    if len(stored["groups"]) != len(optimizer.param_groups):
        raise ValueError(
            f"the optimizer has {len(optimizer.param_groups)} groups, in the checkpoint "
            f"{len(stored['groups'])}"
        )
    if scheduler is not None:
        scheduler.load_state_dict(stored["scheduler"])
    # Rates too: some schedulers go on from those of the step before.
    for group, before in zip(optimizer.param_groups, stored["groups"], strict=True):
        group.update(before)
    if stored["rank"] == rank:
        _set_random_state(stored["random"], device)
    user: Mapping[str, Any] | None = stored["user"]
    return user


_OF_PARAMETERS = ("params", "param_names")


def _random_state(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
