"""The plan whose groups re-form within the step, beside the one of fixed groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from seqplan.planner.batches.batch import Batch
from seqplan.planner.exchange.times import parse_layout
from seqplan.planner.placement.assembly import floor_us, plan_of, planned_pipeline
from seqplan.planner.placement.fleet import Models, PipelineClass, undominated
from seqplan.planner.proposal.document import ProposalDocument
from seqplan.planner.step.assemble import PACKINGS, evened
from seqplan.planner.step.reforming import (
    Reforming,
    find_reforming,
    nested_sizes,
    reforming_bound_ms,
)
from seqplan.plans.plan import Considered, Plan
from seqplan.plans.schedule import schedule
from seqplan.plans.scheme import Scheme, Strategy

REFORMING_GAIN = 0.005
"""Share by which re-forming groups have to be faster: every change of groups costs a little."""


@dataclass(frozen=True)
class ReformingSchemes:
    """The schemes of one layout without stages, and their classes in the same order."""

    schemes: tuple[Scheme, ...]
    classes: tuple[PipelineClass, ...]

    @classmethod
    def of(cls, proposal: ProposalDocument, models: Models) -> ReformingSchemes | None:
        """Take the schemes of the layout that the proposal chose, whether candidates or not.

        None where groups cannot re-form: no exchange was weighed or several layouts are used, the
        layout has stages, or its GPU counts do not divide one another.
        """
        chosen = None if proposal.layouts is None else proposal.layouts.chosen
        if chosen is None or proposal.exchange is None:
            return None
        layout = parse_layout(chosen)
        members = undominated(
            {s: m for s, m in models.items() if (s.tp, s.pp) == layout and m.max_sequence > 0}
        )
        classes = tuple(PipelineClass.of(model, 1) for model in members.values())
        if layout[1] > 1 or nested_sizes(classes) is None:
            return None
        return cls(tuple(members), classes)


def with_reforming(
    static: Plan,
    batch: Batch,
    schemes: ReformingSchemes,
    seed: int,
    packing: str = PACKINGS[0],
) -> Plan:
    """Return a plan whose groups re-form where it is faster by ``REFORMING_GAIN``, else ``static``.

    Its bound is over all plans of the layout, whatever their groups; ``selection`` keeps the static
    strategies that were considered.
    """
    below = static.predicted_ms / (1 + REFORMING_GAIN)
    re_formed = find_reforming(schemes.classes, batch, static.world_size, below, seed)
    if re_formed is None:
        return static
    plan = assemble_reforming(re_formed, static, batch, schemes, packing)
    return plan if plan.predicted_ms < below else static


def assemble_reforming(
    re_formed: Reforming,
    static: Plan,
    batch: Batch,
    schemes: ReformingSchemes,
    packing: str = PACKINGS[0],
) -> Plan:
    """Make the plan of a placement: a pipeline for each run, in order of their start.

    Ranks run their pipelines in this one order, so that none waits for another for ever. What does
    not follow from the placement (planner, world, candidates, exchange) is as in ``static``.
    """
    pools = [iter(positions) for positions in batch.positions]
    pipelines = []
    for run in re_formed.runs:
        scheme, pipeline_class = schemes.schemes[run.class_index], schemes.classes[run.class_index]
        micro_batches = [
            [next(pools[i]) for i, n in bin_ for _ in range(n)] for bin_ in run.micro_batches
        ]
        if packing == "even":
            micro_batches = evened(pipeline_class, micro_batches, batch.lengths)
        ranks = tuple(range(run.first, run.first + scheme.gpus))
        pipelines.append(
            planned_pipeline(
                scheme, pipeline_class, ranks, micro_batches, batch, forward_fraction=1 / 3
            )
        )
    predicted = round(schedule(pipelines).makespan_ms, 3)
    bound = reforming_bound_ms(schemes.classes, batch, static.world_size)
    strategy = Strategy.of(Counter(pipeline.scheme for pipeline in pipelines))
    return plan_of(
        batch,
        static.planner,
        static.world_size,
        pipelines,
        predicted_ms=predicted,
        bound_ms=min(floor_us(bound), predicted),
        selection=_considered(static.selection, strategy, predicted),
        exchange_ms=static.exchange_ms,
    )


def _considered(
    candidates: Sequence[Considered], strategy: Strategy, predicted_ms: float
) -> tuple[Considered, ...]:
    """List the static candidates; one that these groups are, as no rank re-forms, at its time."""
    return tuple(
        replace(
            candidate,
            predicted_ms=predicted_ms,
            lower_bound_ms=min(candidate.lower_bound_ms, predicted_ms),
        )
        if candidate.strategy == strategy
        else candidate
        for candidate in candidates
    )
