"""Plans whose micro-batches have recomputation modes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from seqplan.plans.plan import Plan


def set_modes(plan: Plan, modes: Sequence[str], seed: int | np.random.Generator = 0) -> Plan:
    """The plan with a mode, drawn of ``modes``, on each micro-batch."""
    rng = np.random.default_rng(seed)
    return replace(
        plan,
        pipelines=tuple(
            replace(
                pipeline,
                micro_batches=tuple(
                    replace(batch, recompute=str(rng.choice(modes)))
                    for batch in pipeline.micro_batches
                ),
            )
            for pipeline in plan.pipelines
        ),
    )
