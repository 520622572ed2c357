"""Plans that are hard on a runtime: other groups at each step, idle ranks, one-token documents."""

from __future__ import annotations

import numpy as np

from seqplan import Plan, Scheme
from seqplan.plans.groups import process_groups
from seqplan.plans.lint import lint
from seqplan.plans.plan import MicroBatch, PlannedPipeline, Provenance
from seqplan.plans.schedule import schedule

RANKS = 4
DOCUMENTS = 17

_ULYSSES, _RING, _ONE = Scheme(ulysses=2), Scheme(ring=2), Scheme()
LAYOUTS: tuple[tuple[tuple[Scheme, tuple[int, ...]], ...], ...] = (
    ((_ULYSSES, (0, 1)), (_RING, (2, 3))),
    ((Scheme(ulysses=4), (0, 1, 2, 3)),),
    ((_ONE, (0,)), (_ONE, (1,)), (_ONE, (2,)), (_ONE, (3,))),
    ((Scheme(ulysses=2, ring=2), (2, 0, 3, 1)),),
    ((Scheme(ring=3), (1, 2, 3)), (_ONE, (0,))),
    ((_ULYSSES, (1, 3)), (_ONE, (2,))),
    ((Scheme(ring=4), (3, 2, 1, 0)),),
    ((Scheme(ulysses=3), (0, 2, 3)), (_ONE, (1,))),
    ((_RING, (1, 2)),),
    ((_RING, (0, 1)), (_ULYSSES, (2, 3)), (_ULYSSES, (1, 2))),
)
"""Pipelines of each step; ranks in none are idle, in two run one after the other."""


def hostile_plans(longest: int) -> list[Plan]:
    """A plan for each of ``LAYOUTS``, of documents of 1 to ``longest`` tokens."""
    rng = np.random.default_rng(longest)
    return [
        _plan(step, layout, [1, longest, *rng.integers(1, longest + 1, DOCUMENTS - 2).tolist()])
        for step, layout in enumerate(LAYOUTS)
    ]


def _plan(
    step: int, layout: tuple[tuple[Scheme, tuple[int, ...]], ...], lengths: list[int]
) -> Plan:
    contents: list[list[list[int]]] = [[[], []] for _ in layout]
    for position in range(len(lengths)):
        contents[position % len(layout)][position // len(layout) % 2].append(position)
    pipelines = tuple(
        _pipeline(scheme, ranks, lengths, batches)
        for (scheme, ranks), batches in zip(layout, contents, strict=True)
    )
    predicted = schedule(pipelines).makespan_ms
    plan = Plan(
        step=step,
        provenance=Provenance("0", 0, "sha256:none", None),
        world_size=RANKS,
        ids=tuple(100 * step + position for position in range(len(lengths))),
        lengths=tuple(lengths),
        tokens=sum(lengths),
        loss_tokens=sum(lengths) - len(lengths),
        pipelines=pipelines,
        idle_ranks=tuple(set(range(RANKS)) - {rank for _, ranks in layout for rank in ranks}),
        groups=process_groups(pipelines),
        predicted_ms=predicted,
        lower_bound_ms=predicted,
        gap=0.0,
        selection=(),
    )
    assert not lint(plan, None)
    return plan


def _pipeline(
    scheme: Scheme, ranks: tuple[int, ...], lengths: list[int], batches: list[list[int]]
) -> PlannedPipeline:
    micro_batches = []
    for batch in batches:
        sizes = [lengths[position] for position in batch]
        padded = scheme.pad_micro_batch(sizes)
        micro_batches.append(MicroBatch(tuple(batch), sum(sizes), padded, float(sum(sizes))))
    cost = sum(batch.cost_ms for batch in micro_batches)
    return PlannedPipeline(scheme, ranks, tuple(micro_batches), cost)
