"""``balance``: micro-batches for a trainer whose ranks are equal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Literal, cast

import numpy as np
import numpy.typing as npt

from seqplan.costs.latency import Latency
from seqplan.planner.balance.constrained import (
    Bundle,
    MicroBatches,
    bundles_of,
    plan_bundles,
    plan_equal_samples,
)
from seqplan.planner.balance.free import plan_free
from seqplan.planner.balance.micro_batch_counts import fill_empty, pad_counts
from seqplan.planner.balance.mode import Mode
from seqplan.planner.batches.batch import Batch, whole_lengths
from seqplan.planner.bounds.gpu_time import cheap_bound_ms, gpu_time_bound_ms
from seqplan.planner.lockstep.filled_micro_steps import FilledMicroSteps
from seqplan.planner.lockstep.micro_step_bounds import (
    Sequences,
    fewest_micro_steps,
    fewest_of_one_degree,
    micro_steps_bound_ms,
    one_degree_bound_ms,
)
from seqplan.planner.lockstep.one_degree import plan_one_degree
from seqplan.planner.placement.fleet import Bin, PipelineClass


@dataclass(frozen=True)
class Balanced:
    """Micro-batches of a step, for each rank.

    ``micro_batches``: by rank and micro-batch, lists of positions in ``lengths``; in lockstep all
    ranks have as many. ``predicted_ms``: in lockstep Σ over micro-steps of the slowest rank, else
    the slowest rank; ``lower_bound_ms``: proven for every way to balance these sequences.
    ``modes``: of recomputation, of which each micro-batch has the cheapest that holds it.
    """

    micro_batches: MicroBatches
    lengths: tuple[int, ...]
    modes: tuple[Mode, ...]
    pad_to: int
    execution: Literal["lockstep", "uniform"]
    predicted_ms: float
    lower_bound_ms: float

    @property
    def gap(self) -> float:
        """Return predicted / bound − 1: no other way is faster by more."""
        return self.predicted_ms / self.lower_bound_ms - 1 if self.lower_bound_ms else 0.0

    @cached_property
    def recompute(self) -> list[list[str]]:
        """Name the recomputation mode of each rank's micro-batches; empty ones have the first."""
        return [
            [
                _cheapest(self.modes, [self.lengths[i] for i in micro], self.pad_to)[1].name
                if micro
                else self.modes[0].name
                for micro in of_rank
            ]
            for of_rank in self.micro_batches
        ]

    @cached_property
    def rank_ms(self) -> tuple[float, ...]:
        """Return the computing time of each rank (ms), waiting for others apart."""
        return tuple(
            sum(
                _cheapest(self.modes, [self.lengths[i] for i in micro], self.pad_to)[0]
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
        """Return the positions, rank after rank: the order in which a driver sends."""
        return [i for of_rank in self.micro_batches for micro in of_rank for i in micro]

    def inverse(self) -> list[int]:
        """Return, for each position in ``lengths``, its place in ``order``."""
        places = [0] * len(self.lengths)
        for place, position in enumerate(self.order()):
            places[position] = place
        return places


def balance(
    lengths: Iterable[int] | npt.NDArray[np.integer],
    ranks: int,
    capacity: int | None = None,
    cost: Latency | None = None,
    *,
    modes: Sequence[Mode] | None = None,
    execution: Literal["lockstep", "uniform"] = "lockstep",
    keep_together: Sequence[object] | None = None,
    count_multiple: int = 1,
    equal_samples: bool = False,
    pad_to: int = 1,
) -> Balanced:
    """Balance sequences over equal ranks, and pack them into micro-batches.

    ``capacity``: tokens of a micro-batch; ``cost``: its cost (``Cost``). ``modes``: in place of
    both, recomputation modes; each micro-batch has the cheapest that holds it. ``execution``: in
    ``lockstep`` ranks wait for each other after every micro-batch (FSDP, ZeRO-3), so that all have
    equally many and Σ of the slowest counts; with ``uniform`` they meet once a step.
    ``keep_together``: a key for each sequence; those of one key share a micro-batch.
    ``count_multiple``: each rank has a multiple of so many micro-batches. ``equal_samples``: each
    rank has equally many sequences. ``pad_to``: sequences are padded to multiples of so many
    tokens.

    No micro-batch is empty if sequences suffice: with ``equal_samples``, if those of each rank
    suffice for its micro-batches. If they do not, those with sequences are as few as is fastest
    and the others are empty, which takes no time. Same inputs, same result.
    ``ValueError`` names a length that is no whole number above 0 or exceeds ``capacity``, and other
    arguments that cannot be; ``TypeError`` those of another kind.
    """
    chosen = _check_modes(capacity, cost, modes)
    by_mode = [host_micro_batch(mode.cost, mode.capacity, pad_to) for mode in chosen]
    micro_batch = max(by_mode, key=lambda k: k.capacity)
    if type(equal_samples) is not bool:
        raise TypeError(f"equal_samples: {equal_samples!r}. Give True or False")
    if execution not in ("lockstep", "uniform"):
        raise ValueError(f"execution must be lockstep or uniform: {execution!r}")
    lockstep = execution == "lockstep"
    for name, value in (("ranks", ranks), ("count_multiple", count_multiple)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be a whole number of 1 or more, not {value!r}")
    whole = check_lengths(lengths, micro_batch, pad_to)
    if keep_together is not None and len(keep_together) != len(whole):
        raise ValueError(
            f"keep_together has {len(keep_together)} keys for {len(whole)} sequences"
            ". Give one key for each sequence"
        )
    batch = Batch.from_lengths(whole)
    ways: list[MicroBatches] = []
    bound = 0.0
    for of_mode in by_mode:
        if int(of_mode.padded(batch.distinct).max()) > of_mode.capacity:
            continue
        try:
            bundles = (
                bundles_of(of_mode, whole, keep_together)
                if equal_samples or keep_together is not None
                else None
            )
        except ValueError:
            if of_mode is micro_batch:
                raise
            continue  # those of one key need a mode that holds more
        more, bound = _ways(
            of_mode,
            batch,
            ranks,
            count_multiple,
            lockstep=lockstep,
            bundles=bundles,
            equal_samples=equal_samples,
        )
        ways += more
    if len(by_mode) > 1:
        bound = _bound_modes_ms(by_mode, batch, ranks, lockstep=lockstep)
    best: MicroBatches = []
    best_ms = inf
    for way in ways:
        parts = pad_counts(way, count_multiple, lockstep=lockstep)
        if keep_together is None:
            fill_empty(parts, whole, across_ranks=not equal_samples, lockstep=lockstep)
        time_ms = predict_ms(parts, whole, chosen, pad_to, lockstep=lockstep)
        if time_ms < best_ms:
            best, best_ms = parts, time_ms
    return Balanced(best, tuple(whole), chosen, pad_to, execution, best_ms, min(bound, best_ms))


def _check_modes(
    capacity: int | None, cost: Latency | None, modes: Sequence[Mode] | None
) -> tuple[Mode, ...]:
    """Return the modes, one if ``capacity`` and ``cost`` state it; by ascending capacity."""
    if modes is None:
        if capacity is None and cost is None:
            raise TypeError("capacity and cost are missing. Give both, or modes")
        # What is wrong with one of them is reported with the micro-batch that it describes.
        return (Mode("", cast(int, capacity), cast(Latency, cost)),)
    if capacity is not None or cost is not None:
        raise TypeError("capacity and cost are stated by each mode. Leave both out with modes")
    if not modes or not all(isinstance(mode, Mode) for mode in modes):
        raise TypeError(f"modes: {modes!r:.60}. Give a list of Mode(name, capacity, cost)")
    names = [mode.name for mode in modes]
    if len(set(names)) < len(names):
        raise ValueError(f"modes: {', '.join(names)}. Name each once")
    return tuple(sorted(modes, key=lambda mode: mode.capacity))


def _bound_modes_ms(
    by_mode: Sequence[PipelineClass], batch: Batch, ranks: int, *, lockstep: bool
) -> float:
    """Bound every way to balance, whatever mode each micro-batch has (ms)."""
    if lockstep:
        fewest = fewest_micro_steps(by_mode, batch, ranks)
        return micro_steps_bound_ms(by_mode, batch, ranks, fewest)
    return gpu_time_bound_ms(by_mode, batch, ranks)


def _cheapest(modes: Sequence[Mode], lengths: Sequence[int], pad_to: int) -> tuple[float, Mode]:
    """Return the cost of a micro-batch in its cheapest mode (ms), and that mode."""
    tokens = sum(-(-length // pad_to) * pad_to for length in lengths)
    holding = [mode for mode in modes if tokens <= mode.capacity - mode.capacity % pad_to]
    costs = [(mode.cost.micro_batch_ms(lengths), mode) for mode in holding or modes[-1:]]
    return min(costs, key=lambda option: option[0])


def _ways(
    micro_batch: PipelineClass,
    batch: Batch,
    ranks: int,
    multiple: int,
    *,
    lockstep: bool,
    bundles: Sequence[Bundle] | None,
    equal_samples: bool,
) -> tuple[list[MicroBatches], float]:
    """Plan in some ways, of which one is best, and bound all (ms)."""
    sequences = Sequences(batch.distinct, batch.multiplicity)
    if bundles is not None:
        plan = plan_equal_samples if equal_samples else plan_bundles
        parts = plan(micro_batch, bundles, ranks, lockstep=lockstep, multiple=multiple)
        if lockstep:
            # More micro-steps cost more, so that the fewest are the least of all.
            fewest = fewest_of_one_degree(micro_batch, sequences, ranks)
            return [parts], one_degree_bound_ms(micro_batch, sequences, ranks, fewest)
        return [parts], cheap_bound_ms([replace(micro_batch, count=ranks)], batch)
    if lockstep:
        micro_steps, bound = plan_one_degree(micro_batch, sequences, ranks, multiple)
        return [_positions(_by_rank(micro_steps, ranks), batch)], bound
    placements, bound = plan_free(micro_batch, batch, ranks, multiple)
    return [_positions(placement, batch) for placement in placements], bound


def host_micro_batch(cost: Latency, capacity: int, pad_to: int) -> PipelineClass:
    """Describe a micro-batch of a rank; ``ValueError`` if it holds nothing."""
    if not isinstance(cost, Latency):
        raise TypeError(f"cost: {cost!r}. Give a Cost, such as Cost.from_model(…)")
    for name, value in (("capacity", capacity), ("pad_to", pad_to)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be a whole number of 1 or more, not {value!r}")
    if capacity < pad_to:
        raise ValueError(
            f"capacity {capacity} holds nothing padded to multiples of {pad_to}"
            ". Raise the capacity or lower the multiple"
        )
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


def check_lengths(lengths: object, micro_batch: PipelineClass, pad_to: int) -> list[int]:
    """Return lengths as whole numbers.

    ``TypeError`` and ``ValueError`` as ``whole_lengths``, and ``ValueError`` for the first that
    exceeds a micro-batch.
    """
    whole = whole_lengths(lengths)
    padded = micro_batch.padded(whole)
    if padded.max() > micro_batch.capacity:
        place = int(np.argmax(padded > micro_batch.capacity))
        padding = f", padded to multiples of {pad_to}" if pad_to > 1 else ""
        raise ValueError(
            f"sequence {place} has {whole[place]} tokens{padding}; a micro-batch holds "
            f"{micro_batch.capacity}: truncate it or give more capacity"
        )
    numbers: list[int] = whole.tolist()
    return numbers


def _by_rank(micro_steps: FilledMicroSteps, ranks: int) -> list[list[Bin]]:
    """Return each rank's micro-batch in every micro-step, empty if it has none."""
    of_micro_steps = [[micro for _, micro in groups] for groups in micro_steps.bins()]
    return [
        [groups[rank] if rank < len(groups) else [] for groups in of_micro_steps]
        for rank in range(ranks)
    ]


def _positions(by_rank: Iterable[Sequence[Bin]], batch: Batch) -> MicroBatches:
    """Deal positions of equal lengths to micro-batches, which only count them."""
    pools = [iter(positions) for positions in batch.positions]
    return [
        [[next(pools[i]) for i, n in micro for _ in range(n)] for micro in of_rank]
        for of_rank in by_rank
    ]


def predict_ms(
    parts: MicroBatches,
    lengths: Sequence[int],
    modes: Sequence[Mode],
    pad_to: int = 1,
    *,
    lockstep: bool,
) -> float:
    """Time micro-batches in their cheapest modes: Σ of micro-steps, or the slowest rank (ms)."""
    times = [
        [
            _cheapest(modes, [lengths[i] for i in micro], pad_to)[0] if micro else 0.0
            for micro in of_rank
        ]
        for of_rank in parts
    ]
    if lockstep:
        return float(sum(max(of_micro_step) for of_micro_step in zip(*times, strict=True)))
    return float(max(sum(of_rank) for of_rank in times))
