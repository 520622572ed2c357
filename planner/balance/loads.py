"""Balancing samples that have work in several phases, each of which may wait for the slowest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from seqplan.planner.balance.assignment import (
    assign_by_rank,
    assign_in_lockstep,
    spread_overhead,
)
from seqplan.planner.balance.balanced import Balanced, Execution, MicroBatchTimes
from seqplan.planner.balance.micro_batch_counts import (
    drop_empty_steps,
    fill_empty,
    pad_counts,
)
from seqplan.planner.balance.phase import Phase
from seqplan.planner.balance.slots import UNLIMITED, Items, bound_ms
from seqplan.planner.placement.fleet import Floats, Ints
from seqplan.planner.placement.slowdown import Slowdown


@dataclass(frozen=True)
class LoadPricing:
    """Times of micro-batches in each phase, or over all phases if there is no barrier."""

    loads: tuple[Phase, ...]
    barrier: bool

    @cached_property
    def phases(self) -> tuple[str, ...]:
        """Name the phases after which ranks wait; one name for all without a barrier."""
        names = tuple(load.name for load in self.loads)
        return names if self.barrier else ("+".join(names),)

    @cached_property
    def _work_ms(self) -> Floats:
        return np.stack([load.work_ms for load in self.loads], axis=1)

    def phases_ms(self, positions: Sequence[int]) -> tuple[float, ...]:
        """Time a micro-batch in each phase; without tokens in it, it takes none."""
        work = self._work_ms[list(positions)].sum(axis=0).tolist()
        times = [
            ms + load.cost.c if ms > 0 else 0.0 for ms, load in zip(work, self.loads, strict=True)
        ]
        return tuple(times) if self.barrier else (sum(times),)

    def count_padded(self, positions: Sequence[int]) -> int:
        """Count the tokens of the last phase, which has no padding."""
        return int(self.loads[-1].tokens[list(positions)].sum())

    def choose_mode(self, positions: Sequence[int]) -> str:
        """Name no mode: loads have one."""
        return ""


def balance_loads(
    loads: Sequence[Phase],
    speeds: Slowdown,
    *,
    barrier: bool,
    execution: Execution,
    count_multiple: int,
    least_count: int = 1,
    rank_of: Ints | None = None,
) -> Balanced:
    """Balance samples that stay on their rank in all phases; see ``balance``.

    Time is, in lockstep, Σ over micro-steps and phases of the slowest rank; with ``uniform`` Σ over
    phases, as ranks end a phase of all their micro-batches before the next one. Without ``barrier``
    they wait once a micro-step, or once a step. ``rank_of`` (samples,), in lockstep: the rank that
    has each sample already, so that micro-batches alone are chosen, ``least_count`` or more on each
    rank, none of them empty; ``ValueError`` for a rank with fewer samples.
    """
    check_loads(loads)
    pricing = LoadPricing(tuple(loads), barrier)
    items = replace(_list_items(loads, barrier), rank_of=rank_of)
    factors, lockstep = speeds.in_order, execution == "lockstep"
    if lockstep:
        parts = assign_in_lockstep(items, factors, count_multiple, least_count)
        if rank_of is None:
            parts = drop_empty_steps(parts, count_multiple)
        bound = bound_ms(items, factors, items.fewest_micro_steps(len(factors)))
    else:
        parts = assign_by_rank(items, factors, count_multiple)
        bound = bound_ms(spread_overhead(items), factors, 1)
    parts = pad_counts(parts, count_multiple, lockstep=lockstep)
    lengths = tuple(loads[-1].tokens.tolist())
    work_ms = items.work_ms.sum(axis=1).tolist()
    # One sample alone fits in every phase.
    fill_empty(parts, work_ms, across_ranks=rank_of is None, lockstep=lockstep)
    parts = speeds.at_ranks(parts)
    total_ms = MicroBatchTimes.from_parts(parts, pricing, speeds.factors, execution).total_ms()
    return Balanced(
        parts, lengths, pricing, execution, total_ms, min(bound, total_ms), speeds.factors
    )


def _list_items(loads: Sequence[Phase], barrier: bool) -> Items:
    return Items(
        np.stack([load.work_ms for load in loads], axis=1),
        np.stack([load.tokens for load in loads], axis=1),
        np.array([load.capacity or UNLIMITED for load in loads], dtype=np.int64),
        np.array([load.cost.c for load in loads]),
        barrier,
    )


def check_loads(loads: Sequence[Phase]) -> None:
    """Reject loads that do not belong together. ``ValueError`` or ``TypeError`` in one line."""
    if not loads or not all(isinstance(load, Phase) for load in loads):
        raise TypeError(f"loads: {loads!r:.60}. Give a list of Phase(name, sequences, cost)")
    names = [load.name for load in loads]
    if len(set(names)) < len(names):
        raise ValueError(f"loads: {', '.join(names)}. Name each phase once")
    if len({len(load.sequences) for load in loads}) > 1:
        numbers = ", ".join(f"{load.name} {len(load.sequences)}" for load in loads)
        raise ValueError(f"samples of the loads: {numbers}. Give the same samples to each")
    idle = np.sum([load.tokens for load in loads], axis=0) == 0
    if idle.any():
        raise ValueError(
            f"sample {int(idle.argmax())} has no tokens in any load. Leave it out or give it some"
        )
