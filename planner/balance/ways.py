"""Ways to balance sequences over ranks, each in one mode, and a bound over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from seqplan.planner.balance.constrained import (
    Bundle,
    bundles_of,
    equalize_samples,
    list_positions,
    plan_bundles,
    plan_equal_samples,
    unbundle,
)
from seqplan.planner.balance.free import plan_free
from seqplan.planner.balance.micro_batch_counts import MicroBatches, pad_counts
from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import cheap_bound_ms, gpu_time_bound_ms
from seqplan.planner.lockstep.bounds.micro_step_bounds import (
    Sequences,
    fewest_micro_steps,
    fewest_of_one_degree,
    micro_steps_bound_ms,
    one_degree_bound_ms,
)
from seqplan.planner.lockstep.filling.filled_micro_steps import FilledMicroSteps
from seqplan.planner.lockstep.filling.one_degree import plan_one_degree
from seqplan.planner.placement.fleet import Bin, ClassMode, PipelineClass
from seqplan.planner.placement.slowdown import Slowdown, slow_down


def list_ways(
    by_mode: Sequence[PipelineClass],
    batch: Batch,
    speeds: Slowdown,
    keys: Sequence[object] | None,
    *,
    equal_samples: bool,
    lockstep: bool,
    multiple: int,
) -> tuple[list[MicroBatches], float]:
    """Plan a batch in each mode that holds it, and bound all ways (ms).

    ``by_mode``: the micro-batch of each mode, by ascending capacity; the last holds every sequence.
    ``keys``: those of sequences that stay together. ``ValueError`` if those of one key do not fit,
    or samples cannot be equally many.
    """
    ways: list[MicroBatches] = []
    bound = 0.0
    for of_mode in by_mode:
        if int(of_mode.padded(batch.distinct).max()) > of_mode.capacity:
            continue
        bundles = None
        if equal_samples or keys is not None:
            try:
                bundles = bundles_of(of_mode, batch.lengths, keys)
            except ValueError:
                if of_mode is by_mode[-1]:
                    raise
                continue  # those of one key need a mode that holds more
        ranks = _Ranks(of_mode, speeds, lockstep, multiple)
        more, bound = ranks.list_ways(batch, bundles, equal_samples=equal_samples)
        ways += more
    if len(by_mode) > 1:
        bound = _bound_modes_ms(by_mode, batch, speeds, lockstep=lockstep)
    return ways, bound


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
        if bundles is None:
            return self._list_by_length(classes, batch)
        if equal_samples:
            ways = self._plan_equal_samples(classes, bundles)
        else:
            ways = self._plan_bundles(classes, bundles)
        if not self.lockstep:
            return ways, cheap_bound_ms(classes, batch)
        # More micro-steps cost more, so that the fewest are the least of all.
        sequences = Sequences(batch.distinct, batch.multiplicity)
        fewest = fewest_of_one_degree(classes[0], sequences, len(self.speeds.order))
        speed = self.speeds.speed
        return ways, one_degree_bound_ms(
            classes[0], sequences, len(self.speeds.order), fewest, speed=speed
        )

    def _list_by_length(
        self, classes: Sequence[PipelineClass], batch: Batch
    ) -> tuple[list[MicroBatches], float]:
        if not self.lockstep:
            placements, bound = plan_free(classes, batch, self.multiple)
            return [_positions(placement, batch) for placement in placements], bound
        sequences = Sequences(batch.distinct, batch.multiplicity)
        uneven = self.speeds.speed if len(classes) > 1 else None
        micro_steps, bound = plan_one_degree(classes, sequences, self.multiple, speed=uneven)
        return [_positions(_by_rank(micro_steps, classes), batch)], bound

    def _plan_bundles(
        self, classes: Sequence[PipelineClass], bundles: Sequence[Bundle]
    ) -> list[MicroBatches]:
        """Plan bundles by their tokens and work, and as sequences of as many tokens."""
        tokens = [bundle.tokens for bundle in bundles]
        ways, _ = self._list_by_length(classes, Batch.from_lengths(tokens))
        ways.append(
            plan_bundles(
                self.micro_batch,
                bundles,
                self.speeds.in_order,
                lockstep=self.lockstep,
                multiple=self.multiple,
            )
        )
        return [
            unbundle(way, bundles, lockstep=self.lockstep, multiple=self.multiple) for way in ways
        ]

    def _plan_equal_samples(
        self, classes: Sequence[PipelineClass], bundles: Sequence[Bundle]
    ) -> list[MicroBatches]:
        """Plan equally many bundles for each rank; in lockstep also as if they were not."""
        if len(classes) > 1:
            raise ValueError(
                "equal_samples with different factors of slowdown: equally many sequences do "
                "not leave slower ranks less. Leave one of them out"
            )
        ways = [
            plan_equal_samples(
                classes[0],
                bundles,
                classes[0].count,
                lockstep=self.lockstep,
                multiple=self.multiple,
            )
        ]
        if self.lockstep:
            by_tokens = Batch.from_lengths([bundle.tokens for bundle in bundles])
            for way in self._list_by_length(classes, by_tokens)[0]:
                parts = pad_counts(way, self.multiple, lockstep=True)
                even = equalize_samples(parts, bundles, classes[0])
                if even is not None:
                    ways.append(list_positions(even, bundles))
        return ways


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
