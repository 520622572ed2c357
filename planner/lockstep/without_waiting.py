"""Micro-steps whose groups do not wait for each other: each starts when its ranks are free.

If sequences are equally long, micro-steps divide ranks among those that are left over, which
groups that regroup after one placement do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.assemble import make_group_pipelines
from seqplan.planner.lockstep.plan_micro_steps import plan_micro_steps
from seqplan.planner.strategies.regrouping import RegroupLayout
from seqplan.plans.plan import PlannedPipeline
from seqplan.plans.schedule import schedule
from seqplan.plans.scheme import Scheme

COARSE, MOST_IN_MICRO_STEPS = 0.05, 1_000
"""Share above the bound from which on micro-steps are tried as well, and of how many sequences at
most: they take longer to plan."""


def plan_without_waiting(
    batch: Batch,
    layout: RegroupLayout,
    models: Mapping[Scheme, SchemeModel],
    gpus: int,
    below_ms: float,
) -> tuple[list[PlannedPipeline], float] | None:
    """Plan micro-steps of a layout: its pipelines in order of their start, and their time (ms).

    None for a batch of too many sequences, if the layout's bound is near ``below_ms``, or if none
    end before it. Both times without sync.
    """
    enough_ms = layout.bound_ms(batch, gpus) * (1 + COARSE)
    if len(batch.lengths) > MOST_IN_MICRO_STEPS or enough_ms >= below_ms + layout.sync_ms:
        return None
    of_layout = [models[scheme] for scheme in dict.fromkeys(layout.schemes)]
    micro_steps = plan_micro_steps(batch, of_layout, gpus)
    if micro_steps is None:
        return None
    pipelines = [
        replace(pipeline, micro_step=None)
        for pipeline in make_group_pipelines(batch, micro_steps, 1 / 3)
    ]
    timed = schedule(pipelines)
    if timed.makespan_ms >= below_ms:
        return None
    in_order = sorted(range(len(pipelines)), key=lambda place: timed.start_ms[place])
    return [pipelines[place] for place in in_order], timed.makespan_ms
