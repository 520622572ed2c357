"""Whether a device had too much else to do while it was measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqplan.costs.fit.samples import Sample

BUSY = 3.0
"""Ninetieth percentile of the yardstick's readings over their median, from which times of a device
say more of its other work than of a model."""


def busy(samples: Sequence[Sample]) -> str | None:
    """Say how busy a device was that was too busy to be measured; None for one that was not.

    Where readings scatter so far, they do not tell what a repetition met between them, and no time
    can be rescaled by them. Processor time, where it was read, is told beside.
    """
    readings = [
        ms for sample in samples for ms in (*sample.layers_yardstick_ms, *sample.ends_yardstick_ms)
    ]
    if not readings:
        return None
    middle, slow = (float(share) for share in np.quantile(readings, (0.5, 0.9)))
    if slow <= BUSY * middle:
        return None
    note = (
        "the machine was too busy: a fixed piece of work usually took "
        f"{middle:.3g} ms, and {slow / middle:.1f} times that in every tenth case"
    )
    timed = [sample for sample in samples if len(sample.layers_cpu_ms) == len(sample.layers_ms) > 0]
    if timed:
        cpu = sum(sum(sample.layers_cpu_ms) for sample in timed)
        wall = sum(sum(sample.layers_ms) for sample in timed)
        note += f"; layers had {cpu / wall:.2g} cores of it while they ran"
    return note
