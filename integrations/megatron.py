"""Megatron-Core's data schedule, planned: context parallelism chosen for each micro-batch.

    from seqplan.integrations import megatron
    megatron.install(megatron.ring_costs("llama-7b-a800-80gb", "tp2"))   # before training starts

``install`` puts scheduler classes in the place of Megatron's, which plan steps that those cannot.
Every rank computes the schedule by itself: the same lengths give the same one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from itertools import groupby
from typing import Any

from seqplan.integrations.degree_costs import (
    Costs,
    add_padding,
    by_degree,
    costs_of_environment,
    ring_costs,
)
from seqplan.integrations.megatron_groups import install_groups, list_formed, plan_chains
from seqplan.integrations.megatron_recomputation import install_recomputation
from seqplan.integrations.recomputation_limits import RecomputationLimits
from seqplan.integrations.replacement import describe_plan, fall_back, log_plan
from seqplan.integrations.versions import UnsupportedVersion, find_installed_version
from seqplan.planner.balance.balance_ranks import balance
from seqplan.planner.balance.cost import Cost

__all__ = ["figures", "install", "ring_costs"]

logger = logging.getLogger(__name__)

DYNAMIC, STATIC = "default_dynamic_cp", "dp_balanced"
"""Megatron's names of schedulers with and without context parallelism of each micro-batch."""

_Groups = list[list[list[int]]]
"""Sample ids by micro-batch and rank."""

figures: dict[str, float] = {}
"""``predicted_ms``, ``gap`` and ``imbalance`` of the last schedule that was planned."""


def install(
    costs: Costs | None = None,
    recompute: Mapping[str, int] | RecomputationLimits | None = None,
) -> list[str]:
    """Replace Megatron's schedulers by planned ones; return the names of the replaced.

    ``costs``: of a micro-batch on one rank of data and context parallelism, or by degree
    (``ring_costs``); by default from the environment (``degree_costs.costs_of_environment``), with
    the entries of Megatron's degree of expert parallelism.
    ``recompute``: tokens on a rank by recomputation mode, by default ``SEQPLAN_RECOMPUTE`` of the
    environment, else Megatron's settings apply (``install_recomputation``). ``UnsupportedVersion``
    if Megatron has no place for a scheduler.
    """
    # Costs without degree 1 are rejected before anything is replaced.
    by_degree(costs_of_environment() if costs is None else costs, 1)
    known = cache(read_costs) if costs is None else costs
    limits = RecomputationLimits.from_value(recompute) or RecomputationLimits.from_environment()
    if limits is not None:
        install_recomputation(limits)
    schedule: Any = import_module("megatron.core.datasets.data_schedule")
    replaced = []
    for key, host_class in list(getattr(schedule, "scheduler_map", {}).items()):
        name = getattr(key, "value", key)
        if name in (DYNAMIC, STATIC):
            original = _original(host_class)
            planned = (_dynamic if name == DYNAMIC else _static)(original, known)
            planned.host_class = original
            schedule.scheduler_map[key] = planned
            # verl finds the class by its name.
            setattr(schedule, original.__name__, planned)
            replaced.append(str(name))
    install_groups()
    if hasattr(schedule, "HybridCPDataLoaderWrapper") and hasattr(schedule, "BalancedCPScheduler"):
        original = _original(schedule.BalancedCPScheduler)
        schedule.BalancedCPScheduler = _hybrid(original, known)
        schedule.BalancedCPScheduler.host_class = original
        replaced.append("hybrid_cp")
    if not replaced:
        raise UnsupportedVersion(
            f"megatron-core {find_installed_version('megatron-core')} has no scheduler to replace; "
            "releases 0.16.1 to 0.19.2 have HybridCPDataLoaderWrapper, the development branch of "
            "2026 has scheduler_map"
        )
    if os.environ.get("RANK", "0") == "0":
        version = find_installed_version("megatron-core")
        print(f"seqplan: plans {', '.join(replaced)} of megatron-core {version}", flush=True)
    return replaced


def read_costs() -> dict[int, Cost]:
    """Read the environment's costs at Megatron's degree of expert parallelism.

    ``ValueError`` if the profile has no entries of this degree.
    """
    return costs_of_environment(find_expert_parallel())


def find_expert_parallel() -> int | None:
    """Return Megatron's degree of expert parallelism; None before it has formed its groups."""
    return _read_degree("expert_model_parallel")


def _read_degree(kind: str) -> int | None:
    """Return a degree of Megatron's parallelism; None before it has formed its groups."""
    parallel_state: Any = import_module("megatron.core.parallel_state")
    if not parallel_state.model_parallel_is_initialized():
        return None
    return int(getattr(parallel_state, f"get_{kind}_world_size")())


def _original(scheduler: Any) -> Any:
    """Return Megatron's class, also if ours has replaced it already."""
    return getattr(scheduler, "host_class", scheduler)


def _dynamic(host_class: Any, costs: Costs) -> Any:
    """Make a scheduler that chooses groups and packs for each micro-batch."""

    class PlannedDynamicCPScheduler(host_class):  # type: ignore[misc]
        def run(self, *arguments: Any, **named: Any) -> Any:
            self.config = named.get("config", arguments[-1] if arguments else None)
            return super().run(*arguments, **named)

        def get_groups_and_subsamples(self, sample_id_seqlens: Any) -> Any:
            original = super().get_groups_and_subsamples
            ranks = self.dp_size * self.cp_size

            def plan(samples: Any) -> _Groups:
                return _plan_groups(
                    samples,
                    ranks,
                    int(self.max_seqlen_per_dp_cp_rank),
                    add_padding(by_degree(costs, ranks, self.min_cp_size), _alignment(self)),
                    multiple=self.microbatch_group_size_per_vp_stage or 1,
                    stages=_read_degree("pipeline_model_parallel") or 1,
                    known=original(samples) if samples else None,
                )

            return _fall_back(plan, original)(sample_id_seqlens)

    return PlannedDynamicCPScheduler


def _alignment(scheduler: Any) -> int:
    """Return the tokens to whose multiples a rank's part of a micro-batch is padded.

    All that it may hold, if its shapes are those of a CUDA graph.
    """
    config = getattr(scheduler, "config", None)
    alignment = getattr(config, "pad_packed_seq_alignment", None)
    if alignment is None:
        return 1
    if getattr(config, "cuda_graph_impl", "none") != "none":
        return int(scheduler.max_seqlen_per_dp_cp_rank)
    return int(alignment)


def _static(host_class: Any, costs: Costs) -> Any:
    """Make a scheduler that balances over data-parallel ranks of one degree."""

    class PlannedBalancedScheduler(host_class):  # type: ignore[misc]
        def get_groups_and_subsamples(self, sample_id_seqlens: Any) -> Any:
            def plan(samples: Any) -> _Groups:
                return _balance_replicas(
                    samples,
                    self.dp_size,
                    self.cp_size,
                    int(self.max_seqlen_per_dp_cp_rank),
                    by_degree(costs, self.cp_size)[self.cp_size],
                    multiple=self.microbatch_group_size_per_vp_stage or 1,
                    most=getattr(self, "max_num_seqs", None),
                )

            return _fall_back(plan, super().get_groups_and_subsamples)(sample_id_seqlens)

    return PlannedBalancedScheduler


def _hybrid(host_class: Any, costs: Costs) -> Any:
    """Make a scheduler whose groups run samples one by one, with barriers between."""

    class PlannedHybridCPScheduler(host_class):  # type: ignore[misc]
        def get_groups_and_subsamples(self, sample_id_seqlens: Any, config: Any) -> Any:
            ranks, lengths = self.total_hdp_gpus, dict(sample_id_seqlens)
            original = super().get_groups_and_subsamples

            def plan(samples: Any, _: Any) -> tuple[Any, _Groups]:
                ids = _plan_groups(
                    samples,
                    ranks,
                    int(self.max_seq_len_per_rank),
                    by_degree(costs, ranks, formed=list_formed(ranks)),
                    one_each=True,
                    known=original(samples, config)[1] if samples else None,
                )
                return [[[lengths[i] for i in members] for members in group] for group in ids], ids

            return _fall_back(plan, original)(sample_id_seqlens, config)

    return PlannedHybridCPScheduler


_fall_back = partial(fall_back, warn=logger.warning, text="this step runs as Megatron schedules it")


def _plan_groups(
    samples: Sequence[tuple[int, int]],
    ranks: int,
    capacity: int,
    costs: Mapping[int, Cost],
    *,
    known: _Groups | None = None,
    **options: Any,
) -> _Groups:
    """Plan groups for samples (id, tokens); ids by micro-batch and rank.

    ``known``: those of Megatron's rule, which the plan is no slower than; ``options``: as of
    ``plan_chains``.
    """
    ids, lengths = _split(samples)
    degrees = None if known is None else _degrees(known, ids)
    grouped = plan_chains(lengths, ranks, capacity, costs, known=degrees, **options)
    figures.update(describe_plan(grouped))
    log_plan(logger, len(grouped.micro_steps), grouped)
    return [
        [[ids[i] for i in micro_batch] for micro_batch in groups] for groups in grouped.by_rank()
    ]


def _balance_replicas(
    samples: Sequence[tuple[int, int]],
    replicas: int,
    degree: int,
    capacity: int,
    cost: Cost,
    *,
    multiple: int,
    most: int | None,
) -> _Groups:
    """Balance samples (id, tokens) over replicas; ids by micro-batch and rank."""
    ids, lengths = _split(samples)
    balanced = balance(lengths, replicas, capacity * degree, cost, count_multiple=multiple)
    micro_batches = [micro for of_rank in balanced.micro_batches for micro in of_rank]
    if not all(micro_batches):
        raise ValueError(
            f"{len(ids)} samples cannot fill {len(micro_batches)} micro-batches, "
            f"{multiple} or a multiple on each of {replicas} replicas"
        )
    if most is not None and max(map(len, micro_batches)) > most:
        raise ValueError(f"a micro-batch would have more than {most} samples")
    figures.update(describe_plan(balanced))
    log_plan(logger, len(balanced.micro_batches[0]), balanced)
    return [
        [[ids[i] for i in of_rank[k]] for of_rank in balanced.micro_batches for _ in range(degree)]
        for k in range(len(balanced.micro_batches[0]))
    ]


def _degrees(groups: _Groups, ids: Sequence[int]) -> list[list[tuple[int, list[int]]]]:
    """Return groups as (degree, positions) by micro-batch; neighbors with equal ids are one."""
    places = {number: place for place, number in enumerate(ids)}
    return [
        [
            (len(list(ranks)), [places[int(number)] for number in micro_batch])
            for micro_batch, ranks in groupby(of_ranks)
        ]
        for of_ranks in groups
    ]


def _split(samples: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Take ids and lengths of samples apart; ``ValueError`` if there are none."""
    if not samples:
        raise ValueError("there are no samples to plan")
    return [int(i) for i, _ in samples], [int(length) for _, length in samples]
