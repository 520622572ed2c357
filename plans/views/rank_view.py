"""One rank's part of a plan: its work, its tokens, its groups and its neighbors."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from seqplan.plans.experts import ExpertSchedule, ExpertSteps
from seqplan.plans.format.codec import digest as plan_digest
from seqplan.plans.groups import Coordinates, Group
from seqplan.plans.plan import Plan, PlannedPipeline
from seqplan.plans.scheme import Scheme
from seqplan.plans.views.micro_batch_view import (
    MicroBatchView,
    make_micro_batch_view,
    micro_batch_fields,
)
from seqplan.plans.views.placement import Placement, number_ranks, placement_of, rank_runs


@dataclass(frozen=True, slots=True)
class PipelineView:
    """One of a rank's pipelines.

    ``index`` in the plan's list; ``at``: the rank's coordinates; the groups are global ranks along
    one axis (``sp_group``: ulysses and ring together), the rank itself where the axis has degree
    1. Neighbors are global ranks: on a ring both directions wrap around, None on an axis of
    degree 1 and beyond the first and last stage.
    """

    index: int
    scheme: Scheme
    micro_step: int | None
    predicted_ms: float
    at: Coordinates
    tp_group: Group
    ulysses_group: Group
    ring_group: Group
    sp_group: Group
    pp_group: Group
    ring_previous: int | None
    ring_next: int | None
    pp_previous: int | None
    pp_next: int | None
    micro_batches: tuple[MicroBatchView, ...]


@dataclass(frozen=True, slots=True)
class RankView:
    """The pipelines of one rank in a step, in the order of running.

    ``loss_tokens``: of the whole step, the divisor of every loss; ``micro_steps``: number of them
    on every rank, None without lockstep; ``digest``: the plan's, if the caller gave it,
    so that ranks can check that they follow the same plan; ``placement``: of all pipelines of
    the step, the same for every rank; ``experts``: micro-steps with experts on other ranks, None
    if ``expert_parallel`` (by how many ranks experts are split) is 1; ``lost_ranks``: of the plan.
    """

    step: int
    rank: int
    world_size: int
    tokens: int
    loss_tokens: int
    micro_steps: int | None
    digest: str | None
    placement: Placement
    pipelines: tuple[PipelineView, ...]
    expert_parallel: int = 1
    experts: ExpertSteps | None = None
    lost_ranks: tuple[int, ...] = ()

    @property
    def ranks_left(self) -> tuple[int, ...]:
        """List the ranks that are not lost, ascending."""
        lost = frozenset(self.lost_ranks)
        return tuple(rank for rank in range(self.world_size) if rank not in lost)

    def to_dict(self) -> dict[str, Any]:
        """Return the view as JSON values; all cu_seqlens are written out."""
        return {
            **_head_dict(self),
            "placement": _placement_list(self.placement),
            "pipelines": [
                {
                    **_pipeline_dict(pipeline),
                    "micro_batches": [
                        micro_batch_fields(batch) for batch in pipeline.micro_batches
                    ],
                }
                for pipeline in self.pipelines
            ],
        }


def rank_view(plan: Plan, rank: int, *, digest: str | None = None) -> RankView:
    """Return the part of a sound plan (see ``lint``) that ``rank`` needs.

    An idle rank has no pipelines. ``digest``: of the plan, computed if None, which costs more than
    the view. ``ValueError`` for a rank outside the world.
    """
    rank = operator.index(rank)
    if not 0 <= rank < plan.world_size:
        raise ValueError(f"rank must be in 0 … {plan.world_size - 1}, not {rank}")
    return _view(
        plan,
        rank,
        digest or plan_digest(plan),
        _count_micro_steps(plan),
        placement_of(plan.pipelines),
        [
            _pipeline_view(plan, index, pipeline, pipeline.ranks.index(rank), {})
            for index, pipeline in enumerate(plan.pipelines)
            if rank in pipeline.ranks
        ],
        _schedule_experts(plan),
    )


def rank_views(plan: Plan, *, digest: str | None = None) -> list[RankView]:
    """Return every rank's view in order; ranks that hold the same tokens share the objects."""
    pipelines_of: list[list[PipelineView]] = [[] for _ in range(plan.world_size)]
    for index, pipeline in enumerate(plan.pipelines):
        shared: _Shared = {}
        for place, rank in enumerate(pipeline.ranks):
            pipelines_of[rank].append(_pipeline_view(plan, index, pipeline, place, shared))
    placement, digest = placement_of(plan.pipelines), digest or plan_digest(plan)
    micro_steps, experts = _count_micro_steps(plan), _schedule_experts(plan)
    return [
        _view(plan, rank, digest, micro_steps, placement, pipelines, experts)
        for rank, pipelines in enumerate(pipelines_of)
    ]


def place_view(view: RankView, world_size: int) -> RankView:
    """Number a view's ranks as a job of ``world_size`` processes does (``place_on_ranks``).

    The view of the same rank in the plan that is placed so. ``ValueError`` if the plan has not as
    many ranks left, and for a view with experts on other ranks.
    """
    if view.world_size == world_size:
        return view
    numbers = number_ranks(view.world_size, view.lost_ranks, world_size)
    if view.experts is not None:
        raise ValueError("experts are on other ranks. Place the whole plan, not a view")

    def renumber(ranks: Group) -> Group:
        return tuple(numbers[rank] for rank in ranks)

    def renumber_one(rank: int | None) -> int | None:
        return None if rank is None else numbers[rank]

    def renumber_pipeline(pipeline: PipelineView) -> PipelineView:
        return replace(
            pipeline,
            tp_group=renumber(pipeline.tp_group),
            ulysses_group=renumber(pipeline.ulysses_group),
            ring_group=renumber(pipeline.ring_group),
            sp_group=renumber(pipeline.sp_group),
            pp_group=renumber(pipeline.pp_group),
            ring_previous=renumber_one(pipeline.ring_previous),
            ring_next=renumber_one(pipeline.ring_next),
            pp_previous=renumber_one(pipeline.pp_previous),
            pp_next=renumber_one(pipeline.pp_next),
        )

    return replace(
        view,
        rank=numbers[view.rank],
        world_size=world_size,
        placement=tuple(replace(placed, ranks=renumber(placed.ranks)) for placed in view.placement),
        pipelines=tuple(map(renumber_pipeline, view.pipelines)),
        lost_ranks=(),
    )


def views_json(plan: Plan, *, digest: str | None = None) -> list[bytes]:
    """Write every rank's ``RankView.to_dict`` as compact JSON, in order of rank, once for all.

    The ranks of a tp group, and those of all stages, run the same micro-batches, which are nearly
    all of a view.
    """
    texts: dict[int, str] = {}

    def micro_batches(pipeline: PipelineView) -> str:
        # Shared objects live as long as the views below: an id is not given twice.
        key = id(pipeline.micro_batches)
        if key not in texts:
            texts[key] = _compact([micro_batch_fields(batch) for batch in pipeline.micro_batches])
        return texts[key]

    written = []
    placement = _compact(_placement_list(placement_of(plan.pipelines)))
    for view in rank_views(plan, digest=digest):
        pipelines = ",".join(
            f'{_compact(_pipeline_dict(pipeline))[:-1]},"micro_batches":{micro_batches(pipeline)}}}'
            for pipeline in view.pipelines
        )
        head = _compact(_head_dict(view))[:-1]
        written.append(f'{head},"placement":{placement},"pipelines":[{pipelines}]}}'.encode())
    return written


_compact = json.JSONEncoder(separators=(",", ":")).encode


def _view(
    plan: Plan,
    rank: int,
    digest: str | None,
    micro_steps: int | None,
    placement: Placement,
    pipelines: Iterable[PipelineView],
    experts: ExpertSchedule | None,
) -> RankView:
    return RankView(
        step=plan.step,
        rank=rank,
        world_size=plan.world_size,
        tokens=plan.tokens,
        loss_tokens=plan.loss_tokens,
        micro_steps=micro_steps,
        digest=digest,
        placement=placement,
        pipelines=tuple(pipelines),
        expert_parallel=plan.expert_parallel,
        experts=None if experts is None else experts.steps_of(rank),
        lost_ranks=plan.lost_ranks,
    )


def _count_micro_steps(plan: Plan) -> int | None:
    steps = [each.micro_step for each in plan.pipelines if each.micro_step is not None]
    return max(steps) + 1 if steps else None


def _schedule_experts(plan: Plan) -> ExpertSchedule | None:
    if plan.expert_parallel == 1:
        return None
    return ExpertSchedule(plan.pipelines, plan.expert_parallel)


def _head_dict(view: RankView) -> dict[str, Any]:
    """Return the fields before placement and pipelines."""
    return {
        "step": view.step,
        "rank": view.rank,
        "world_size": view.world_size,
        "tokens": view.tokens,
        "loss_tokens": view.loss_tokens,
        "micro_steps": view.micro_steps,
        "digest": view.digest,
        **({"lost_ranks": list(view.lost_ranks)} if view.lost_ranks else {}),
        **_experts_dict(view.expert_parallel, view.experts),
    }


def _experts_dict(expert_parallel: int, experts: ExpertSteps | None) -> dict[str, Any]:
    if experts is None:
        return {}
    steps = {**experts._asdict(), "micro_steps": list(experts.micro_steps)}
    return {"experts": {"expert_parallel": expert_parallel, **steps}}


_Shared = dict[tuple[int, int], tuple[MicroBatchView, ...]]
"""The micro-batches of a pipeline by coordinates along ulysses and ring."""


def _pipeline_view(
    plan: Plan, index: int, pipeline: PlannedPipeline, place: int, shared: _Shared
) -> PipelineView:
    scheme, ranks = pipeline.scheme, pipeline.ranks
    at = Coordinates.from_rank_index(scheme, place)

    def along(axis_index: int, degree: int, stride: int) -> Group:
        first = place - axis_index * stride
        return ranks[first : first + degree * stride : stride]

    tp, ulysses, ring, pp = scheme.tp, scheme.ulysses, scheme.ring, scheme.pp
    ring_group = along(at.ring, ring, tp * ulysses)
    pp_group = along(at.pp, pp, scheme.stage_gpus)
    if (at.ulysses, at.ring) not in shared:
        shared[at.ulysses, at.ring] = tuple(
            make_micro_batch_view(plan, scheme, at, batch) for batch in pipeline.micro_batches
        )
    return PipelineView(
        index=index,
        scheme=scheme,
        micro_step=pipeline.micro_step,
        predicted_ms=pipeline.predicted_ms,
        at=at,
        tp_group=along(at.tp, tp, 1),
        ulysses_group=along(at.ulysses, ulysses, tp),
        ring_group=ring_group,
        sp_group=along(at.ring * ulysses + at.ulysses, scheme.sp, tp),
        pp_group=pp_group,
        ring_previous=ring_group[at.ring - 1] if ring > 1 else None,
        ring_next=ring_group[(at.ring + 1) % ring] if ring > 1 else None,
        pp_previous=pp_group[at.pp - 1] if at.pp > 0 else None,
        pp_next=pp_group[at.pp + 1] if at.pp < pp - 1 else None,
        micro_batches=shared[at.ulysses, at.ring],
    )


def _placement_list(placement: Placement) -> list[dict[str, Any]]:
    """Write consecutive pipelines of one scheme as one entry, whose ranks follow each other."""
    return [
        {
            "scheme": scheme.as_dict(),
            "ranks": rank_runs([rank for placed in group for rank in placed.ranks]),
        }
        for scheme, group in groupby(placement, key=operator.attrgetter("scheme"))
    ]


def _pipeline_dict(view: PipelineView) -> dict[str, Any]:
    return {
        "index": view.index,
        "scheme": view.scheme.as_dict(),
        "micro_step": view.micro_step,
        "predicted_ms": view.predicted_ms,
        "at": {
            "tp": view.at.tp,
            "pp": view.at.pp,
            "ulysses": view.at.ulysses,
            "ring": view.at.ring,
        },
        "groups": {
            "tp": list(view.tp_group),
            "ulysses": list(view.ulysses_group),
            "ring": list(view.ring_group),
            "sp": list(view.sp_group),
            "pp": list(view.pp_group),
        },
        "neighbors": {
            "ring_previous": view.ring_previous,
            "ring_next": view.ring_next,
            "pp_previous": view.pp_previous,
            "pp_next": view.pp_next,
        },
    }
