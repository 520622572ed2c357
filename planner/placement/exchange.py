"""Exchanges of sequences between micro-batches that shorten the slowest pipeline, with stages too.

With stages a pipeline's time is also that of its largest micro-batch, and with recomputation modes
one sequence can change the mode of a micro-batch. A fill foresees neither: exchanges are drawn at
random, and made where their exact costs shorten the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fill import Filling, FillStarter, PackedPlacement
from seqplan.planner.placement.fill_tables import ClassCosts, FillTables
from seqplan.planner.placement.fleet import ClassPlacement, Fleet, PipelineBins
from seqplan.planner.placement.greedy import form_s

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

    Unchanged without stages and modes, where the sums of a pipeline are its time. Equal arguments
    give equal results, in Python and compiled (``exchange.c``). Complexity: O(micro-batches of a
    pipeline) for each of at most ``DRAWN`` draws.
    """
    if all(of_class.pp == 1 and not of_class.modes for of_class in fleet.classes):
        return filling
    tables = FillTables.from_batch(batch)
    costs = [tables.find_costs(pipeline_class) for pipeline_class in fleet.classes]
    compiled = FillStarter(tables, fleet.classes).compiled
    exchanged = (_exchange_compiled if compiled else _exchange_in_python)(costs, filling, lower_ms)
    if exchanged is None:
        return filling
    times = tuple(
        tuple(form_s(of_class, bins) for bins in pipelines)
        for of_class, pipelines in zip(costs, exchanged, strict=True)
    )
    shorter = Filling(exchanged, times)
    return shorter if shorter.objective_ms < filling.objective_ms else filling


def _exchange_compiled(
    costs: Sequence[ClassCosts], filling: Filling, lower_ms: float
) -> tuple[ClassPlacement, ...] | None:
    from seqplan.planner.placement import fill_kernel

    placements = [PackedPlacement.pack(placement) for placement in filling.placements]
    classes = [
        (of_class.compiled, placement.packed, placement.count)
        for of_class, placement in zip(costs, placements, strict=True)
    ]
    shares = (FROM_SLOWEST, MOVES, SWAPS, 1 - _GAIN)
    exchanged = fill_kernel.exchange(tuple(classes), lower_ms, DRAWN, FRUITLESS, *shares)
    if exchanged is None:
        return None
    return tuple(
        PackedPlacement(packed, placement.count).unpack()
        for packed, placement in zip(exchanged, placements, strict=True)
    )


def _exchange_in_python(
    costs: Sequence[ClassCosts], filling: Filling, lower_ms: float
) -> tuple[ClassPlacement, ...] | None:
    """Return the placements after all exchanges; None if none was made."""
    pipelines: list[_Pipeline] = []
    for of_class, placement in zip(costs, filling.bins, strict=True):
        work, padded = of_class.work_ms.T.tolist(), of_class.padded_lengths.tolist()
        pipelines += [_Pipeline(of_class, work, padded, pipeline) for pipeline in placement]
    if not _improve(pipelines, lower_ms):
        return None
    remaining = iter(pipelines)
    return tuple(
        tuple(next(remaining).list_bins() for _ in placement) for placement in filling.bins
    )


class Draws:
    """Draws numbers in [0, 1) by xorshift64* (Vigna, 2014), whose bits C has as well."""

    def __init__(self) -> None:
        self.state = 0x9E3779B97F4A7C15

    def __call__(self) -> float:
        state = self.state
        state ^= state >> 12
        state ^= state << 25 & _BITS
        state ^= state >> 27
        self.state = state
        return float((state * 0x2545F4914F6CDD1D & _BITS) >> 11) * 2.0**-53


_BITS = 2**64 - 1

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
        self.bubbles = costs.pp - 1
        self._work, self._padded = work, padded
        self._limits = [(mode.capacity, mode.c) for mode in costs.modes]
        self.empty = _MicroBatch((), 0, (0.0,) * len(costs.modes), 0.0)
        self.micro_batches: list[_MicroBatch] = []
        self.costs_ms: list[float] = []
        """Costs of the micro-batches, in their order."""
        self._set([self._fill(micro) for micro in bins])

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

    def compute_time_ms(self, costs_ms: Mapping[int, float]) -> float:
        """Compute form S after micro-batches get these costs, by index; one may be new (ms)."""
        changed = [*self.costs_ms, 0.0]
        total = self._total_ms
        for index, cost_ms in costs_ms.items():
            total = total - changed[index] + cost_ms
            changed[index] = cost_ms
        return total + self.bubbles * max(changed)

    def change(self, changed: Mapping[int, _MicroBatch]) -> None:
        """Replace micro-batches by index, one beyond the last is new; drop empty ones."""
        micro_batches = [*self.micro_batches, self.empty]
        for index, micro in changed.items():
            micro_batches[index] = micro
        self._set(micro_batches)

    def _set(self, micro_batches: Sequence[_MicroBatch]) -> None:
        self.micro_batches = [micro for micro in micro_batches if micro.sequences]
        self.costs_ms = [micro.cost_ms for micro in self.micro_batches]
        # Not sum(), as in form_s.
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


def _improve(pipelines: Sequence[_Pipeline], lower_ms: float) -> bool:
    """Draw exchanges, and make those after which both pipelines end before the first did.

    Returns whether one was made.
    """
    draw = Draws()
    fruitless, shortened = 0, False
    slowest = max(pipelines, key=attrgetter("time_ms"))
    for _ in range(DRAWN):
        if slowest.time_ms <= lower_ms or fruitless == FRUITLESS:
            break
        first = slowest if draw() < FROM_SLOWEST else pipelines[int(draw() * len(pipelines))]
        second = pipelines[int(draw() * len(pipelines))]
        fruitless += 1
        if first.micro_batches and _exchange(first, second, draw):
            fruitless, shortened = 0, True
            slowest = max(pipelines, key=attrgetter("time_ms"))
    return shortened


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
    # As most draws end here, the other micro-batch is weighed afterwards.
    if first is not second and first.compute_time_ms({i: of_giving[2]}) >= limit:
        return False
    of_taking = second.weigh(taking, returned, given)
    if of_taking is None:
        return False
    of_second = {j: of_taking[2]}
    if second.compute_time_ms({i: of_giving[2]} | of_second if first is second else of_second) >= (
        limit
    ):
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
