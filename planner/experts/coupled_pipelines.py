"""Pipelines that share blocks of experts: their micro-batches in common micro-steps, and costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.experts.modes import choose_modes
from seqplan.planner.placement.fleet import Models
from seqplan.plans.experts import ExpertSchedule, holds_whole_blocks
from seqplan.plans.plan import MicroBatch, Plan, PlannedPipeline


def couple_pipelines(
    plan: Plan, batch: Batch, models: Models, degree: int
) -> list[PlannedPipeline] | None:
    """Put pipelines that were planned by themselves into micro-steps of their components.

    The most expensive micro-batches of each pipeline come first, so that similar ones meet. None if
    stages do not consist of whole blocks.
    """
    pipelines = [
        replace(
            pipeline,
            micro_batches=tuple(sorted(pipeline.micro_batches, key=lambda micro: -micro.cost_ms))
            if pipeline.scheme.pp == 1
            else pipeline.micro_batches,
        )
        for pipeline in plan.pipelines
    ]
    if any(
        pipeline.scheme.pp > 1 and not holds_whole_blocks(pipeline.scheme, pipeline.ranks, degree)
        for pipeline in pipelines
    ):
        return None  # stages after pipelines of fewer ranks do not begin with a block
    return _price_pipelines(pipelines, batch, models, degree)


def list_parts(
    pipelines: Sequence[PlannedPipeline], degree: int, gpus: int
) -> tuple[list[int], list[tuple[int, ...]]] | None:
    """List the ranks of each component, and the positions of its sequences in the batch.

    None if components do not cover all ranks.
    """
    components = ExpertSchedule(pipelines, degree).components
    sizes = [len(component.blocks) * degree for component in components]
    parts = [
        tuple(
            sorted(
                position
                for index in component.pipelines
                for micro in pipelines[index].micro_batches
                for position in micro.sequences
            )
        )
        for component in components
    ]
    return (sizes, parts) if all(parts) and sum(sizes) == gpus else None


def _price_pipelines(
    pipelines: list[PlannedPipeline], batch: Batch, models: Models, degree: int
) -> list[PlannedPipeline]:
    """Choose modes by micro-step in coupled components, and state what micro-batches share."""
    steps = ExpertSchedule(pipelines, degree)
    priced = [list(pipeline.micro_batches) for pipeline in pipelines]
    for component in steps.components:
        of_step: dict[int, list[tuple[int, int]]] = {}
        for index in component.pipelines if component.coupled else ():
            for number in range(len(priced[index])):
                of_step.setdefault(steps.first[index] + number, []).append((index, number))
        for places in of_step.values():
            held = [
                (
                    models[pipelines[index].scheme],
                    [batch.lengths[i] for i in priced[index][number].sequences],
                )
                for index, number in places
            ]
            for (index, number), (model, lengths), mode in zip(
                places, held, choose_modes(held), strict=True
            ):
                ranks = pipelines[index].ranks
                priced[index][number] = price_micro_batch(
                    priced[index][number],
                    model.find_mode(mode) or model,
                    lengths,
                    mode,
                    whole=holds_whole_blocks(model.scheme, ranks, degree),
                )
    return [
        replace(
            pipeline,
            micro_batches=tuple(micro_batches),
            predicted_ms=max(
                pipeline.predicted_ms if pipeline.scheme.pp > 1 else 0.0,
                round(sum(micro.cost_ms for micro in micro_batches), 3),
            ),
        )
        for pipeline, micro_batches in zip(pipelines, priced, strict=True)
    ]


def price_micro_batch(
    micro: MicroBatch, model: SchemeModel, lengths: Sequence[int], mode: str | None, *, whole: bool
) -> MicroBatch:
    """Return a micro-batch in a mode, with the costs of the mode's ``model``.

    ``whole``: its pipeline consists of whole blocks, and shares nothing with others.
    """
    return replace(
        micro,
        cost_ms=round(model.latency.micro_batch_ms(lengths), 3),
        recompute=mode,
        shared_ms=0.0 if whole else round(model.b_shared * micro.tokens, 3),
    )


def merge_pipelines(pipelines: Sequence[PlannedPipeline]) -> list[PlannedPipeline]:
    """Merge pipelines on the same ranks into one that runs their micro-batches in order."""
    merged: dict[tuple[int, ...], PlannedPipeline] = {}
    for pipeline in pipelines:
        before = merged.get(pipeline.ranks)
        merged[pipeline.ranks] = (
            pipeline
            if before is None
            else replace(
                before,
                micro_batches=before.micro_batches + pipeline.micro_batches,
                predicted_ms=round(before.predicted_ms + pipeline.predicted_ms, 3),
            )
        )
    return list(merged.values())
