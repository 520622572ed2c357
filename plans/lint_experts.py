"""Check the invariants of plans whose experts are split over ranks."""

from __future__ import annotations

from collections.abc import Iterator

from seqplan.plans.experts import ExpertSchedule, holds_whole_blocks
from seqplan.plans.plan import Plan
from seqplan.plans.recomputation import repeats_exchanges


def check_experts(plan: Plan) -> Iterator[str]:
    """Yield a line for each violated invariant of the blocks that experts are split over."""
    degree = plan.expert_parallel
    if degree < 1 or plan.world_size % degree:
        yield f"expert_parallel: {degree} does not divide the {plan.world_size} ranks"
        return
    for index, pipeline in enumerate(plan.pipelines):
        whole = holds_whole_blocks(pipeline.scheme, pipeline.ranks, degree)
        if pipeline.scheme.pp > 1 and not whole:
            yield (
                f"pipeline {index}: a stage of {pipeline.scheme} does not consist of whole blocks "
                f"of {degree} ranks"
            )
        for number, batch in enumerate(pipeline.micro_batches):
            if batch.shared_ms and (whole or degree == 1):
                yield f"pipeline {index} micro-batch {number}: shared_ms, but it has whole blocks"
            if not 0 <= batch.shared_ms <= batch.cost_ms:
                place = f"pipeline {index} micro-batch {number}"
                yield f"{place}: shared_ms {batch.shared_ms} is outside 0 … {batch.cost_ms}"


def check_exchanges(plan: Plan) -> Iterator[str]:
    """Check that ranks of a component repeat exchanges of experts' tokens together.

    The runtime lets all repeat them if one does, at a higher cost than stated.
    """
    if plan.expert_parallel == 1:
        return
    steps = ExpertSchedule(plan.pipelines, plan.expert_parallel)
    for component in steps.components:
        repeating: dict[int, set[bool]] = {}
        for index in component.pipelines if component.coupled else ():
            for number, batch in enumerate(plan.pipelines[index].micro_batches):
                if batch.recompute is not None:
                    of_step = repeating.setdefault(steps.first[index] + number, set())
                    of_step.add(repeats_exchanges(batch.recompute))
        for micro_step, kinds in sorted(repeating.items()):
            if len(kinds) > 1:
                yield (
                    f"block {component.blocks[0]} micro-step {micro_step}: some recomputation "
                    "modes repeat the exchanges of experts' tokens, others do not"
                )
