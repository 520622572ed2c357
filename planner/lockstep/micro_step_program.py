"""A linear program of the batch that micro-steps of given lengths can hold.

Sequences of similar lengths are one group (``LengthGroups``). A *slot* is a micro-step and a class;
what a sequence of each group takes of one group of ranks in a slot are its four *shares*: work for
the micro-step less the overhead, tokens for the memory, and a place for sequences above half of
either. The first micro-steps of a plan have separate lengths, the last is one more or the *pool* of
all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.resources import ROUNDING
from seqplan.planner.placement.fleet import Floats, Ints, PipelineClass

ALONE, MOST_GROUPS = 24, 32
"""The longest lengths, each a separate group, and groups of similar ones among the others; each
counts as its shortest."""

RESOURCES = 4
"""Work, tokens, and the places for sequences above half of either."""

Slot = tuple[int, int]
"""A micro-step's number and a class."""


@dataclass(frozen=True)
class LengthGroups:
    """Groups of similar lengths: the shortest of each (tokens), and how many sequences it has."""

    shortest: Ints
    numbers: Floats

    @classmethod
    def from_batch(cls, batch: Batch) -> LengthGroups:
        """Group a batch's lengths, ascending; the ``ALONE`` longest are not grouped."""
        lengths, counts = batch.distinct[::-1], batch.multiplicity[::-1].astype(float)
        grouped = max(0, len(lengths) - ALONE)
        even = np.linspace(0, grouped, MOST_GROUPS + 1).round().astype(int)
        edges = np.unique(np.concatenate([even, np.arange(grouped, len(lengths) + 1)]))
        starts, stops = edges[:-1], edges[1:]
        shortest = np.array([lengths[start] for start in starts], dtype=np.int64)
        numbers = [counts[start:stop].sum() for start, stop in zip(starts, stops, strict=True)]
        return cls(shortest, np.array(numbers))


@dataclass(frozen=True)
class Pool:
    """All micro-steps but the first ones: their time together (ms), and their least number."""

    time_ms: float
    fewest: int


@dataclass(frozen=True)
class MicroStepProgram:
    """The micro-steps of a step, and the shares of sequences in a group's resources.

    ``gpus``: of a micro-step; ``first``: how many micro-steps come before the last, which is a
    ``pool`` or, if that is None, one micro-step; ``shares``: (``RESOURCES``, groups of lengths) by
    slot, infinite where a sequence does not fit. A slot that takes no sequence is left out.
    """

    classes: Sequence[PipelineClass]
    lengths: LengthGroups
    gpus: int
    first: int
    pool: Pool | None
    shares: Mapping[Slot, Floats]

    @classmethod
    def of(
        cls,
        classes: Sequence[PipelineClass],
        lengths: LengthGroups,
        gpus: int,
        first_ms: Sequence[float],
        rest: Pool,
    ) -> MicroStepProgram:
        """State the program for the first micro-steps' lengths (ms), descending, and the rest.

        The longest of the rest leaves the others an overhead each, and is no longer than any first.
        """
        overhead_ms = least_overhead_ms(classes)
        longest_ms = min([rest.time_ms - (rest.fewest - 1) * overhead_ms, *first_ms[-1:]])
        shares = {
            (number, k): share
            for number, micro_step_ms in enumerate([*first_ms, longest_ms])
            for k, pipeline_class in enumerate(classes)
            if (share := _shares(pipeline_class, lengths.shortest, micro_step_ms)) is not None
        }
        first, pool = len(first_ms), rest if rest.fewest > 1 else None
        if pool is not None:  # its work is for all its time
            for k, pipeline_class in enumerate(classes):
                if (share := shares.get((first, k))) is not None:
                    share[0] *= (longest_ms - pipeline_class.c) / pool.time_ms
        return cls(classes, lengths, gpus, first, pool, shares)

    @property
    def overhead_ms(self) -> float:
        """The least that a micro-step takes."""
        return least_overhead_ms(self.classes)

    @property
    def takes_every_length(self) -> bool:
        """Whether each group of lengths has a slot."""
        takes = [np.isfinite(share[0]) for share in self.shares.values()]
        return bool(takes) and bool(np.logical_or.reduce(takes).all())

    def in_pool(self, slot: Slot) -> bool:
        """Whether a slot is of the pool of micro-steps."""
        return self.pool is not None and slot[0] == self.first


def least_overhead_ms(classes: Sequence[PipelineClass]) -> float:
    """Return the least that a micro-step takes (ms)."""
    return min(pipeline_class.c for pipeline_class in classes)


def _shares(pipeline_class: PipelineClass, lengths: Ints, micro_step_ms: float) -> Floats | None:
    """Compute the shares of each length's sequence in a group of ranks: (4, lengths).

    Work, tokens, and of the places for sequences above half of either; infinite if it does
    not fit. None if nothing does.
    """
    room_ms = micro_step_ms - pipeline_class.c
    if room_ms <= 0:
        return None
    work = pipeline_class.work_ms(lengths) / room_ms
    tokens = pipeline_class.padded(lengths) / pipeline_class.capacity
    share = np.stack([work, tokens, (tokens > 0.5).astype(float), (work > 0.5).astype(float)])
    fits = (work <= 1 + ROUNDING) & (tokens <= 1)
    return np.where(fits, share, np.inf) if fits.any() else None
