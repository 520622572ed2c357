"""A step's placement problem in whole numbers, the base of the exact model.

Times are counted in units of a 10⁷th of the time to beat and rounded down for every sequence and
overhead, so that a placement takes no more units than its time is worth, and a bound in units is
one in ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import floor

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fleet import Fleet, Ints, PipelineClass

UNITS = 10**7
"""Units of time in the time that is to be beaten."""

RATE = 1024
"""Parts of a unit in which a filler's work per token is counted."""

MOST_SEQUENCES = 60
"""Sequences that may matter in a step that is solved."""

NEGLIGIBLE = 0.015
"""Share of the time to beat up to which a sequence's work is negligible."""

FEW_SEQUENCES = 12
"""Sequences of a step up to which none is negligible: small ones decide such steps."""

FILLER_GROUPS = 6


@dataclass(frozen=True)
class FillerGroup:
    """Negligible sequences of similar length as divisible tokens: the shortest, and all of them."""

    shortest: int
    tokens: int


@dataclass(frozen=True)
class Instance:
    """One batch on one fleet of one recomputation mode a pipeline.

    ``time_ms``: the time to beat.
    ``sequences``: for each that matters its place among the batch's distinct lengths, the longest
    first; ``negligible``: how many of each distinct length do not, and ``filler`` what the model
    sees of them.
    """

    fleet: Fleet
    batch: Batch
    time_ms: float
    sequences: tuple[int, ...]
    negligible: Ints
    filler: tuple[FillerGroup, ...]

    @classmethod
    def from_batch(
        cls, fleet: Fleet, batch: Batch, time_ms: float, negligible: float = NEGLIGIBLE
    ) -> Instance | None:
        """State the problem; None if more than ``MOST_SEQUENCES`` sequences matter.

        ``time_ms``: the time to beat; a sequence whose work is at most the share
        ``negligible`` of it does not matter, unless there are few.
        """
        counts = batch.multiplicity
        work = np.min(
            [
                np.where(
                    pipeline_class.padded(batch.distinct) <= pipeline_class.capacity,
                    pipeline_class.work_ms(batch.distinct),
                    np.inf,
                )
                for pipeline_class in fleet.classes
            ],
            axis=0,
        )
        matters = work > negligible * time_ms
        # Work rises with length as long as the same classes hold it: the longest ones matter.
        last = int(np.nonzero(matters)[0].max(initial=-1)) + 1
        if len(batch.lengths) <= FEW_SEQUENCES:
            last = len(counts)
        if int(counts[:last].sum()) > MOST_SEQUENCES:
            return None
        left = counts.copy()
        left[:last] = 0
        return cls(
            fleet,
            batch,
            time_ms,
            tuple(np.repeat(np.arange(last), counts[:last]).tolist()),
            left,
            tuple(_groups(batch.distinct[last:], counts[last:])),
        )

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Return the lengths of the sequences that matter (tokens), descending."""
        return tuple(int(self.batch.distinct[i]) for i in self.sequences)

    def units(self, time_ms: float) -> int:
        """Count the whole units in a time."""
        return floor(time_ms / self.time_ms * UNITS)

    def ms(self, units: float) -> float:
        """Return the time of so many units (ms), rounded down."""
        return units / UNITS * self.time_ms * (1 - 1e-12)

    def works(self, pipeline_class: PipelineClass) -> list[int]:
        """Count the units that each sequence's work takes at least."""
        a, b = pipeline_class.a, pipeline_class.b
        return [self.units(length * (a * length + b)) for length in self.lengths]

    def rates(self, pipeline_class: PipelineClass) -> list[int]:
        """Return the least cost of a filler group's token, in ``RATE``-ths of a unit."""
        a, b = pipeline_class.a, pipeline_class.b
        return [
            floor((a * group.shortest + b) / self.time_ms * UNITS * RATE) for group in self.filler
        ]


def _groups(lengths: Ints, counts: Ints) -> Iterator[FillerGroup]:
    """Cut lengths, descending, into ``FILLER_GROUPS`` groups of about equal tokens."""
    if not len(lengths):
        return
    tokens = lengths * counts
    before = np.cumsum(tokens) - tokens
    number = before * FILLER_GROUPS // int(tokens.sum())
    for group in np.unique(number):
        members = np.nonzero(number == group)[0]
        yield FillerGroup(int(lengths[members[-1]]), int(tokens[members].sum()))
