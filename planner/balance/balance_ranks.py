"""``balance``: micro-batches for a trainer whose ranks run the same scheme."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import cast

import numpy as np
import numpy.typing as npt

from seqplan.costs.latency import Latency
from seqplan.planner.balance.balanced import Balanced, Execution, MicroBatchTimes, ModePricing
from seqplan.planner.balance.constrained import (
    Bundle,
    bundles_of,
    plan_bundles,
    plan_equal_samples,
    plan_uneven_bundles,
)
from seqplan.planner.balance.free import plan_free
from seqplan.planner.balance.loads import balance_loads
from seqplan.planner.balance.micro_batch_counts import (
    MicroBatches,
    fill_empty,
    order_largest_first,
    pad_counts,
)
from seqplan.planner.balance.mode import Mode
from seqplan.planner.balance.phase import Phase
from seqplan.planner.balance.shapes import check_shapes, list_filled
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
from seqplan.planner.lockstep.rank_speeds import plan_rank_speeds
from seqplan.planner.placement.fleet import Bin, ClassMode, PipelineClass
from seqplan.planner.placement.slowdown import Slowdown, slow_down
from seqplan.planner.whole_number import read_whole_number

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
    if type(equal_samples) is not bool:
        raise TypeError(f"equal_samples: {equal_samples!r}. Give True or False")
    if execution not in ("lockstep", "uniform"):
        raise ValueError(f"execution must be lockstep or uniform: {execution!r}")
    ranks = read_whole_number("ranks", ranks)
    count_multiple = read_whole_number("count_multiple", count_multiple)
    pad_to = read_whole_number("pad_to", pad_to)
    speeds = Slowdown.from_value(slowdown, ranks)
    if loads is not None:
        stated = {
            "lengths": lengths,
            "capacity": capacity,
            "cost": cost,
            "modes": modes,
            "keep_together": keep_together,
            "equal_samples": equal_samples or None,
            "pad_to": None if pad_to == 1 else pad_to,
            "shapes": shapes,
        }
        if extra := [name for name, value in stated.items() if value is not None]:
            raise ValueError(f"loads with {', '.join(extra)}: each load states it. Leave it out")
        return balance_loads(
            loads, speeds, barrier=barrier, execution=execution, count_multiple=count_multiple
        )
    if lengths is None:
        raise TypeError("lengths are missing. Give the tokens of each sequence, or loads")
    chosen = _check_modes(capacity, cost, modes)
    by_mode = [host_micro_batch(mode.cost, mode.capacity, pad_to) for mode in chosen]
    micro_batch = max(by_mode, key=lambda k: k.capacity)
    whole = check_lengths(lengths, micro_batch, pad_to)
    if keep_together is not None and len(keep_together) != len(whole):
        raise ValueError(
            f"keep_together has {len(keep_together)} keys for {len(whole)} sequences"
            ". Give one key for each sequence"
        )
    if shapes is not None:
        if keep_together is not None or equal_samples:
            raise ValueError(
                "shapes with keep_together or equal_samples: sequences are exchanged one by one to "
                "fill a shape. Leave one of them out"
            )
        shapes = check_shapes(shapes, micro_batch.pad(max(whole)), micro_batch.capacity)
        if not isinstance(shapes, int):
            by_mode = [hold_at_most(mode, shapes[-1]) for mode in by_mode]
            micro_batch = by_mode[-1]
    lockstep = execution == "lockstep"
    batch = Batch.from_lengths(whole)
    pricing = ModePricing(tuple(whole), chosen, pad_to)
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
        ranks_of_mode = _Ranks(of_mode, speeds, lockstep, count_multiple)
        more, bound = ranks_of_mode.list_ways(batch, bundles, equal_samples=equal_samples)
        ways += more
    if len(by_mode) > 1:
        bound = _bound_modes_ms(by_mode, batch, speeds, lockstep=lockstep)
    best: MicroBatches = []
    best_ms = inf
    for way in ways:
        parts = pad_counts(way, count_multiple, lockstep=lockstep)
        if keep_together is None:
            fill_empty(parts, whole, across_ranks=not equal_samples, lockstep=lockstep)
        parts = speeds.at_ranks(parts)
        time_ms = MicroBatchTimes.from_parts(parts, pricing, speeds.factors, execution).total_ms()
        if time_ms < best_ms:
            best, best_ms = parts, time_ms
    if shapes is not None:
        tokens = [micro_batch.pad(length) for length in whole]
        ways_to_fill = list_filled(best, tokens, shapes, micro_batch.capacity)
        best, pricing = _choose_filled(ways_to_fill, pricing, speeds, execution)
        best_ms = MicroBatchTimes.from_parts(best, pricing, speeds.factors, execution).total_ms()
    return Balanced(
        best, tuple(whole), pricing, execution, best_ms, min(bound, best_ms), speeds.factors
    )


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


def _check_modes(
    capacity: int | None, cost: Latency | None, modes: Sequence[Mode] | None
) -> tuple[Mode, ...]:
    """Return the modes, one if ``capacity`` and ``cost`` state it; by ascending capacity."""
    if modes is None:
        if capacity is None and cost is None:
            raise TypeError(
                "capacity and cost are missing. Give both, such as capacity=16_384, "
                "cost=Cost.from_model(…), or modes"
            )
        if capacity is None:
            raise TypeError("capacity is missing. Give the tokens that a micro-batch can hold")
        # An error in one of them is reported with the micro-batch that it describes.
        return (Mode("", capacity, cast(Latency, cost)),)
    if capacity is not None or cost is not None:
        raise TypeError("capacity and cost are stated by each mode. Leave both out with modes")
    if not modes or not all(isinstance(mode, Mode) for mode in modes):
        raise TypeError(f"modes: {modes!r:.60}. Give a list of Mode(name, capacity, cost)")
    names = [mode.name for mode in modes]
    if len(set(names)) < len(names):
        raise ValueError(f"modes: {', '.join(names)}. Name each once")
    return tuple(sorted(modes, key=lambda mode: mode.capacity))


def _bound_modes_ms(
    by_mode: Sequence[PipelineClass], batch: Batch, speeds: Slowdown, *, lockstep: bool
) -> float:
    """Bound every way to balance, whatever mode each micro-batch has (ms)."""
    if lockstep:
        fastest = [slow_down(mode, float(speeds.in_order[0]), 1) for mode in by_mode]
        fewest = fewest_micro_steps(fastest, batch, len(speeds.order))
        return micro_steps_bound_ms(fastest, batch, speeds.speed, fewest)
    if not speeds.differ:
        of_all = [slow_down(mode, float(speeds.in_order[0]), 1) for mode in by_mode]
        return gpu_time_bound_ms(of_all, batch, len(speeds.order))
    heaviest = by_mode[-1]
    modes = tuple(ClassMode(mode.a, mode.b, mode.c, mode.capacity) for mode in by_mode)
    return cheap_bound_ms(speeds.make_classes(replace(heaviest, modes=modes)), batch)


@dataclass(frozen=True)
class _Ranks:
    """Ranks that run one mode, the fastest first; sequences are assigned to them."""

    micro_batch: PipelineClass
    speeds: Slowdown
    lockstep: bool
    multiple: int

    def list_ways(
        self, batch: Batch, bundles: Sequence[Bundle] | None, *, equal_samples: bool
    ) -> tuple[list[MicroBatches], float]:
        """Plan in some ways, of which one is best, and bound all (ms)."""
        classes = self.speeds.make_classes(self.micro_batch)
        ranks = len(self.speeds.order)
        sequences = Sequences(batch.distinct, batch.multiplicity)
        if bundles is not None:
            parts = self._plan_bundles(classes, bundles, equal_samples=equal_samples)
            if not self.lockstep:
                return [parts], cheap_bound_ms(classes, batch)
            # More micro-steps cost more, so that the fewest are the least of all.
            fewest = fewest_of_one_degree(classes[0], sequences, ranks)
            speed = self.speeds.speed
            return [parts], one_degree_bound_ms(classes[0], sequences, ranks, fewest, speed=speed)
        if not self.lockstep:
            placements, bound = plan_free(classes, batch, self.multiple)
            return [_positions(placement, batch) for placement in placements], bound
        if len(classes) == 1:
            micro_steps, bound = plan_one_degree(classes[0], sequences, ranks, self.multiple)
        else:
            micro_steps, bound = plan_rank_speeds(
                classes, self.speeds.speed, sequences, self.multiple
            )
        return [_positions(_by_rank(micro_steps, classes), batch)], bound

    def _plan_bundles(
        self, classes: Sequence[PipelineClass], bundles: Sequence[Bundle], *, equal_samples: bool
    ) -> MicroBatches:
        if len(classes) > 1:
            if equal_samples:
                raise ValueError(
                    "equal_samples with different factors of slowdown: equally many sequences do "
                    "not leave slower ranks less. Leave one of them out"
                )
            factors, lockstep = self.speeds.in_order, self.lockstep
            return plan_uneven_bundles(
                self.micro_batch, bundles, factors, lockstep=lockstep, multiple=self.multiple
            )
        plan = plan_equal_samples if equal_samples else plan_bundles
        ranks = classes[0].count
        return plan(classes[0], bundles, ranks, lockstep=self.lockstep, multiple=self.multiple)


def host_micro_batch(cost: Latency, capacity: int, pad_to: int) -> PipelineClass:
    """Describe a micro-batch of a rank; ``ValueError`` if it holds nothing."""
    if not isinstance(cost, Latency):
        raise TypeError(f"cost: {cost!r}. Give a Cost, such as Cost.from_model(…)")
    capacity, pad_to = read_whole_number("capacity", capacity), read_whole_number("pad_to", pad_to)
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


def hold_at_most(micro_batch: PipelineClass, tokens: int) -> PipelineClass:
    """Return a micro-batch that holds no more than so many tokens."""
    most = tokens - tokens % micro_batch.unit
    return replace(micro_batch, capacity=min(micro_batch.capacity, most))


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


def _by_rank(micro_steps: FilledMicroSteps, classes: Sequence[PipelineClass]) -> list[list[Bin]]:
    """Return each rank's micro-batch in every micro-step, empty if it has none.

    The ranks of each class come after those of the classes before it.
    """
    first = [sum(k.count for k in classes[:place]) for place in range(len(classes))]
    by_rank: list[list[Bin]] = [[] for _ in range(sum(k.count for k in classes))]
    for groups in micro_steps.bins():
        free = list(first)
        of_step: dict[int, Bin] = {}
        for k, micro in groups:
            of_step[free[k]] = micro
            free[k] += 1
        for rank, micro_batches in enumerate(by_rank):
            micro_batches.append(of_step.get(rank, []))
    return by_rank


def _positions(by_rank: Iterable[Sequence[Bin]], batch: Batch) -> MicroBatches:
    """Deal positions of equal lengths to micro-batches, which only count them."""
    pools = [iter(positions) for positions in batch.positions]
    return [
        [[next(pools[i]) for i, n in micro for _ in range(n)] for micro in of_rank]
        for of_rank in by_rank
    ]
