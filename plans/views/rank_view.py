"""One rank's part of a plan: its work, its tokens, its groups and its neighbors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from seqplan.plans.experts import ExpertSchedule, ExpertSteps
from seqplan.plans.format.codec import digest as plan_digest
from seqplan.plans.groups import Coordinates, Group
from seqplan.plans.plan import MicroBatch, Plan, PlannedPipeline
from seqplan.plans.recomputation import write_mode
from seqplan.plans.scheme import Scheme
from seqplan.plans.views.placement import Placement, placement_of, rank_runs
from seqplan.plans.views.sharding import Range, list_held_ranges, ring_tokens, ulysses_piece


@dataclass(frozen=True, slots=True)
class SequenceShare:
    """A rank's part of one sequence.

    ``position`` in the plan's sequences, ``id`` the sample's index in the data set, ``length`` the
    whole sequence's tokens; ``ranges``: the token ranges held, at most two, none where empty.
    """

    position: int
    id: int
    length: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class MicroBatchView:
    """One micro-batch as a rank sees it; token counts unless stated otherwise.

    - ``sequences``: all of the micro-batch in packed order, those held nowhere here included.
    - ``tokens``: of the whole micro-batch; ``padded_lengths``: ``Scheme.pad_sequence`` of each
      sequence; ``ring_lengths``: of each sequence in this ring rank's buffer, which is what
      attention sees after the Ulysses sync; ``local_tokens``: held here.
    - ``padded_local_tokens`` ≥ ``local_tokens``: slots to reserve here, the same on every rank of
      the pipeline: the micro-batch's padded tokens / (ulysses · ring). The ranks of a tp group
      share them.
    - ``recompute``: its recomputation mode, None if the profile has one.
    """

    sequences: tuple[SequenceShare, ...]
    tokens: int
    padded_lengths: tuple[int, ...]
    ring_lengths: tuple[int, ...]
    local_tokens: int
    padded_local_tokens: int
    cost_ms: float
    recompute: str | None = None

    def cu_seqlens(self) -> npt.NDArray[np.int32]:
        """Return the offsets of whole sequences in packed order: int32, shape (sequences + 1,)."""
        return _offsets([share.length for share in self.sequences])

    def ring_cu_seqlens(self) -> npt.NDArray[np.int32]:
        """Return the offsets in this ring rank's buffer: int32, shape (sequences + 1,)."""
        return _offsets(self.ring_lengths)

    def pad_cu_seqlens(self) -> npt.NDArray[np.int32]:
        """Return the offsets of whole sequences, each padded: int32, shape (sequences + 1,).

        For kernels that want multiples of 2·ring; the sharding here needs no padding.
        """
        return _offsets(self.padded_lengths)

    def positions(self) -> npt.NDArray[np.int64]:
        """Return each held token's position in its sequence: int64, shape (local_tokens,)."""
        ranges = [held for share in self.sequences for held in share.ranges]
        if not ranges:
            return np.empty(0, dtype=np.int64)
        return np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in ranges])

    def document_lengths(self) -> npt.NDArray[np.int64]:
        """Return the tokens of each held token's whole sequence: int64, shape (local_tokens,)."""
        held = [sum(stop - start for start, stop in share.ranges) for share in self.sequences]
        lengths = np.array([share.length for share in self.sequences], dtype=np.int64)
        return np.repeat(lengths, held)


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
    if ``expert_parallel`` (by how many ranks experts are split) is 1.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the view as JSON values; all cu_seqlens are written out."""
        return {
            "step": self.step,
            "rank": self.rank,
            "world_size": self.world_size,
            "tokens": self.tokens,
            "loss_tokens": self.loss_tokens,
            "micro_steps": self.micro_steps,
            "digest": self.digest,
            **_experts_dict(self.expert_parallel, self.experts),
            "placement": _placement_list(self.placement),
            "pipelines": [
                {
                    **_pipeline_dict(pipeline),
                    "micro_batches": [_micro_batch_dict(batch) for batch in pipeline.micro_batches],
                }
                for pipeline in self.pipelines
            ],
        }


def rank_view(plan: Plan, rank: int, *, digest: str | None = None) -> RankView:
    """Return the part of a sound plan (see ``lint``) that ``rank`` needs.

    An idle rank has no pipelines. ``digest``: of the plan, computed if None, which costs more than
    the view. ``ValueError`` for a rank outside the world.
    """
    if not 0 <= rank < plan.world_size:
        raise ValueError(f"rank must be in 0 … {plan.world_size - 1}, not {rank}")
    return _view(
        plan,
        rank,
        digest or plan_digest(plan),
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
    experts = _schedule_experts(plan)
    return [
        _view(plan, rank, digest, placement, pipelines, experts)
        for rank, pipelines in enumerate(pipelines_of)
    ]


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
            texts[key] = _compact([_micro_batch_dict(batch) for batch in pipeline.micro_batches])
        return texts[key]

    written = []
    placement = _compact(_placement_list(placement_of(plan.pipelines)))
    for view in rank_views(plan, digest=digest):
        pipelines = ",".join(
            f'{_compact(_pipeline_dict(pipeline))[:-1]},"micro_batches":{micro_batches(pipeline)}}}'
            for pipeline in view.pipelines
        )
        head = _compact(replace(view, placement=(), pipelines=()).to_dict())
        head = head.removesuffix('[],"pipelines":[]}')
        written.append(f'{head}{placement},"pipelines":[{pipelines}]}}'.encode())
    return written


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _view(
    plan: Plan,
    rank: int,
    digest: str | None,
    placement: Placement,
    pipelines: Iterable[PipelineView],
    experts: ExpertSchedule | None,
) -> RankView:
    micro_steps = [
        pipeline.micro_step for pipeline in plan.pipelines if pipeline.micro_step is not None
    ]
    return RankView(
        step=plan.step,
        rank=rank,
        world_size=plan.world_size,
        tokens=plan.tokens,
        loss_tokens=plan.loss_tokens,
        micro_steps=max(micro_steps) + 1 if micro_steps else None,
        digest=digest,
        placement=placement,
        pipelines=tuple(pipelines),
        expert_parallel=plan.expert_parallel,
        experts=None if experts is None else experts.steps_of(rank),
    )


def _schedule_experts(plan: Plan) -> ExpertSchedule | None:
    if plan.expert_parallel == 1:
        return None
    return ExpertSchedule(plan.pipelines, plan.expert_parallel)


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
            _micro_batch_view(plan, scheme, at, batch) for batch in pipeline.micro_batches
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


def _micro_batch_view(
    plan: Plan, scheme: Scheme, at: Coordinates, batch: MicroBatch
) -> MicroBatchView:
    lengths = [plan.lengths[position] for position in batch.sequences]
    ring_lengths = tuple([ring_tokens(length, scheme.ring, at.ring) for length in lengths])
    piece = ulysses_piece(sum(ring_lengths), scheme.ulysses, at.ulysses)
    held = list_held_ranges(lengths, scheme.ring, at.ring, piece)
    return MicroBatchView(
        sequences=tuple(
            [
                SequenceShare(position, plan.ids[position], length, ranges)
                for position, length, ranges in zip(batch.sequences, lengths, held, strict=True)
            ]
        ),
        tokens=batch.tokens,
        padded_lengths=tuple(map(scheme.pad_sequence, lengths)),
        ring_lengths=ring_lengths,
        local_tokens=piece[1] - piece[0],
        padded_local_tokens=batch.padded_tokens // scheme.sp,
        cost_ms=batch.cost_ms,
        recompute=batch.recompute,
    )


def _offsets(lengths: list[int] | tuple[int, ...]) -> npt.NDArray[np.int32]:
    return np.fromiter(accumulate(lengths, initial=0), dtype=np.int32, count=len(lengths) + 1)


def _placement_list(placement: Placement) -> list[dict[str, Any]]:
    """Write consecutive pipelines of one scheme as one entry, whose ranks follow each other."""
    return [
        {
            "scheme": scheme.as_dict(),
            "ranks": rank_runs([rank for placed in group for rank in placed.ranks]),
        }
        for scheme, group in groupby(placement, key=attrgetter("scheme"))
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


def _micro_batch_dict(view: MicroBatchView) -> dict[str, Any]:
    return {
        "sequences": [
            {
                "position": share.position,
                "id": share.id,
                "length": share.length,
                "ranges": [list(held) for held in share.ranges],
            }
            for share in view.sequences
        ],
        "tokens": view.tokens,
        "local_tokens": view.local_tokens,
        "padded_local_tokens": view.padded_local_tokens,
        "cu_seqlens": list(accumulate((share.length for share in view.sequences), initial=0)),
        "padded_cu_seqlens": list(accumulate(view.padded_lengths, initial=0)),
        "ring_cu_seqlens": list(accumulate(view.ring_lengths, initial=0)),
        "cost_ms": view.cost_ms,
        **write_mode(view.recompute),
    }
