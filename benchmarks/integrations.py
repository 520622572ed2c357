"""Planners of trainers and ours, on the same lengths: predicted time and CPU time.

Needs those trainers: ``./run bench integrations`` runs in the environment of
``./run test-integrations``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks import small_batches, static_hosts
from benchmarks.settings import Data, markdown
from seqplan import Cost
from seqplan.integrations.degree_costs import by_degree, ring_costs
from seqplan.planner.lockstep.rank_groups import plan_groups

PROFILE, SCHEME = "llama-7b-a800-80gb", "tp2"
DRAWS, LONGEST, CAPACITY = 5, 32_768, 8_192
SHAPES = ((2048, 64), (512, 64))

MicroBatches = Sequence[Sequence[Sequence[int]]]
"""Places of sequences by micro-batch and rank."""

Schedule = Callable[[list[int], int], MicroBatches]


def run(data: Sequence[Data]) -> None:
    """Print a table of the schedulers of Megatron-Core that are installed."""
    rows = []
    for name, theirs, one_each in _megatron():
        for source in data:
            for sequences, ranks in SHAPES:
                rows.append(_row(name, theirs, source, sequences, ranks, one_each=one_each))
    print(f"### Trainers' planners, costs of {SCHEME} in {PROFILE}, {DRAWS} draws\n")
    head = ["trainer's planner", "lengths", "sequences × ranks", "its time over ours, least"]
    head += ["median", "its CPU, median", "our CPU, median"]
    print(markdown(head, rows) + "\n")
    for _, theirs, one_each in _megatron():
        if not one_each:
            timed = partial(schedule_ms, one_each=False)
            small_batches.run(data, theirs, timed, ring_costs(PROFILE, SCHEME))
    static_hosts.run(data, Cost.from_profile(PROFILE, SCHEME))


def _row(
    name: str, theirs: Schedule, source: Data, sequences: int, ranks: int, *, one_each: bool
) -> list[str]:
    costs = by_degree(ring_costs(PROFILE, SCHEME), ranks)
    ratios, own_cpu, their_cpu = [], [], []
    for draw in range(DRAWS):
        drawn = np.random.default_rng(draw).choice(source.lengths, sequences)
        lengths = np.minimum(drawn, LONGEST).tolist()
        began = time.process_time()
        micro_steps = plan_groups(lengths, ranks, CAPACITY, costs, one_each=one_each)
        planned = time.process_time()
        schedule = theirs(lengths, ranks)
        their_cpu.append(1000 * (time.process_time() - planned))
        own_cpu.append(1000 * (planned - began))
        ratios.append(
            schedule_ms(schedule, lengths, costs, one_each=one_each) / micro_steps.predicted_ms
        )
    return [
        name,
        source.name,
        f"{sequences:,} × {ranks}",
        f"{min(ratios):.3f}",
        f"{np.median(ratios):.3f}",
        f"{np.median(their_cpu):,.0f} ms",
        f"{np.median(own_cpu):,.0f} ms",
    ]


def schedule_ms(
    micro_batches: MicroBatches,
    lengths: Sequence[int],
    costs: Mapping[int, Cost],
    *,
    one_each: bool,
) -> float:
    """Time a schedule: Σ over micro-batches of the slowest rank (ms).

    ``one_each``: a rank runs its samples one after another, each on all ranks that have it.
    """
    total = 0.0
    for of_ranks in micro_batches:
        sharing: dict[int, int] = {}
        for ids in of_ranks:
            for i in ids:
                sharing[i] = sharing.get(i, 0) + 1
        times = []
        for ids in of_ranks:
            parts = [[i] for i in ids] if one_each else [ids]
            times.append(
                sum(costs[sharing[p[0]]].micro_batch_ms([lengths[i] for i in p]) for p in parts)
            )
        total += max(times)
    return total


def _megatron() -> list[tuple[str, Schedule, bool]]:
    """List Megatron-Core's schedulers: name, schedule, whether samples run one by one."""
    module = _installed("megatron.core.datasets.data_schedule", "megatron-core")
    if module is None:
        return []
    schedules: list[tuple[str, Schedule, bool]] = []
    if hybrid := getattr(module, "BalancedCPScheduler", None):
        schedules.append(("Megatron, hybrid", partial(_hybrid, hybrid), True))
    for key, scheduler in getattr(module, "scheduler_map", {}).items():
        if getattr(key, "value", key) == "default_dynamic_cp":
            schedules.append(("Megatron, dynamic", partial(_dynamic, scheduler), False))
    return schedules


def _hybrid(scheduler: Any, lengths: list[int], ranks: int) -> MicroBatches:
    class Group:
        def size(self) -> int:
            return ranks

    _, ids = scheduler(CAPACITY, Group()).get_groups_and_subsamples(list(enumerate(lengths)), None)
    places: MicroBatches = ids
    return places


def _dynamic(scheduler: Any, lengths: list[int], ranks: int) -> MicroBatches:
    schedule = scheduler(CAPACITY, 1, ranks, None)
    places: MicroBatches = schedule.get_groups_and_subsamples(list(enumerate(lengths)))
    return places


def _installed(name: str, package: str) -> ModuleType | None:
    """Import a trainer's module; None, and a printed line, if it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        print(f"{package} is not installed: left out\n")
        return None
