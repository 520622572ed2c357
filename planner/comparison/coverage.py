"""The steps of a comparison against the data: its lengths, and the work that the steps lack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.bounds.sequence_costs import sequence_costs
from seqplan.planner.placement.fleet import Models, PipelineClass
from seqplan.plans.percent import percent

MOST_UNSEEN = 0.05
"""Share of the work in sequences longer than the steps', up to which the steps stand for the data.

An interval over the steps cannot show what such sequences change.
"""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Longest sequences (tokens) of the steps and of the data, and the work between them.

    ``unseen``: share of the data's least GPU-time that longer sequences than the steps' take;
    ``epoch``: steps of an epoch.
    """

    longest_of_steps: int
    longest: int
    unseen: float
    epoch: int

    @classmethod
    def from_steps(
        cls, batches: Sequence[Batch], sampler: Sampler, models: Models, gpus: int
    ) -> Coverage:
        """Measure what ``batches`` of a sampler lack, at the costs of ``models``."""
        lengths, drawn = sampler.lengths, max(batch.longest for batch in batches)
        classes = [PipelineClass.from_model(model, 1) for model in models.values()]
        work_ms = sequence_costs(classes, lengths, gpus).area_ms
        unseen = float(work_ms[lengths > drawn].sum() / work_ms.sum())
        return cls(drawn, int(lengths.max()), unseen, sampler.count_epoch_steps())

    @property
    def is_sufficient(self) -> bool:
        """Whether the steps stand for the data."""
        return self.unseen <= MOST_UNSEEN

    @property
    def sentences(self) -> str:
        """Describe what the steps lack."""
        longest = f"{self.longest_of_steps:,}"
        return (
            f"The steps have sequences of up to {longest} tokens, the data up to "
            f"{self.longest:,}, which sizes static strategies. Sequences above {longest} take "
            f"{percent(self.unseen)} of the work; an epoch has {self.epoch:,} steps."
        )


def histogram(lengths: npt.NDArray[np.int64]) -> tuple[tuple[int, int, int], ...]:
    """Count (up to length, sequences, tokens) per power of two from the first used."""
    power = np.ceil(np.log2(lengths)).astype(np.int64)
    return tuple(
        (2**k, int((power == k).sum()), int(lengths[power == k].sum()))
        for k in range(int(power.min()), int(power.max()) + 1)
    )
