"""Packings of pipelines with stages by their simulated times.

The exact model counts the least bubbles of a packing, which no order may reach: of two packings
that it takes for equal, one can end later. A pipeline of few sequences has few packings. So each is
simulated whose least time is below the best known one, with its micro-batches in several orders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.exchange import exchange_sequences
from seqplan.planner.placement.fill import Filling
from seqplan.planner.placement.fill_tables import FillTables
from seqplan.planner.placement.fleet import MOST, Fleet, PipelineBins, PipelineClass
from seqplan.planner.placement.ordered_times import put_in_order, time_filling
from seqplan.planner.placement.pack import MOST_IMPROVED, list_packings
from seqplan.planner.placement.ramps import Ramps
from seqplan.planner.simulation.one_f_one_b import order_micro_batches, simulate_ms

MOST_SEQUENCES = 12
"""Sequences of a pipeline whose packings are all tried, as far as the two limits below allow. Of
more sequences, one packing of each number of micro-batches is."""

MOST_VISITED, MOST_SIMULATED = 50_000, 10_000
"""Partial packings of a pipeline that are tried at most, and orders: 0.1 to 0.5 s of CPU."""

MOST_PERMUTED = 5
"""Micro-batches of a packing that is simulated in all orders."""

LEAST_GAIN = 1e-9
"""The share of its time by which a pipeline has to end earlier."""


def improve_stages(fleet: Fleet, batch: Batch, filling: Filling, lower_ms: float) -> Filling:
    """Repack pipelines with stages, and exchange sequences; no slower, ends at ``lower_ms``."""
    repacked = repack_stages(fleet, batch, filling)
    exchanged = exchange_sequences(fleet, batch, repacked, lower_ms)
    return repack_stages(fleet, batch, exchanged)


def repack_stages(fleet: Fleet, batch: Batch, filling: Filling) -> Filling:
    """Repack each pipeline with stages so that it ends earliest; none ends later than before."""
    tables = FillTables.from_batch(batch)
    costs = [tables.find_costs(pipeline_class) for pipeline_class in fleet.classes]
    filling = put_in_order(costs, filling)
    placements = []
    for pipeline_class, pipelines, times_ms in zip(
        fleet.classes, filling.bins, filling.pipeline_ms, strict=True
    ):
        if pipeline_class.pp > 1:
            known: dict[tuple[int, ...], PipelineBins] = {}
            repacked = []
            for bins, time_ms in zip(pipelines, times_ms, strict=True):
                content = tuple(sorted(i for micro in bins for i, n in micro for _ in range(n)))
                if content and content not in known:
                    search = _Search(pipeline_class, batch.distinct.tolist(), content)
                    known[content] = search.find_best(bins, time_ms)
                repacked.append(known.get(content, bins))
            pipelines = tuple(repacked)
        placements.append(pipelines)
    timed = time_filling(costs, tuple(placements))
    return timed if timed.objective_ms < filling.objective_ms else filling


class _Search:
    """Packings of one pipeline's sequences, longest first, and the best of them so far."""

    def __init__(
        self, pipeline_class: PipelineClass, distinct: Sequence[int], content: Sequence[int]
    ) -> None:
        self._class = pipeline_class
        self._lengths = [distinct[i] for i in content]
        self._content = content
        self._padded = [pipeline_class.pad(length) for length in self._lengths]
        self._ramps = Ramps.from_forward(pipeline_class.pp, pipeline_class.forward_fraction)
        least_ms = [
            min(
                mode.work_ms(length) for mode in pipeline_class.all_modes if tokens <= mode.capacity
            )
            for length, tokens in zip(self._lengths, self._padded, strict=True)
        ]
        self._left_ms = [sum(least_ms[place:]) for place in range(len(least_ms) + 1)]
        self._visited = self._simulated = 0
        self._best: PipelineBins = ()
        self._best_ms = 0.0

    def find_best(self, bins: PipelineBins, time_ms: float) -> PipelineBins:
        """Return the best packing found, or the given one of this time (ms)."""
        self._best, self._best_ms = bins, time_ms
        if len(self._lengths) > MOST_IMPROVED:
            return bins
        for of_mode in self._class.by_mode:
            if max(self._padded) <= of_mode.capacity:
                for packed in list_packings(of_mode, self._lengths):
                    self._try(packed)
                    if self._left_ms[0] + len(packed) * self._class.least_c >= self._best_ms:
                        break
        if len(self._lengths) <= MOST_SEQUENCES:
            for packed in self._list_all([], [], 0, 0):
                self._try(packed)
        return self._best

    def _list_all(
        self, packed: list[list[int]], costs_ms: list[float], place: int, first: int
    ) -> Iterator[list[list[int]]]:
        """List the packings that begin so and may end before the best.

        Each is the same list, changed later. ``place``: the first sequence that is left, in the
        order of ``lengths``; ``first``: the first micro-batch that it may join.
        """
        self._visited += 1
        if max(self._visited / MOST_VISITED, self._simulated / MOST_SIMULATED) > 1:
            return
        slowest_ms = max(costs_ms, default=0.0)
        ends_ms = sum(costs_ms) + self._left_ms[place] + self._class.least_bubbles * slowest_ms
        if max(ends_ms, self._class.pp * slowest_ms) >= self._best_ms * (1 - LEAST_GAIN):
            return
        if place == len(self._lengths):
            yield packed
            return
        again = place + 1 < len(self._lengths) and self._content[place] == self._content[place + 1]
        for j in range(first, len(packed) + 1):
            if j == len(packed):
                packed.append([])
                costs_ms.append(0.0)
            packed[j].append(place)
            tokens = sum(self._padded[i] for i in packed[j])
            if tokens <= self._class.capacity:
                before, costs_ms[j] = costs_ms[j], self._weigh(packed[j])[0]
                yield from self._list_all(packed, costs_ms, place + 1, j if again else 0)
                costs_ms[j] = before
            packed[j].pop()
            if not packed[j]:
                packed.pop()
                costs_ms.pop()

    def _weigh(self, micro: Sequence[int]) -> tuple[float, float]:
        """Return the cost of a micro-batch (ms), and forward's share of it."""
        lengths = [self._lengths[i] for i in micro]
        mode = self._class.choose_mode(lengths)
        return mode.micro_batch_ms(lengths), mode.forward_fraction

    def _try(self, packed: Sequence[Sequence[int]]) -> None:
        """Simulate a packing in several orders, if it may end before the best."""
        weighed = [self._weigh(micro) for micro in packed]
        costs_ms, shares = [cost for cost, _ in weighed], [share for _, share in weighed]
        number, total_ms, slowest_ms = len(packed), sum(costs_ms), max(costs_ms)
        if number <= MOST:
            of_mean, of_largest = (of[number - 1] for of in self._class.bubbles_by_number)
            idle_ms = max(of_mean * total_ms / number, of_largest * slowest_ms)
            if total_ms + idle_ms >= self._best_ms * (1 - LEAST_GAIN):
                return
        for order in self._list_orders(weighed):
            self._simulated += 1
            ordered = [costs_ms[j] for j in order], [shares[j] for j in order]
            time_ms = simulate_ms(ordered[0], self._class.pp, ordered[1])
            if time_ms < self._best_ms * (1 - LEAST_GAIN):
                self._best_ms = time_ms
                self._best = tuple(
                    sorted(Counter(self._content[i] for i in packed[j]).items()) for j in order
                )

    def _list_orders(self, weighed: Sequence[tuple[float, float]]) -> Iterator[Sequence[int]]:
        """List orders of micro-batches, by their costs and shares; of equal ones the first."""
        if len(weighed) > MOST_PERMUTED:
            costs_ms = [cost for cost, _ in weighed]
            yield self._ramps.order(costs_ms)
            yield order_micro_batches(costs_ms, self._class.pp, [share for _, share in weighed])
            return
        seen = set()
        for order in permutations(range(len(weighed))):
            sizes = tuple(weighed[j] for j in order)
            if sizes not in seen:
                seen.add(sizes)
                yield order
