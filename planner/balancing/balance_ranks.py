"""``balance``: micro-batches for a host whose ranks are all alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from seqplan.planner.balancing.constrained import (
    MicroBatches,
    bundles_of,
    plan_bundles,
    plan_equal_samples,
)
from seqplan.planner.balancing.free import plan_free
from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.certificate import cheap_bound_ms
from seqplan.planner.placement.fleet import Bin, PipelineClass
from seqplan.planner.rounds.filled_rounds import FilledRounds, Sequences
from seqplan.planner.rounds.one_degree import fewest_rounds, plan_rounds, rounds_bound_ms
from seqplan.profiler.latency import Latency


@dataclass(frozen=True)
class Balanced:
    """Micro-batches of a step, for each rank.

    ``micro_batches``: by rank and micro-batch, lists of positions in ``lengths``; with ``lockstep``
    all ranks have as many. ``predicted_ms``: Σ over rounds of the slowest rank with ``lockstep``,
    else the slowest rank; ``lower_bound_ms``: proven for every way to balance these sequences.
    """

    micro_batches: MicroBatches
    lengths: tuple[int, ...]
    cost: Latency
    lockstep: bool
    predicted_ms: float
    lower_bound_ms: float

    @property
    def gap(self) -> float:
        """Return predicted / bound − 1: no other way is faster by more."""
        return self.predicted_ms / self.lower_bound_ms - 1 if self.lower_bound_ms else 0.0

    @cached_property
    def rank_ms(self) -> tuple[float, ...]:
        """Return what each rank computes (ms), waiting for others apart."""
        return tuple(
            sum(
                self.cost.micro_batch_ms([self.lengths[i] for i in micro])
                for micro in of_rank
                if micro
            )
            for of_rank in self.micro_batches
        )

    @property
    def imbalance(self) -> float:
        """Return by what share the slowest rank computes longer than the mean."""
        return max(self.rank_ms) / (sum(self.rank_ms) / len(self.rank_ms)) - 1

    def order(self) -> list[int]:
        """Return the positions, rank after rank: what a driver sends in this order."""
        return [i for of_rank in self.micro_batches for micro in of_rank for i in micro]

    def inverse(self) -> list[int]:
        """Return, for each position in ``lengths``, its place in ``order``."""
        places = [0] * len(self.lengths)
        for place, position in enumerate(self.order()):
            places[position] = place
        return places


def balance(
    lengths: Sequence[int] | npt.NDArray[np.integer],
    ranks: int,
    capacity: int,
    cost: Latency,
    *,
    lockstep: bool = True,
    keep_together: Sequence[object] | None = None,
    count_multiple: int = 1,
    equal_samples: bool = False,
    pad_to: int = 1,
) -> Balanced:
    """Balance sequences over ranks that are all alike, and pack them into micro-batches.

    ``capacity``: tokens of a micro-batch; ``cost``: what it costs (``Cost``). ``lockstep``: ranks
    wait for each other after every micro-batch (FSDP, ZeRO-3), so that all have equally many and
    Σ of the slowest counts; else they meet once a step. ``keep_together``: a key for each sequence;
    those of one key share a micro-batch. ``count_multiple``: each rank has a multiple of so many
    micro-batches. ``equal_samples``: each rank has equally many sequences. ``pad_to``: sequences
    are padded to multiples of so many tokens.

    No micro-batch is empty where there are sequences enough: with ``equal_samples``, enough on each
    rank for its own micro-batches. Same inputs, same result.
    ``ValueError`` names a length that is no whole number above 0 or exceeds ``capacity``, and what
    else cannot be.
    """
    micro_batch = host_micro_batch(cost, capacity, pad_to)
    for name, value in (("ranks", ranks), ("count_multiple", count_multiple)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be a whole number of 1 or more, not {value!r}")
    whole = checked_lengths(lengths, micro_batch, pad_to)
    if keep_together is not None and len(keep_together) != len(whole):
        raise ValueError(f"keep_together has {len(keep_together)} keys for {len(whole)} sequences")
    batch = Batch.of_lengths(whole)
    sequences = Sequences(batch.distinct, batch.multiplicity)
    if equal_samples or keep_together is not None:
        bundles = bundles_of(micro_batch, whole, keep_together)
        plan = plan_equal_samples if equal_samples else plan_bundles
        parts = plan(micro_batch, bundles, ranks, lockstep=lockstep, multiple=count_multiple)
        bound = _bound_ms(micro_batch, sequences, batch, ranks, lockstep=lockstep)
    elif lockstep:
        rounds, bound = plan_rounds(micro_batch, sequences, ranks, count_multiple)
        parts = _positions(_by_rank(rounds, ranks), batch)
    else:
        placement, bound = plan_free(micro_batch, batch, ranks)
        parts = _positions(placement, batch)
    parts = _padded_counts(parts, count_multiple, lockstep=lockstep)
    if keep_together is None:
        _fill_empty(parts, whole, across_ranks=not equal_samples, lockstep=lockstep)
    predicted = predicted_ms(parts, whole, cost, lockstep=lockstep)
    return Balanced(parts, tuple(whole), cost, lockstep, predicted, min(bound, predicted))


def host_micro_batch(cost: Latency, capacity: int, pad_to: int) -> PipelineClass:
    """Describe a micro-batch of a rank; ``ValueError`` where it holds nothing."""
    for name, value in (("capacity", capacity), ("pad_to", pad_to)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be a whole number of 1 or more, not {value!r}")
    if capacity < pad_to:
        raise ValueError(f"capacity {capacity} holds nothing padded to multiples of {pad_to}")
    return PipelineClass(
        pp=1,
        a=cost.a,
        b=cost.b,
        c=cost.c,
        capacity=capacity - capacity % pad_to,
        unit=pad_to,
        count=1,
        gpus=1,
    )


def checked_lengths(
    lengths: Sequence[int] | npt.NDArray[np.integer], micro_batch: PipelineClass, pad_to: int
) -> list[int]:
    """Turn lengths into whole numbers; ``ValueError`` for the first that is none or too long."""
    numbers = lengths.tolist() if isinstance(lengths, np.ndarray) else list(lengths)
    if not numbers:
        raise ValueError("there are no sequences to balance")
    for place, length in enumerate(numbers):
        number = length.item() if isinstance(length, np.generic) else length
        whole = isinstance(number, int) and not isinstance(number, bool)
        if not whole and isinstance(number, float) and math.isfinite(number):
            whole = number == int(number)
        if not whole or number < 1:
            raise ValueError(f"sequence {place} has length {length!r}; wants tokens, 1 or more")
        if micro_batch.pad(int(number)) > micro_batch.capacity:
            padding = f", padded to multiples of {pad_to}" if pad_to > 1 else ""
            raise ValueError(
                f"sequence {place} has {int(number)} tokens{padding}; a micro-batch holds "
                f"{micro_batch.capacity}: truncate it or give more capacity"
            )
        numbers[place] = int(number)
    return numbers


def _bound_ms(
    micro_batch: PipelineClass, sequences: Sequences, batch: Batch, ranks: int, *, lockstep: bool
) -> float:
    """Bound every way to balance the sequences, bound together or not (ms)."""
    if not lockstep:
        return cheap_bound_ms([replace(micro_batch, count=ranks)], batch)
    # More rounds cost more, so that the fewest are the least of all.
    rounds = fewest_rounds(micro_batch, sequences, ranks)
    return rounds_bound_ms(micro_batch, sequences, ranks, rounds)


def _by_rank(rounds: FilledRounds, ranks: int) -> list[list[Bin]]:
    """Return each rank's micro-batch in every round, empty where it has none."""
    of_rounds = [[micro for _, micro in groups] for groups in rounds.bins()]
    return [
        [groups[rank] if rank < len(groups) else [] for groups in of_rounds]
        for rank in range(ranks)
    ]


def _positions(by_rank: Iterable[Sequence[Bin]], batch: Batch) -> MicroBatches:
    """Deal positions of equal lengths to micro-batches, which only count them."""
    pools = [iter(positions) for positions in batch.positions]
    return [
        [[next(pools[i]) for i, n in micro for _ in range(n)] for micro in of_rank]
        for of_rank in by_rank
    ]


def _padded_counts(parts: MicroBatches, multiple: int, *, lockstep: bool) -> MicroBatches:
    """Add empty micro-batches: to a multiple on each rank, with ``lockstep`` the same on all."""
    most = max(len(of_rank) for of_rank in parts)
    padded = []
    for of_rank in parts:
        wanted = most if lockstep else max(1, len(of_rank))
        wanted = -(-wanted // multiple) * multiple
        padded.append([*of_rank, *([] for _ in range(wanted - len(of_rank)))])
    return padded


def _fill_empty(
    parts: MicroBatches, lengths: Sequence[int], *, across_ranks: bool, lockstep: bool
) -> None:
    """Give every empty micro-batch the shortest sequence of the fullest that can spare one.

    With ``lockstep`` from its own round where that goes, so that no round becomes longer; else
    from its own rank, so that no rank gets more to do; then from anywhere if ``across_ranks``.
    """
    for rank, of_rank in enumerate(parts):
        for k, micro in enumerate(of_rank):
            if micro:
                continue
            groups = [[other for other in of_rank if len(other) > 1]]
            if across_ranks:
                groups.append([other for r in parts for other in r if len(other) > 1])
                if lockstep:
                    groups.insert(0, [r[k] for r in parts if len(r[k]) > 1])
            donors = next((group for group in groups if group), None)
            if donors is None:
                continue
            donor = max(donors, key=len)
            shortest = min(donor, key=lambda i: (lengths[i], i))
            donor.remove(shortest)
            parts[rank][k] = [shortest]


def predicted_ms(
    parts: MicroBatches, lengths: Sequence[int], cost: Latency, *, lockstep: bool
) -> float:
    """Time micro-batches: Σ of rounds, or the slowest rank (ms)."""
    a, b, c = cost.a, cost.b, cost.c
    times = [
        [c + sum(lengths[i] * (a * lengths[i] + b) for i in micro) if micro else 0.0 for micro in r]
        for r in parts
    ]
    if lockstep:
        return float(sum(max(of_round) for of_round in zip(*times, strict=True)))
    return float(max(sum(of_rank) for of_rank in times))
