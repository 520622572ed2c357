"""Exchanges of sequences off the slowest pipeline, at the exact costs of micro-batches.

A placement counts sequences by length. With work before the language model sequences of one length
differ: they move and swap between pipelines, which are then packed anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fleet import Floats, Ints, PipelineClass
from seqplan.planner.placement.greedy import pack_modes
from seqplan.plans.load import time_loads
from seqplan.plans.scheme import Scheme

MOST_CHANGES = 2_000
"""Exchanges at most; steps of 64 pipelines and 2,000 sequences need some 400."""

PARTNER_SEQUENCES = 256
"""Sequences, about, that the slowest pipeline may exchange: those of the fastest pipelines."""

VERIFIED = 8
"""Exchanges whose exact times are compared, the most promising first."""

CLOSED = 1e-3
"""Gap below which nothing more is exchanged."""

_GAIN = 1e-9
"""Least relative gain of an exchange."""

NOTHING = -1
"""Stands for no sequence in return."""

MicroBatches = list[list[int]]


def exchange_positions(
    classes: Sequence[PipelineClass],
    schemes: Sequence[Scheme],
    batch: Batch,
    micro_batches: Sequence[MicroBatches],
    bound_ms: float,
) -> tuple[list[MicroBatches], float]:
    """Exchange sequences until the slowest pipeline is no faster for it.

    ``classes`` and ``schemes``: of each pipeline, without stages; ``micro_batches``: by pipeline,
    positions in the batch. Returns them, and the time of the slowest pipeline (ms). Equal arguments
    give equal results.
    """
    state = _Pipelines(classes, schemes, batch, micro_batches)
    for _ in range(MOST_CHANGES):
        if state.times_ms.max() <= bound_ms * (1 + CLOSED) or not state.exchange():
            break
    return state.micro_batches, float(state.times_ms.max())


def list_whole_work_ms(classes: Sequence[PipelineClass], batch: Batch) -> Floats:
    """Compute the work of each sequence on each class in all phases, (classes, n).

    With its tokens' share of a micro-batch's overhead; infinite if a class does not hold it.
    """
    lengths: Ints = np.array(batch.lengths, dtype=np.int64)
    loads_ms = np.zeros(len(lengths))
    for load in batch.loads:
        loads_ms += np.array(load.work_ms)
    return np.stack(
        [
            np.where(
                k.padded(lengths) <= k.capacity,
                k.work_with_overhead_ms(lengths) + loads_ms * (k.slowdown / k.gpus),
                np.inf,
            )
            for k in classes
        ]
    )


class _Pipelines:
    """Micro-batches of pipelines, their tokens and times.

    ``work_ms`` and ``padded`` (pipelines, n): of each sequence on each pipeline, the work with that
    before the language model; ``owner`` (n,): its pipeline.
    """

    def __init__(
        self,
        classes: Sequence[PipelineClass],
        schemes: Sequence[Scheme],
        batch: Batch,
        micro_batches: Sequence[MicroBatches],
    ) -> None:
        self._classes, self._schemes, self._batch = classes, schemes, batch
        self.micro_batches = [
            fit_loads(k, scheme, batch, of)
            for k, scheme, of in zip(classes, schemes, micro_batches, strict=True)
        ]
        self._lengths: Ints = np.array(batch.lengths, dtype=np.int64)
        work_ms = {k: list_whole_work_ms([k], batch)[0] for k in dict.fromkeys(classes)}
        self._work_ms: Floats = np.stack([work_ms[k] for k in classes])
        self._owner: Ints = np.empty(len(batch.lengths), dtype=np.int64)
        for pipeline, of in enumerate(self.micro_batches):
            for micro in of:
                self._owner[micro] = pipeline
        self.times_ms: Floats = np.array([self._time(*of) for of in enumerate(self.micro_batches)])

    def _time(self, pipeline: int, micro_batches: MicroBatches) -> float:
        """Time a pipeline exactly (ms)."""
        k, scheme, batch = self._classes[pipeline], self._schemes[pipeline], self._batch
        time_ms = 0.0
        for micro in micro_batches:
            lengths = [batch.lengths[i] for i in micro]
            loads_ms = time_loads(batch.loads, scheme, micro)
            time_ms += k.choose_mode(lengths).micro_batch_ms(lengths) + k.slowdown * loads_ms
        return time_ms

    def exchange(self) -> bool:
        """Make the best move or swap off the slowest pipeline; False if none shortens it."""
        top = int(self.times_ms.argmax())
        given = np.flatnonzero(self._owner == top)
        targets, taken = self._list_partners(top)
        after_ms = self._estimate(top, given, targets, taken)
        limit_ms = float(self.times_ms[top]) * (1 - _GAIN)
        for row, column in _list_least(after_ms, VERIFIED):
            if not after_ms[row, column] < limit_ms:
                return False
            if self._apply(top, int(given[row]), int(targets[column]), int(taken[column])):
                return True
        return False

    def _list_partners(self, top: int) -> tuple[Ints, Ints]:
        """List pipelines, and a sequence that each may return, ``NOTHING`` for none; both (m,)."""
        fastest_first = np.argsort(self.times_ms, kind="stable")
        sizes = np.bincount(self._owner, minlength=len(self._classes))
        number = int(np.searchsorted(np.cumsum(sizes[fastest_first]), PARTNER_SEQUENCES)) + 1
        partners = fastest_first[: max(number, 2)]
        partners = partners[partners != top]
        held = np.flatnonzero(np.isin(self._owner, partners))
        targets = np.concatenate([partners, self._owner[held]])
        return targets, np.concatenate([np.full(len(partners), NOTHING), held])

    def _estimate(self, top: int, given: Ints, targets: Ints, taken: Ints) -> Floats:
        """Estimate the slower of two pipelines after each exchange (given, taken), in ms."""
        takes = taken != NOTHING
        returned_ms = np.where(takes, self._work_ms[targets, taken], 0.0)
        received_ms = np.where(takes, self._work_ms[top, taken], 0.0)
        target_ms = self.times_ms[targets] - returned_ms + self._work_ms[targets][:, given].T
        top_ms = self.times_ms[top] - self._work_ms[top, given][:, None] + received_ms
        after_ms: Floats = np.maximum(target_ms, top_ms)
        return after_ms

    def _apply(self, top: int, given: int, target: int, taken: int) -> bool:
        """Make an exchange if both pipelines are then faster than the slowest was."""
        mine, theirs = (np.flatnonzero(self._owner == p).tolist() for p in (top, target))
        mine.remove(given)
        theirs.append(given)
        if taken != NOTHING:
            theirs.remove(taken)
            mine.append(taken)
        packed = [self._pack(top, mine), self._pack(target, theirs)]
        times_ms = [self._time(top, packed[0]), self._time(target, packed[1])]
        if max(times_ms) >= self.times_ms[top] * (1 - _GAIN):
            return False
        for pipeline, members, of, ms in zip(
            (top, target), (mine, theirs), packed, times_ms, strict=True
        ):
            self.micro_batches[pipeline], self.times_ms[pipeline] = of, ms
            self._owner[members] = pipeline
        return True

    def _pack(self, pipeline: int, members: list[int]) -> MicroBatches:
        k = self._classes[pipeline]
        packed = pack_modes(k, self._lengths[members].tolist())
        placed = [[members[j] for j in micro] for micro in packed]
        return fit_loads(k, self._schemes[pipeline], self._batch, placed)


def fit_loads(
    pipeline_class: PipelineClass, scheme: Scheme, batch: Batch, micro_batches: MicroBatches
) -> MicroBatches:
    """Move sequences out of micro-batches whose loads are above their capacity.

    Each, in packed order, goes to the first micro-batch that holds it, or to a new one.
    """
    fitted = [list(micro) for micro in micro_batches]
    limited = [load for load in batch.loads if load.capacity is not None]

    def holds(micro: Sequence[int]) -> bool:
        tokens = sum([pipeline_class.pad(batch.lengths[i]) for i in micro])
        fits = tokens <= pipeline_class.capacity
        return fits and all(load.holds(scheme, micro) for load in limited)

    if all(load.holds(scheme, micro) for load in limited for micro in fitted):
        return fitted
    moved: list[int] = []
    for place, micro in enumerate(fitted):
        kept: list[int] = []
        for i in micro:
            (kept if holds([*kept, i]) else moved).append(i)
        fitted[place] = kept
    for i in moved:
        target = next((micro for micro in fitted if holds([*micro, i])), None)
        if target is None:
            fitted.append([i])
        else:
            target.append(i)
    return fitted


def _list_least(values: Floats, number: int) -> list[tuple[int, int]]:
    """List the places of so many least values, the least first, equal ones in order."""
    flat = values.ravel()
    if not len(flat):
        return []
    last = min(number, len(flat)) - 1
    # The value is the same on every machine, the places that a partition returns are not.
    near = np.flatnonzero(flat <= np.partition(flat, last)[last])
    least = near[np.argsort(flat[near], kind="stable")][:number]
    return [divmod(place, values.shape[1]) for place in least.tolist()]
