"""Groups of any size in Megatron's hybrid context parallelism: of each divisor of its ranks.

Megatron forms groups of powers of two and of all ranks, and finds them by their size
(``create_hybrid_dp_cp_groups`` and ``get_hybrid_data_context_parallel_groups`` of
``megatron.core.parallel_state``, releases 0.16.1 to 0.19.2 and main of August 2026). Of 12 ranks
there are then groups of 3 and 6 as well; of a power of two nothing changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice
from typing import Any

from seqplan.integrations.replacement import replace
from seqplan.planner.balance.cost import Cost
from seqplan.planner.lockstep.filling.rank_groups import GroupedMicroSteps, plan_groups

CREATE, FORMED = "create_hybrid_dp_cp_groups", "_HYBRID_DP_CP_GROUPS"

MOST_CHAINS = 12
"""Chains of degrees that are planned at most; 60 ranks have as many."""


def install_groups() -> None:
    """Let Megatron form groups of all divisors of its ranks.

    Without effect on a version that forms none, and on groups that are there.
    """
    parallel_state: Any = import_module("megatron.core.parallel_state")
    original = getattr(parallel_state, CREATE, None)
    if original is None or hasattr(original, "host_function"):
        return

    def create_hybrid_dp_cp_groups(rank: int, ranks: list[int], pg_options: Any) -> dict[int, Any]:
        """Form Megatron's groups, then those of the other divisors, in the same order on all."""
        groups: dict[int, Any] = original(rank, ranks, pg_options)
        count = len(ranks)
        for size in range(3, count):
            if count % size or not size & (size - 1):
                continue
            for first in range(0, count, size):
                members = ranks[first : first + size]
                group = parallel_state.create_group(
                    members, pg_options=pg_options, group_desc=f"HYBRID_DP_CP_GROUP_{size}"
                )
                if rank in members:
                    groups[size] = group
        return groups

    replace(parallel_state, CREATE, create_hybrid_dp_cp_groups)


def list_formed(ranks: int) -> set[int] | None:
    """List the degrees whose groups Megatron has formed; None if it has formed none."""
    formed = getattr(import_module("megatron.core.parallel_state"), FORMED, None)
    if not formed:
        return None
    return {1, ranks, *(size for size in formed if ranks % size == 0)}


def plan_chains(
    lengths: Sequence[int], ranks: int, capacity: int, costs: Mapping[int, Cost], **options: Any
) -> GroupedMicroSteps:
    """Plan groups by each chain of degrees and return the fastest plan; see ``plan_groups``.

    Its bound is over all groups whose degrees are of one chain.
    """
    plans = [
        plan_groups(lengths, ranks, capacity, {d: costs[d] for d in chain}, **options)
        for chain in list_chains(costs)
    ]
    best = min(plans, key=lambda plan: plan.predicted_ms)
    return dataclasses.replace(best, lower_bound_ms=min(plan.lower_bound_ms for plan in plans))


def list_chains(degrees: Collection[int]) -> list[tuple[int, ...]]:
    """List the longest chains of degrees in which each divides the next, at most ``MOST_CHAINS``.

    Groups of one chain lie side by side at multiples of their size. Small factors come first, so
    that the first chain has the powers of two.
    """

    def extend(chain: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        further = sorted(d for d in degrees if d > chain[-1] and d % chain[-1] == 0)
        nearest = [d for d in further if not any(d % e == 0 for e in further if e < d)]
        if not nearest:
            yield chain
        for degree in nearest:
            yield from extend((*chain, degree))

    return list(islice(extend((min(degrees),)), MOST_CHAINS))
