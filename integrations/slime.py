"""slime's schedule of micro-batches, planned: call ``install`` where the rollout actor imports.

from seqplan.integrations import slime# in the module that --rollout-function-path names
slime.install()                      # SEQPLAN_PROFILE and SEQPLAN_SCHEME, or SEQPLAN_COST
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from seqplan.integrations.degree_costs import by_degree, costs_of_environment
from seqplan.integrations.recomputation_limits import VARIABLE
from seqplan.integrations.replacement import (
    describe_plan,
    fall_back,
    find_original,
    log_plan,
    replace_everywhere,
)
from seqplan.integrations.versions import import_with
from seqplan.planner.balance.balance_ranks import balance
from seqplan.planner.balance.cost import Cost

__all__ = ["figures", "install", "plan_schedule"]

logger = logging.getLogger(__name__)

SCHEDULE, NAME = "slime.utils.dp_schedule", "build_dp_schedule"

Schedule = tuple[list[list[int]], list[list[list[int]]], list[int], list[int]]
"""Samples by rank, places in them by rank and micro-batch, and by step the micro-batches of a rank
and the rollouts."""

figures: dict[str, float] = {}
"""``predicted_ms``, ``gap`` and ``imbalance`` of the last step that was planned."""


def install(costs: Cost | Mapping[int, Cost] | None = None) -> None:
    """Put the planned schedule in slime's place; ``costs`` of one rank or by context degree.

    ``UnsupportedVersion`` if slime has no such function; ``ValueError`` if the environment has
    recomputation modes, as schedules are made in other processes than those that train.
    """
    if text := os.environ.get(VARIABLE):
        raise ValueError(
            f"{VARIABLE} with slime: {text}. Unset it and call "
            "seqplan.integrations.megatron_recomputation.install_recomputation where slime trains"
        )
    known = costs_of_environment() if costs is None else costs
    supported = "that of August 2026 (revision 624b824) has it"
    module = import_with("slime", SCHEDULE, NAME, known=supported)
    original = find_original(getattr(module, NAME))
    schedule = partial(plan_schedule, costs=known)
    warning = "these steps are scheduled as slime does it"
    planned = fall_back(schedule, original, logger.warning, warning)
    replace_everywhere("slime", module, NAME, planned)


def plan_schedule(
    args: Any,
    train_parallel_config: Mapping[str, int],
    total_lengths: Sequence[int],
    costs: Cost | Mapping[int, Cost],
    *,
    global_batch_size: int,
    rollout_indices: Sequence[int],
) -> Schedule:
    """Plan each step's micro-batches over data-parallel ranks, slime's steps as they are.

    A step takes ``global_batch_size`` rollouts in the order of their first sample; the rest is
    dropped. ``ValueError`` for batches of fixed size, less than a step, a sample beyond
    a micro-batch, or fewer samples than micro-batches.
    """
    if not args.use_dynamic_batch_size:
        raise ValueError("micro-batches of a fixed number of samples leave nothing to plan")
    ranks, degree = train_parallel_config["dp_size"], train_parallel_config["cp_size"]
    stages = train_parallel_config["vpp_size"]
    multiple = train_parallel_config["microbatch_group_size_per_vp_stage"] if stages > 1 else 1
    cost, capacity = by_degree(costs, degree)[degree], args.max_tokens_per_gpu * degree
    rollouts: dict[int, list[int]] = {}
    for sample, rollout in enumerate(rollout_indices):
        rollouts.setdefault(rollout, []).append(sample)
    sample_lists = list(rollouts.values())
    if len(sample_lists) < global_batch_size:
        raise ValueError(f"{len(sample_lists)} rollouts for steps of {global_batch_size}")
    partitions: list[list[int]] = [[] for _ in range(ranks)]
    places: list[list[list[int]]] = [[] for _ in range(ranks)]
    counts = []
    for first in range(0, len(sample_lists) - global_batch_size + 1, global_batch_size):
        samples = [
            i for rollout in sample_lists[first : first + global_batch_size] for i in rollout
        ]
        lengths = [int(total_lengths[i]) for i in samples]
        balanced = balance(lengths, ranks, capacity, cost, count_multiple=multiple)
        if not all(micro for of_rank in balanced.micro_batches for micro in of_rank):
            raise ValueError(f"{len(samples)} samples are too few for {ranks} ranks")
        figures.update(describe_plan(balanced))
        log_plan(logger, len(balanced.micro_batches[0]), balanced)
        counts.append(len(balanced.micro_batches[0]))
        for partition, of_rank, micro_batches in zip(
            partitions, places, balanced.micro_batches, strict=True
        ):
            for micro in micro_batches:
                of_rank.append(list(range(len(partition), len(partition) + len(micro))))
                partition += [samples[i] for i in micro]
    return partitions, places, counts, [global_batch_size] * len(counts)
