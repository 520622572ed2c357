"""``balance``: micro-batches for a trainer whose ranks run the same scheme."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

import numpy as np
import numpy.typing as npt

from seqplan.costs.latency import Latency
from seqplan.planner.argument_checks import read_whole_number
from seqplan.planner.balance.balanced import Balanced, Execution, MicroBatchTimes, ModePricing
from seqplan.planner.balance.length_options import LengthOptions
from seqplan.planner.balance.loads import balance_loads
from seqplan.planner.balance.micro_batch_counts import (
    MicroBatches,
    fill_empty,
    order_largest_first,
    pad_counts,
)
from seqplan.planner.balance.mode import Mode
from seqplan.planner.balance.phase import Phase
from seqplan.planner.balance.shapes import list_filled
from seqplan.planner.balance.ways import list_ways
from seqplan.planner.batches.batch import Batch
from seqplan.planner.execution import MOST_MULTIPLE
from seqplan.planner.placement.slowdown import Slowdown
from seqplan.planner.workload import MOST_GPUS

AS_FAST = 5e-3
"""Times within this of the least are equal in choosing shapes, so that padding decides."""


def balance(
    lengths: Iterable[int] | npt.NDArray[np.integer] | None = None,
    ranks: int = 0,
    capacity: int | None = None,
    cost: Latency | None = None,
    *,
    modes: Sequence[Mode] | None = None,
    loads: Sequence[Phase] | None = None,
    barrier: bool = True,
    execution: Execution = "lockstep",
    slowdown: Sequence[float | None] | None = None,
    keep_together: Sequence[object] | None = None,
    count_multiple: int = 1,
    equal_samples: bool = False,
    pad_to: int = 1,
    shapes: int | Sequence[int] | None = None,
) -> Balanced:
    """Balance sequences over the ranks of one scheme, and pack them into micro-batches.

    ``capacity``: tokens of a micro-batch; ``cost``: its cost (``Cost``). ``modes``: in place of
    both, recomputation modes; each micro-batch has the cheapest that holds it. ``loads``: in place
    of ``lengths``, capacity and cost, what each sample has to do in each phase (``Phase``);
    ``barrier``: whether ranks wait for each other between phases. ``execution``: in ``lockstep``
    ranks wait for each other after every micro-batch (FSDP, ZeRO-3), so that all have equally many
    and Σ of the slowest counts; with ``uniform`` they meet once a step. ``slowdown``: how many
    times as long as ``cost`` each rank takes, None if it is lost: it then has no micro-batch.
    ``keep_together``: a key for each sequence; those of one key share a micro-batch.
    ``count_multiple``: each rank has a multiple of so many micro-batches. ``equal_samples``: each
    rank has equally many sequences. ``pad_to``: sequences are padded to multiples of so many
    tokens. ``shapes``: micro-batches are padded to so many sizes, or to these (tokens), and come
    largest first; padding takes b a token.

    No micro-batch is empty if sequences suffice: with ``equal_samples``, if those of each rank
    suffice for its micro-batches. If they do not, those with sequences are as few as is fastest
    and the others are empty, which takes no time. Same inputs, same result.
    ``ValueError`` names a length that is no whole number above 0 or exceeds ``capacity``, and other
    arguments that cannot be; ``TypeError`` those of another kind.
    """
    for name, value in (("equal_samples", equal_samples), ("barrier", barrier)):
        if type(value) is not bool:
            raise TypeError(f"{name}: {value!r}. Give True or False")
    if execution not in ("lockstep", "uniform"):
        raise ValueError(f"execution must be lockstep or uniform: {execution!r}")
    ranks = read_whole_number("ranks", ranks, MOST_GPUS)
    count_multiple = read_whole_number("count_multiple", count_multiple, MOST_MULTIPLE)
    pad_to = read_whole_number("pad_to", pad_to)
    speeds = Slowdown.from_value(slowdown, ranks)
    if loads is not None:
        _reject_with_loads(
            lengths=lengths,
            capacity=capacity,
            cost=cost,
            modes=modes,
            keep_together=keep_together,
            equal_samples=equal_samples or None,
            pad_to=None if pad_to == 1 else pad_to,
            shapes=shapes,
        )
        return balance_loads(
            loads, speeds, barrier=barrier, execution=execution, count_multiple=count_multiple
        )
    options = LengthOptions.read(
        lengths,
        capacity,
        cost,
        modes,
        pad_to=pad_to,
        keep_together=keep_together,
        equal_samples=equal_samples,
        shapes=shapes,
    )
    return _balance_lengths(options, speeds, execution, count_multiple)


def _balance_lengths(
    options: LengthOptions, speeds: Slowdown, execution: Execution, count_multiple: int
) -> Balanced:
    """Balance sequences in several ways, and choose the fastest."""
    lengths, pricing = options.lengths, options.pricing
    lockstep = execution == "lockstep"
    ways, bound_ms = list_ways(
        options.by_mode,
        Batch.from_lengths(lengths),
        speeds,
        options.keep_together,
        equal_samples=options.equal_samples,
        lockstep=lockstep,
        multiple=count_multiple,
    )
    best: MicroBatches = []
    best_ms = inf
    for way in ways:
        parts = pad_counts(way, count_multiple, lockstep=lockstep)
        if options.keep_together is None:
            fill_empty(parts, lengths, across_ranks=not options.equal_samples, lockstep=lockstep)
        parts = speeds.at_ranks(parts)
        time_ms = MicroBatchTimes.from_parts(parts, pricing, speeds.factors, execution).total_ms()
        if time_ms < best_ms:
            best, best_ms = parts, time_ms
    if options.shapes is not None:
        largest = options.by_mode[-1]
        tokens = [largest.pad(length) for length in lengths]
        filled = list_filled(best, tokens, options.shapes, largest.capacity)
        best, pricing = _choose_filled(filled, pricing, speeds, execution)
        best_ms = MicroBatchTimes.from_parts(best, pricing, speeds.factors, execution).total_ms()
    return Balanced(
        best, lengths, pricing, execution, best_ms, min(bound_ms, best_ms), speeds.factors
    )


def _reject_with_loads(**stated: object) -> None:
    """Reject arguments that loads state."""
    if extra := [name for name, value in stated.items() if value is not None]:
        raise ValueError(f"loads with {', '.join(extra)}: each load states it. Leave it out")


def _choose_filled(
    ways: Sequence[tuple[MicroBatches, tuple[int, ...]]],
    pricing: ModePricing,
    speeds: Slowdown,
    execution: Execution,
) -> tuple[MicroBatches, ModePricing]:
    """Choose the least padding of the ways that are about as fast as the fastest."""
    options = []
    for parts, shapes in ways:
        with_shapes = replace(pricing, shapes=shapes)
        times = MicroBatchTimes.from_parts(parts, with_shapes, speeds.factors, execution)
        padded = sum(with_shapes.count_padded(micro) for of_rank in parts for micro in of_rank)
        options.append((times.total_ms(), padded, parts, with_shapes))
    limit_ms = min(option[0] for option in options) * (1 + AS_FAST)
    near = [option for option in options if option[0] <= limit_ms]
    _, _, parts, chosen = min(near, key=lambda option: option[1])
    return order_largest_first(parts, chosen.count_padded, execution == "lockstep"), chosen
