"""A profile that a benchmark's ranks measure of a small Llama, with room for chosen tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from seqplan.costs.fit.measured_profile import ProfiledDevices, fit_all, profile_document
from seqplan.costs.profile import Profile
from seqplan.profiler.measure.run import Task, measure


@dataclass(frozen=True, slots=True)
class MeasuredProfile:
    """A profile and the residuals of its fit, as the profile states them."""

    profile: Profile
    document: Mapping[str, Any]


def measure_profile(
    task: Task, folder: Path, capacity: int, rank: int, ranks: int
) -> MeasuredProfile:
    """Measure the task's schemes on these ranks; every rank calls it and gets the profile.

    ``capacity``: tokens that fit on a rank at tp = 1 in addition to the states.
    """
    measured_on, samples, syncs = measure(task, folder / "samples.jsonl", rank, ranks)
    shared: list[Any] = [None]
    if rank == 0:
        fit = fit_all(measured_on, samples)
        per_token = fit.memory.bytes_per_token[1]
        devices = ProfiledDevices(measured_on.device, ranks, capacity_bytes=0.0)
        document = profile_document(
            fit, devices, name="benchmark", source="measured by this benchmark", syncs=syncs
        )
        memory = document["memory"]
        memory["capacity_bytes"] = (
            capacity * per_token
            + memory["resident_layer_bytes"]
            + memory["resident_embedding_bytes"]
            + memory["sharded_state_bytes"][0][1] / ranks
            + memory["margin_bytes"]
            + per_token
        )
        shared[0] = document
    dist.broadcast_object_list(shared, 0)
    return MeasuredProfile(Profile.from_document(shared[0], "the measured profile"), shared[0])
