"""Exchanges of sequences between micro-batches that shorten the slowest pipeline, with stages too.

With stages a pipeline's time is also that of its largest micro-batch, and with recomputation modes
one sequence can change the mode of a micro-batch. A fill foresees neither: exchanges are drawn at
random, and made where their exact costs shorten the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from operator import attrgetter
from random import Random

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fill import Filling
from seqplan.planner.placement.fill_tables import ClassCosts, FillTables
from seqplan.planner.placement.fleet import Fleet, PipelineBins

DRAWN, FRUITLESS = 20_000, 5_000
"""Exchanges drawn at most, and at most in a row of which none is made. Three times as many draws
shorten steps of 32B and 70B on 16 and 64 GPUs by another 0.03 to 0.06 %."""

FROM_SLOWEST = 0.7
"""Share of draws that take a sequence of the slowest pipeline; the others make room in any."""

MOVES, SWAPS = 0.4, 0.9
"""Draws up to the first share move a sequence, up to the second swap two, the rest swap one for
two."""

_GAIN = 1e-9


def exchange_sequences(fleet: Fleet, batch: Batch, filling: Filling, lower_ms: float) -> Filling:
    """Make the slowest pipeline no slower, on the same strategy; ends at ``lower_ms``.

    Unchanged without stages, where the sums of a pipeline are its time. Equal arguments give equal
    results. Complexity: O(micro-batches of a pipeline) for each of at most ``DRAWN`` draws.
    """
    if all(pipeline_class.pp == 1 for pipeline_class in fleet.classes):
        return filling
    tables = FillTables.from_batch(batch)
    pipelines: list[_Pipeline] = []
    for pipeline_class, of_class in zip(fleet.classes, filling.bins, strict=True):
        costs = tables.find_costs(pipeline_class)
        work, padded = costs.work_ms.T.tolist(), costs.padded_lengths.tolist()
        pipelines += [_Pipeline(costs, work, padded, bins) for bins in of_class]
    _improve(pipelines, lower_ms)
    if max(pipeline.time_ms for pipeline in pipelines) >= filling.objective_ms:
        return filling
    remaining = iter(pipelines)
    of_classes = [[next(remaining) for _ in bins] for bins in filling.bins]
    return Filling(
        tuple(tuple(pipeline.list_bins() for pipeline in of_class) for of_class in of_classes),
        tuple(tuple(pipeline.time_ms for pipeline in of_class) for of_class in of_classes),
    )


_Weight = tuple[int, tuple[float, ...], float]


@dataclass(frozen=True, slots=True)
class _MicroBatch:
    """Indices of its sequences' lengths, padded tokens, work in each mode and cost (ms)."""

    sequences: tuple[int, ...]
    tokens: int
    work_ms: tuple[float, ...]
    cost_ms: float


class _Pipeline:
    """A pipeline's micro-batches and form S (ms).

    ``work`` (n, modes) in ms and ``padded`` (n,) in tokens: of each length, shared by a class.
    """

    def __init__(
        self, costs: ClassCosts, work: list[list[float]], padded: list[int], bins: PipelineBins
    ) -> None:
        self._bubbles = costs.pp - 1
        self._work, self._padded = work, padded
        self._limits = [(mode.capacity, mode.c) for mode in costs.modes]
        self.empty = _MicroBatch((), 0, (0.0,) * len(costs.modes), 0.0)
        self.micro_batches: list[_MicroBatch] = []
        self.costs_ms: list[float] = []
        """Costs of the micro-batches, in their order."""
        self._set([self._fill(micro) for micro in bins])
        self.time_ms = self.compute_time_ms(self.costs_ms)

    def weigh(
        self, micro: _MicroBatch, outgoing: Sequence[int], incoming: Sequence[int]
    ) -> _Weight | None:
        """Return tokens, work and cost of the micro-batch after an exchange.

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
            return 0, self.empty.work_ms, 0.0
        for i in outgoing:
            work = tuple([ms - less for ms, less in zip(work, of_length[i], strict=True)])
        for i in incoming:
            work = tuple([ms + more for ms, more in zip(work, of_length[i], strict=True)])
        limits = zip(work, self._limits, strict=True)
        return tokens, work, min([ms + c for ms, (capacity, c) in limits if tokens <= capacity])

    def compute_time_ms(self, costs_ms: Sequence[float]) -> float:
        """Compute form S of micro-batches of these costs (ms)."""
        return fsum(costs_ms) + self._bubbles * max(costs_ms, default=0.0)

    def change(self, changed: Mapping[int, _MicroBatch], time_ms: float) -> None:
        """Replace micro-batches by index, one beyond the last is new; drop empty ones."""
        micro_batches = [*self.micro_batches, self.empty]
        for index, micro in changed.items():
            micro_batches[index] = micro
        self._set(micro_batches)
        self.time_ms = time_ms

    def _set(self, micro_batches: Sequence[_MicroBatch]) -> None:
        self.micro_batches = [micro for micro in micro_batches if micro.sequences]
        self.costs_ms = [micro.cost_ms for micro in self.micro_batches]

    def _fill(self, counts: Sequence[tuple[int, int]]) -> _MicroBatch:
        sequences = [i for i, n in counts for _ in range(n)]
        weight = self.weigh(self.empty, (), sequences)
        assert weight is not None  # as a fill has made it
        return _MicroBatch(tuple(sequences), *weight)

    def list_bins(self) -> PipelineBins:
        """List the micro-batches as a filling has them."""
        return tuple(sorted(Counter(micro.sequences).items()) for micro in self.micro_batches)


def _improve(pipelines: Sequence[_Pipeline], lower_ms: float) -> None:
    """Draw exchanges, and make those after which both pipelines end before the first did."""
    draw = Random(0).random
    fruitless = 0
    slowest = max(pipelines, key=attrgetter("time_ms"))
    for _ in range(DRAWN):
        if slowest.time_ms <= lower_ms or fruitless == FRUITLESS:
            return
        first = slowest if draw() < FROM_SLOWEST else pipelines[int(draw() * len(pipelines))]
        second = pipelines[int(draw() * len(pipelines))]
        fruitless += 1
        if first.micro_batches and _exchange(first, second, draw):
            fruitless = 0
            slowest = max(pipelines, key=attrgetter("time_ms"))


def _exchange(first: _Pipeline, second: _Pipeline, draw: Callable[[], float]) -> bool:
    """Draw two micro-batches and what they exchange, and make it if it pays; whether it did."""
    i = int(draw() * len(first.micro_batches))
    j = int(draw() * (len(second.micro_batches) + 1))  # the last is a new one
    if first is second and i == j:
        return False
    giving = first.micro_batches[i]
    taking = second.micro_batches[j] if j < len(second.micro_batches) else second.empty
    given = [giving.sequences[int(draw() * len(giving.sequences))]]
    returned = _draw_returned(taking.sequences, draw)
    limit = first.time_ms * (1 - _GAIN)
    of_giving = first.weigh(giving, given, returned)
    if of_giving is None:
        return False
    costs = first.costs_ms.copy()
    costs[i] = of_giving[2]
    time = 0.0 if first is second else first.compute_time_ms(costs)
    if time >= limit:  # as most draws, so before the other pipeline is computed
        return False
    of_taking = second.weigh(taking, returned, given)
    if of_taking is None:
        return False
    of_second = costs if first is second else second.costs_ms.copy()
    of_second[j : j + 1] = [of_taking[2]]
    other_time = second.compute_time_ms(of_second)
    if other_time >= limit:
        return False
    changed = {i: _replace(giving, given, returned, of_giving)}
    of_other = {j: _replace(taking, returned, given, of_taking)}
    if first is second:
        first.change(changed | of_other, other_time)
    else:
        first.change(changed, time)
        second.change(of_other, other_time)
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
