"""Exchanges of sequences between micro-batches that shorten the slowest pipeline.

If sequences are few, a swap of two levels pipelines that a fill leaves apart. With stages a
pipeline takes what its micro-batches take in 1F1B, in their order: small ones at both ends fill and
drain it sooner. With recomputation modes one sequence can change the mode of a micro-batch. A fill
foresees none of this: exchanges are drawn at random, and made where their exact costs shorten the
step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.bubbles import longest_path_ms
from seqplan.planner.placement.draws import Draws
from seqplan.planner.placement.fill import Filling, FillStarter, PackedPlacement
from seqplan.planner.placement.fill_tables import ClassCosts, FillTables
from seqplan.planner.placement.fleet import ClassPlacement, Fleet, PipelineBins
from seqplan.planner.placement.ordered_times import put_in_order, time_filling
from seqplan.planner.simulation.one_f_one_b import simulate_ms

DRAWN, FRUITLESS = 20_000, 5_000
"""Exchanges drawn at most, and at most in a row of which none is made. Three times as many draws
shorten steps of 32B and 70B on 16 and 64 GPUs by another 0.03 to 0.06 %."""

STAGED_DRAWN, STAGED_FRUITLESS = 120_000, 20_000
"""The same with stages, where half as many draws leave steps of 32B and 70B 0.13 % longer."""

PIPELINES, MOST_SHARES = 32, 8
"""Of more pipelines with stages proportionally more exchanges are drawn, up to so many times: on
8,192 GPUs steps of 32B and 70B are 0.7 % shorter by them."""

MOST_PASSES = 40_000_000
"""Passes that are simulated at most, by the pipeline with most of them: of many micro-batches each
draw takes longer, and filling and draining are a smaller part of the time."""

FROM_SLOWEST = 0.7
"""Share of draws that take a sequence of the slowest pipeline; the others make room in any."""

ROUGHLY = 0.15
"""Share of a plan's exchanges after which placements are compared, and of those that level one."""

EVEN = 0.98
"""GPUs busy for this share of the step are level enough."""

WITHIN = 0.6
"""Share of draws that stay within a pipeline with stages: else, of many pipelines few draws would.
On 64 to 8,192 GPUs steps of 32B and 70B are 0.2 % shorter on average, up to 1 %."""

MOVES, SWAPS = 0.4, 0.9
"""Draws up to the first share move a sequence, up to the second swap two, the rest swap one for
two."""

PLACES = 0.2
"""Share of a pipeline's draws with stages that swap the places of two micro-batches."""

_GAIN = 1e-9


def exchange_sequences(
    fleet: Fleet, batch: Batch, filling: Filling, lower_ms: float, *, effort: float = 1.0
) -> Filling:
    """Make the slowest pipeline no slower, on the same strategy; ends at ``lower_ms``.

    With stages, the times of the filling are estimates, and those of the result are of the 1F1B
    simulation of the micro-batches in order. ``effort``: the share of the exchanges that are drawn,
    each in O(passes of a pipeline). Equal arguments give equal results, in Python and compiled
    (``exchange.c``).
    """
    ordered, exchanged = _exchange(fleet, batch, filling, lower_ms, effort, FROM_SLOWEST)
    return exchanged if exchanged.objective_ms < ordered.objective_ms else ordered


def level_pipelines(fleet: Fleet, batch: Batch, filling: Filling) -> Filling:
    """Even the times of pipelines; the slowest is no slower.

    By exchanges between any two, of which the later one ends sooner. Unchanged if all GPUs are busy
    for ``EVEN`` of the time.
    """
    sizes = [pipeline_class.gpus for pipeline_class in fleet.classes]
    busy = sum(size * sum(times) for size, times in zip(sizes, filling.pipeline_ms, strict=True))
    if busy > EVEN * filling.objective_ms * fleet.strategy.gpus:
        return filling
    _, leveled = _exchange(fleet, batch, filling, 0.0, ROUGHLY, 0.0)
    return leveled if leveled.objective_ms <= filling.objective_ms else filling


def _exchange(
    fleet: Fleet,
    batch: Batch,
    filling: Filling,
    lower_ms: float,
    effort: float,
    from_slowest: float,
) -> tuple[Filling, Filling]:
    """Put micro-batches in order, and exchange sequences: return both."""
    tables = FillTables.from_batch(batch)
    costs = [tables.find_costs(pipeline_class) for pipeline_class in fleet.classes]
    filling = put_in_order(costs, filling)
    compiled = FillStarter(tables, fleet.classes).compiled
    exchange = _exchange_compiled if compiled else _exchange_in_python
    exchanged = exchange(costs, filling, lower_ms, effort, from_slowest)
    return filling, filling if exchanged is None else time_filling(costs, exchanged)


def _exchange_compiled(
    costs: Sequence[ClassCosts],
    filling: Filling,
    lower_ms: float,
    effort: float = 1.0,
    from_slowest: float = FROM_SLOWEST,
) -> tuple[ClassPlacement, ...] | None:
    from seqplan.planner.placement import fill_kernel

    placements = [PackedPlacement.pack(placement) for placement in filling.placements]
    classes = [
        (
            of_class.compiled,
            placement.packed,
            placement.count,
            tuple(mode.forward_fraction for mode in of_class.modes),
        )
        for of_class, placement in zip(costs, placements, strict=True)
    ]
    shares = (from_slowest, WITHIN, MOVES, SWAPS, PLACES, 1 - _GAIN)
    exchanged = fill_kernel.exchange(
        tuple(classes), lower_ms, *_count_draws(costs, filling, effort), *shares
    )
    if exchanged is None:
        return None
    return tuple(
        PackedPlacement(packed, placement.count).unpack()
        for packed, placement in zip(exchanged, placements, strict=True)
    )


def _exchange_in_python(
    costs: Sequence[ClassCosts],
    filling: Filling,
    lower_ms: float,
    effort: float = 1.0,
    from_slowest: float = FROM_SLOWEST,
) -> tuple[ClassPlacement, ...] | None:
    """Return the placements after all exchanges; None if none was made."""
    pipelines: list[_Pipeline] = []
    for of_class, placement in zip(costs, filling.bins, strict=True):
        pipelines += _read_pipelines(of_class, placement)
    if not _improve(pipelines, lower_ms, *_count_draws(costs, filling, effort), from_slowest):
        return None
    remaining = iter(pipelines)
    return tuple(
        tuple(next(remaining).list_bins() for _ in placement) for placement in filling.bins
    )


def _read_pipelines(costs: ClassCosts, placement: ClassPlacement) -> list[_Pipeline]:
    work, padded = costs.work_ms.T.tolist(), costs.padded_lengths.tolist()
    return [_Pipeline(costs, work, padded, bins) for bins in placement]


_Weight = tuple[int, tuple[float, ...], float, float]


@dataclass(frozen=True, slots=True)
class _MicroBatch:
    """Indices of its sequences' lengths, padded tokens, work in each mode and cost (ms).

    ``share``: forward's share of the cost, in the mode of that cost.
    """

    sequences: tuple[int, ...]
    tokens: int
    work_ms: tuple[float, ...]
    cost_ms: float
    share: float


class _Pipeline:
    """A pipeline's micro-batches in order, and its time (ms).

    ``work`` (n, modes) in ms and ``padded`` (n,) in tokens: of each length, shared by a class.
    """

    def __init__(
        self, costs: ClassCosts, work: list[list[float]], padded: list[int], bins: PipelineBins
    ) -> None:
        self.pp = costs.pp
        self._work, self._padded = work, padded
        self._limits = [(mode.capacity, mode.c, mode.forward_fraction) for mode in costs.modes]
        self.empty = _MicroBatch((), 0, (0.0,) * len(costs.modes), 0.0, 0.0)
        self.micro_batches: list[_MicroBatch] = []
        self.costs_ms: list[float] = []
        """Costs of the micro-batches, in their order."""
        self.shares: list[float] = []
        """Forward's shares of them."""
        self._set([self._fill(micro) for micro in bins])

    def weigh(
        self, micro: _MicroBatch, outgoing: Sequence[int], incoming: Sequence[int]
    ) -> _Weight | None:
        """Return tokens, work, cost and forward's share of the micro-batch after an exchange.

        None if no mode holds it.
        """
        padded, of_length = self._padded, self._work
        tokens, work = micro.tokens, micro.work_ms
        for i in incoming:
            tokens += padded[i]
        for i in outgoing:
            tokens -= padded[i]
        if tokens > self._limits[-1][0]:
            return None
        if len(micro.sequences) + len(incoming) == len(outgoing):
            return 0, self.empty.work_ms, 0.0, 0.0
        for i in outgoing:
            work = tuple([ms - less for ms, less in zip(work, of_length[i], strict=True)])
        for i in incoming:
            work = tuple([ms + more for ms, more in zip(work, of_length[i], strict=True)])
        cost_ms, share = inf, 0.0
        for ms, (capacity, c, of_mode) in zip(work, self._limits, strict=True):
            if tokens <= capacity and ms + c < cost_ms:
                cost_ms, share = ms + c, of_mode
        return tokens, work, cost_ms, share

    def compute_time_ms(self, weights: Mapping[int, _Weight], limit_ms: float = inf) -> float:
        """Compute the time after micro-batches get these weights, by index (ms).

        One may be new: that before the first, of index −1, or that after the last. The sum of all
        costs, or of a path, suffices if it reaches ``limit_ms``.
        """
        total = self._total_ms
        for index, (_, _, cost_ms, _) in weights.items():
            within = 0 <= index < len(self.costs_ms)
            total = total - (self.costs_ms[index] if within else 0.0) + cost_ms
        if self.pp == 1 or total >= limit_ms:
            return total
        # Those of no cost are empty.
        costs_ms, shares = [0.0, *self.costs_ms, 0.0], [0.0, *self.shares, 0.0]
        for index, (_, _, cost_ms, share) in weights.items():
            costs_ms[index + 1], shares[index + 1] = cost_ms, share
        used = [place for place, cost_ms in enumerate(costs_ms) if cost_ms]
        return self._simulate_ms([costs_ms[k] for k in used], [shares[k] for k in used], limit_ms)

    def _simulate_ms(
        self, costs_ms: Sequence[float], shares: Sequence[float], limit_ms: float
    ) -> float:
        """Simulate micro-batches (ms), unless one path through them reaches ``limit_ms``."""
        path_ms = longest_path_ms(costs_ms, self.pp, shares) if limit_ms < inf else 0.0
        return path_ms if path_ms >= limit_ms else simulate_ms(costs_ms, self.pp, shares)

    def change(self, changed: Mapping[int, _MicroBatch]) -> None:
        """Replace micro-batches by index, new ones as in ``compute_time_ms``; drop empty ones."""
        micro_batches = [self.empty, *self.micro_batches, self.empty]
        for index, micro in changed.items():
            micro_batches[index + 1] = micro
        self._set(micro_batches)

    def swap_places(self, draw: Callable[[], float]) -> bool:
        """Draw two micro-batches and swap their places if it pays; whether it did."""
        i, j = (int(draw() * len(self.micro_batches)) for _ in range(2))
        places = list(range(len(self.micro_batches)))
        places[i], places[j] = j, i
        costs_ms, shares = [self.costs_ms[k] for k in places], [self.shares[k] for k in places]
        limit_ms = self.time_ms * (1 - _GAIN)
        if self._simulate_ms(costs_ms, shares, limit_ms) >= limit_ms:
            return False
        self._set([self.micro_batches[k] for k in places])
        return True

    def _set(self, micro_batches: Sequence[_MicroBatch]) -> None:
        self.micro_batches = [micro for micro in micro_batches if micro.sequences]
        self.costs_ms = [micro.cost_ms for micro in self.micro_batches]
        self.shares = [micro.share for micro in self.micro_batches]
        # Not sum(), as in estimate_ms.
        self._total_ms = 0.0
        for cost_ms in self.costs_ms:
            self._total_ms += cost_ms
        self.time_ms = self.compute_time_ms({})

    def _fill(self, counts: Sequence[tuple[int, int]]) -> _MicroBatch:
        sequences = [i for i, n in counts for _ in range(n)]
        weight = self.weigh(self.empty, (), sequences)
        assert weight is not None  # as a fill has made it
        return _MicroBatch(tuple(sequences), *weight)

    def list_bins(self) -> PipelineBins:
        """List the micro-batches as a filling has them."""
        return tuple(sorted(Counter(micro.sequences).items()) for micro in self.micro_batches)


def _count_draws(costs: Sequence[ClassCosts], filling: Filling, effort: float) -> tuple[int, int]:
    """Return the most exchanges drawn, and the most in a row without success."""
    passes = [
        2 * of_class.pp * len(pipeline)
        for of_class, pipelines in zip(costs, filling.bins, strict=True)
        if of_class.pp > 1
        for pipeline in pipelines
    ]
    if not passes:
        return int(DRAWN * effort), FRUITLESS
    effort *= min(max(len(passes) / PIPELINES, 1.0), MOST_SHARES)
    drawn = min(STAGED_DRAWN, MOST_PASSES // max(*passes, 1))
    return int(drawn * effort), int(STAGED_FRUITLESS * effort)


def _improve(
    pipelines: Sequence[_Pipeline],
    lower_ms: float,
    drawn: int,
    most_fruitless: int,
    from_slowest: float,
) -> bool:
    """Draw exchanges, and make those after which both pipelines end before the later one did.

    Returns whether one was made.
    """
    draw = Draws()
    fruitless, shortened = 0, False
    slowest = max(pipelines, key=attrgetter("time_ms"))
    for _ in range(drawn):
        if slowest.time_ms <= lower_ms or fruitless == most_fruitless:
            break
        first = slowest if draw() < from_slowest else pipelines[int(draw() * len(pipelines))]
        within = first.pp > 1 and draw() < WITHIN
        second = first if within else pipelines[int(draw() * len(pipelines))]
        fruitless += 1
        if first.micro_batches and _try_exchange(first, second, draw):
            fruitless, shortened = 0, True
            slowest = max(pipelines, key=attrgetter("time_ms"))
    return shortened


def _try_exchange(first: _Pipeline, second: _Pipeline, draw: Callable[[], float]) -> bool:
    """Draw two micro-batches and what they exchange, and make it if it pays; whether it did."""
    if first.pp > 1 and draw() < PLACES:
        return first.swap_places(draw)
    i = int(draw() * len(first.micro_batches))
    # The last is a new one, with stages also the first, which fills them.
    fills = second.pp > 1
    j = int(draw() * (len(second.micro_batches) + 1 + fills)) - fills
    if first is second and i == j:
        return False
    giving = first.micro_batches[i]
    taking = second.micro_batches[j] if 0 <= j < len(second.micro_batches) else second.empty
    given = [giving.sequences[int(draw() * len(giving.sequences))]]
    returned = _draw_returned(taking.sequences, draw)
    limit = max(first.time_ms, second.time_ms) * (1 - _GAIN)
    of_giving = first.weigh(giving, given, returned)
    if of_giving is None:
        return False
    # As most draws end here, the other micro-batch is weighed afterwards.
    if first is not second and first.compute_time_ms({i: of_giving}, limit) >= limit:
        return False
    of_taking = second.weigh(taking, returned, given)
    if of_taking is None:
        return False
    of_second = {i: of_giving, j: of_taking} if first is second else {j: of_taking}
    if second.compute_time_ms(of_second, limit) >= limit:
        return False
    changed = {i: _replace(giving, given, returned, of_giving)}
    of_other = {j: _replace(taking, returned, given, of_taking)}
    if first is second:
        first.change(changed | of_other)
    else:
        first.change(changed)
        second.change(of_other)
    return True


def _replace(
    micro: _MicroBatch, outgoing: Sequence[int], incoming: Sequence[int], weight: _Weight
) -> _MicroBatch:
    sequences = list(micro.sequences)
    for i in outgoing:
        sequences.remove(i)
    return _MicroBatch((*sequences, *incoming), *weight)


def _draw_returned(sequences: Sequence[int], draw: Callable[[], float]) -> list[int]:
    """Draw what comes back for the sequence that is given: nothing, one or two."""
    kind = draw()
    if kind < MOVES or not sequences:
        return []
    one = int(draw() * len(sequences))
    if kind < SWAPS or len(sequences) == 1:
        return [sequences[one]]
    other = (one + 1 + int(draw() * (len(sequences) - 1))) % len(sequences)
    return [sequences[one], sequences[other]]
