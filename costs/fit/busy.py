"""Whether a device had too much else to do while it was measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqplan.costs.fit.samples import Sample

BUSY = 3.0
"""Ninetieth percentile of the yardstick's readings over their median, from which times of a device
show more of its other work than of a model."""


def busy(samples: Sequence[Sample]) -> str | None:
    """Describe how busy a device was during measurement; None if it was idle enough.

    If readings scatter so far, they do not show the load of a repetition between them, and no time
    can be rescaled by them. Processor time, if it was read, is stated, too.
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
