"""Costs of each sequence of a data set on a cluster, whatever it is planned with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqplan.planner.batches.window import SequenceCosts
from seqplan.planner.placement.fleet import Ints, PipelineClass


def sequence_costs(classes: Sequence[PipelineClass], lengths: Ints, gpus: int) -> SequenceCosts:
    """Cost each sequence on the best class that holds it.

    ``lengths`` (n,) in tokens. Infinite if no class holds a sequence.
    """
    distinct, inverse = np.unique(lengths, return_inverse=True)
    alone_ms = np.full(len(distinct), np.inf)
    area_ms = alone_ms.copy()
    for pipeline_class in classes:
        held = distinct <= pipeline_class.capacity
        alone = pipeline_class.alone_ms(distinct)
        area = pipeline_class.gpus / gpus * pipeline_class.work_with_overhead_ms(distinct)
        alone_ms = np.where(held, np.minimum(alone_ms, alone), alone_ms)
        area_ms = np.where(held, np.minimum(area_ms, area), area_ms)
    smallest = min(pipeline_class.gpus for pipeline_class in classes)
    short = max(k.capacity for k in classes if k.gpus == smallest)
    return SequenceCosts(alone_ms[inverse], area_ms[inverse], short)
