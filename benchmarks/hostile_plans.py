"""Plans that are hard on a runtime: other groups at each step, idle ranks, one-token documents."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from seqplan import Plan, Scheme, construct_plan
from seqplan.plans.groups import process_groups
from seqplan.plans.lint import lint
from seqplan.plans.plan import MicroBatch, PlannedPipeline
from seqplan.plans.schedule import schedule

RANKS = 4
DOCUMENTS = 17

LAYOUTS: tuple[tuple[tuple[str, tuple[int, ...]], ...], ...] = (
    (("u2", (0, 1)), ("r2", (2, 3))),
    (("u4", (0, 1, 2, 3)),),
    (("u1", (0,)), ("u1", (1,)), ("u1", (2,)), ("u1", (3,))),
    (("u2.r2", (2, 0, 3, 1)),),
    (("r3", (1, 2, 3)), ("u1", (0,))),
    (("u2", (1, 3)), ("u1", (2,))),
    (("r4", (3, 2, 1, 0)),),
    (("u3", (0, 2, 3)), ("u1", (1,))),
    (("r2", (1, 2)),),
    (("r2", (0, 1)), ("u2", (2, 3)), ("u2", (1, 2))),
)
"""Pipelines of each step; ranks in none are idle, in two run one after the other."""


def hostile_plans(longest: int) -> list[Plan]:
    """A plan for each of ``LAYOUTS``, of documents of 1 to ``longest`` tokens."""
    rng = np.random.default_rng(longest)
    return [
        _plan(step, layout, [1, longest, *rng.integers(1, longest + 1, DOCUMENTS - 2).tolist()])
        for step, layout in enumerate(LAYOUTS)
    ]


def _plan(step: int, layout: tuple[tuple[str, tuple[int, ...]], ...], lengths: list[int]) -> Plan:
    contents: list[list[list[int]]] = [[[], []] for _ in layout]
    for position in range(len(lengths)):
        contents[position % len(layout)][position // len(layout) % 2].append(position)
    pipelines = []
    for (text, ranks), batches in zip(layout, contents, strict=True):
        scheme, micro_batches = Scheme.parse(text), []
        for batch in batches:
            sizes = [lengths[position] for position in batch]
            padded = scheme.pad_micro_batch(sizes)
            micro_batches.append(MicroBatch(tuple(batch), sum(sizes), padded, float(sum(sizes))))
        cost_ms = sum(batch.cost_ms for batch in micro_batches)
        pipelines.append(PlannedPipeline(scheme, ranks, tuple(micro_batches), cost_ms))
    predicted_ms = schedule(pipelines).makespan_ms
    plan = replace(
        construct_plan(lengths, {"u1": [[[place]] for place in range(len(lengths))]}, step=step),
        world_size=RANKS,
        ids=tuple(100 * step + position for position in range(len(lengths))),
        pipelines=tuple(pipelines),
        idle_ranks=tuple(set(range(RANKS)) - {rank for _, ranks in layout for rank in ranks}),
        groups=process_groups(pipelines),
        predicted_ms=predicted_ms,
        lower_bound_ms=predicted_ms,
    )
    assert not lint(plan, None)
    return plan
