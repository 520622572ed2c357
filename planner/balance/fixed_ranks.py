"""Micro-batches for ranks that have their sequences already, packed so that micro-steps match.

For trainers that dispatch first and let every rank pack its sequences. In lockstep the time is Σ
over micro-steps of the slowest rank, so a long sequence of one rank is time for the others to fill.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from seqplan.costs.latency import Latency
from seqplan.planner.balance.balanced import Balanced, Execution, MicroBatchTimes, ModePricing
from seqplan.planner.balance.micro_batch import check_lengths, host_micro_batch
from seqplan.planner.balance.micro_batch_counts import MicroBatches
from seqplan.planner.balance.mode import Mode
from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.bounds.micro_step_bounds import (
    Sequences,
    fewest_of_one_degree,
    one_degree_bound_ms,
)
from seqplan.planner.lockstep.filling.filled_micro_steps import FilledMicroSteps
from seqplan.planner.lockstep.filling.filler import MicroStepsFiller
from seqplan.planner.lockstep.filling.search import SearchSettings, Start, common_target, search
from seqplan.planner.placement.fleet import PipelineClass

SETTINGS = SearchSettings(extra=1, improved=0, fills=0)
"""Packings are final: targets come from the ranks that take longest."""

WIDTH = 2e-3
"""Relative width at which the search for a profile's factor ends."""

PROFILES = 3
"""Ranks whose micro-batches are tried as the targets of all: those that take longest."""


def balance_fixed(
    of_ranks: Sequence[Sequence[int]],
    capacity: int,
    cost: Latency,
    *,
    count_multiple: int = 1,
    least_count: int = 1,
) -> Balanced:
    """Pack each rank's sequences (tokens) into equally many micro-batches, none of them empty.

    ``count_multiple``, ``least_count``: what their number is a multiple of, and at least.
    Positions in the result number the sequences of all ranks, rank after rank. ``ValueError`` as
    ``balance``, and where a rank has fewer sequences than micro-batches are needed.
    """
    mode = Mode("", capacity, cost)
    micro_batch = host_micro_batch(mode, 1)
    lengths = check_lengths([length for of_rank in of_ranks for length in of_rank], micro_batch, 1)
    if not all(of_ranks):
        raise ValueError("a rank has no sequences to pack. Give each rank a sequence")
    packer = _Packer(micro_batch, of_ranks)
    pricing = ModePricing(tuple(lengths), (mode,))
    factors = (1.0,) * len(of_ranks)
    number = ceil(max(packer.fewest, least_count) / count_multiple) * count_multiple
    most = min(map(len, of_ranks))

    def time_ms(parts: MicroBatches) -> float:
        """Time micro-batches in lockstep."""
        return MicroBatchTimes.from_parts(parts, pricing, factors, "lockstep").total_ms()

    candidates, bound_ms = search(
        [_FixedRanks(packer, time_ms)],
        range(number, most + 1, count_multiple),
        packer.bound_ms,
        SETTINGS,
    )
    if not candidates:
        raise ValueError(
            f"a rank has {most} sequences for {number} micro-batches or more, of at most "
            f"{capacity} tokens"
        )
    best = candidates[0]
    bound_ms = min(bound_ms, best.total_ms)
    lockstep: Execution = "lockstep"
    return Balanced(best.parts, tuple(lengths), pricing, lockstep, best.total_ms, bound_ms, factors)


@dataclass(frozen=True)
class _Packed:
    """Micro-batches of every rank, as many on each, and their time in lockstep (ms)."""

    parts: MicroBatches
    total_ms: float

    @property
    def times_ms(self) -> tuple[float, ...]:
        """One entry for each micro-batch of a rank, as only their number counts."""
        return (0.0,) * len(self.parts[0])


@dataclass(frozen=True)
class _FixedRanks:
    """Packs the sequences of every rank; see ``Starter``."""

    packer: _Packer
    time_ms: Callable[[MicroBatches], float]

    def list_starts(self, number: int, bound_ms: float, best_ms: float) -> list[Start[_Packed]]:
        """List the packings into so many micro-batches."""
        return [
            Start(_Packed(parts, self.time_ms(parts)))
            for parts in self.packer.list_packings(number)
        ]


class _Packer:
    """Packs the sequences of every rank into a number of micro-batches."""

    def __init__(self, micro_batch: PipelineClass, of_ranks: Sequence[Sequence[int]]) -> None:
        self._micro_batch = micro_batch
        self._lengths = of_ranks
        self._batches = [Batch.from_lengths(of_rank) for of_rank in of_ranks]
        self._sequences = [Sequences(b.distinct, b.multiplicity) for b in self._batches]
        self._fillers = [MicroStepsFiller([micro_batch], of_rank, 1) for of_rank in self._sequences]
        self.fewest = max(
            fewest_of_one_degree(micro_batch, of_rank, 1) for of_rank in self._sequences
        )

    def bound_ms(self, number: int) -> float:
        """Bound every way to pack into ``number`` micro-batches: no rank is faster alone (ms)."""
        return max(
            one_degree_bound_ms(self._micro_batch, of_rank, 1, number)
            for of_rank in self._sequences
        )

    def list_packings(self, number: int) -> list[list[list[list[int]]]]:
        """List ways to pack: each rank evenly, and all after the micro-batches of one."""
        alone = [common_target(filler, number, 0.0) for filler in self._fillers]
        even = [filled for filled in alone if filled is not None]
        if len(even) < len(alone):
            return []
        ways = [even]
        longest = sorted(range(len(even)), key=lambda r: (-even[r].total_ms, r))[:PROFILES]
        for rank in longest:
            profile = sorted(even[rank].times_ms, reverse=True)
            if after := self._after(profile):
                ways.append(after)
        return [self._positions(way, number) for way in ways]

    def _after(self, profile: Sequence[float]) -> list[FilledMicroSteps] | None:
        """Fill every rank to a multiple of a profile's times (ms), the least that works."""
        best = None
        low, high, factor = 1.0 - WIDTH, 4.0, 1.0
        while high - low > WIDTH:
            filled = self._fill([factor * time for time in profile])
            if filled is None:
                low = factor
            else:
                best, high = filled, factor
            factor = (low + high) / 2 if best is not None else min(factor * 1.05, high)
            if best is None and factor >= high:
                break
        return best

    def _fill(self, targets_ms: Sequence[float]) -> list[FilledMicroSteps] | None:
        every = []
        for filler in self._fillers:
            filled = filler.fill(targets_ms)
            if filled is None:
                return None
            every.append(filled)
        return every

    def _positions(self, way: Sequence[FilledMicroSteps], number: int) -> list[list[list[int]]]:
        """Give each micro-batch its sequences, longest first, none of them empty."""
        parts, before = [], 0
        for filled, batch, lengths in zip(way, self._batches, self._lengths, strict=True):
            pools = [iter(positions) for positions in batch.positions]
            of_rank = [
                [next(pools[i]) for _, micro in groups for i, n in micro for _ in range(n)]
                for groups in filled.bins()
            ]
            of_rank.extend([] for _ in range(number - len(of_rank)))
            _spread(of_rank, lengths)
            of_rank.sort(key=lambda micro: -self._work_ms([lengths[i] for i in micro]))
            parts.append([[before + i for i in micro] for micro in of_rank])
            before += len(lengths)
        return parts

    def _work_ms(self, lengths: Sequence[int]) -> float:
        return sum(x * (self._micro_batch.a * x + self._micro_batch.b) for x in lengths)


def _spread(micro_batches: list[list[int]], lengths: Sequence[int]) -> None:
    """Give every empty micro-batch the shortest sequence of the one with most."""
    for micro in micro_batches:
        if not micro:
            donor = max(micro_batches, key=len)
            shortest = min(donor, key=lambda i: (lengths[i], i))
            donor.remove(shortest)
            micro.append(shortest)
