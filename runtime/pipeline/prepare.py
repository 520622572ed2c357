"""A rank's part of a step of any strategies, ready to compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from seqplan.plans.recomputation import MODES
from seqplan.plans.scheme_limits import STAGED_MICRO_STEPS, find_unsupported
from seqplan.plans.views.parameter_layout import Shard
from seqplan.plans.views.placement import can_overlap_reduction
from seqplan.plans.views.rank_view import PipelineView, RankView
from seqplan.plans.views.resharding import shards_of
from seqplan.runtime.data.comparison import DataPreparer
from seqplan.runtime.data.prepared_step import PreparedStep
from seqplan.runtime.data.targets import TargetData
from seqplan.runtime.data.tokens import TokenData, load_share
from seqplan.runtime.device_copy import TOKEN_BYTES, PackedCopy, index_device
from seqplan.runtime.errors import DataError, PlanError
from seqplan.runtime.experts.blocks import ExpertBlocks, check_expert_parallel
from seqplan.runtime.experts.micro_steps import check_stages
from seqplan.runtime.models.llama import ModelConfig
from seqplan.runtime.recomputation import OFFLOAD, check_modes
from seqplan.runtime.sequence_parallel.context import AttentionContext, attention_context
from seqplan.runtime.sequence_parallel.kernels import Kernel
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.states.staged_states import WHOLE, StagedStates
from seqplan.runtime.tensor_parallel.groups import TensorGroups


@dataclass(frozen=True, slots=True)
class StagedModel:
    """A model's states, groups and attention kernel on this rank, for steps of any strategies.

    ``peers``: for transfers between stages, which attention shares; ``control_group``: of all ranks
    on the CPU; ``blocks``: of experts, None if each rank has all; ``kernel``: the first that
    supports the model's heads if None.
    """

    config: ModelConfig
    states: StagedStates
    peers: Peers
    tensor_groups: TensorGroups
    control_group: dist.ProcessGroup
    blocks: ExpertBlocks | None
    kernel: Kernel | None


@dataclass(frozen=True, slots=True)
class PreparedMicroBatch:
    """A micro-batch's tokens and labels, if this rank's stage needs them, and its context."""

    tokens: torch.Tensor | None
    labels: torch.Tensor | None
    context: AttentionContext


@dataclass(frozen=True, slots=True)
class EmptyMicroStep:
    """A micro-step of expert parallelism in which the rank has no tokens, of one stage.

    ``number``: of the micro-step; ``shard``: of the rank; ``overlap``: as of ``PreparedPipeline``.
    """

    number: int
    shard: Shard
    overlap: bool


@dataclass(frozen=True, slots=True)
class PreparedPipeline:
    """One of the rank's pipelines; ``overlap``: last backward overlaps with reduce-scatters."""

    view: PipelineView
    micro_batches: tuple[PreparedMicroBatch, ...]
    overlap: bool


PreparedWork = PreparedPipeline | EmptyMicroStep
"""An item of a step of any strategies."""


def check_runnable(view: RankView, config: ModelConfig, blocks: ExpertBlocks | None = None) -> None:
    """Reject a step that a model of ``config`` cannot run, on every rank.

    ``PlanError`` for lockstep with stages, for degrees that its sizes do not allow, for another
    degree of expert parallelism than that of ``blocks``, and for a rank that would hold several
    parts of the model at once.
    """
    check_expert_parallel(view, blocks)
    check_stages(view)
    if view.micro_steps is not None and any(placed.scheme.pp > 1 for placed in view.placement):
        raise PlanError(f"step {view.step}: {STAGED_MICRO_STEPS}")
    for index, placed in enumerate(view.placement):
        reason = find_unsupported(
            placed.scheme,
            layers=config.layers,
            heads=config.heads,
            kv_heads=config.kv_heads,
            ffn=config.ffn or config.vocab,  # without a feed-forward that tp cuts
            vocab=config.vocab,
        )
        if reason is not None:
            raise PlanError(f"step {view.step}, pipeline {index}: {reason}")
    try:
        shards_of(view.placement)
    except ValueError as error:
        raise PlanError(f"step {view.step}: {error}; a rank holds one part of the model") from None
    check_modes(view, (*MODES, OFFLOAD), "StagedLlama")


def make_stage_preparer(
    data: TokenData, model: StagedModel
) -> Callable[[RankView], PreparedStep[PreparedWork]]:
    """Return what a consumer does with a view ahead: check it, load its tokens, lay it out.

    The returned function raises ``PlanError`` for a plan that cannot run here and ``DataError`` for
    one that the data set does not match; it communicates with no other rank. ``DataError`` at once
    for data with labels, weights or per-token columns: stages learn the next token only.
    """
    if isinstance(data, TargetData):
        raise DataError(
            "the data has labels or weights, but the built-in Llama learns the next token only: "
            "train a module under ShardedStates with it"
        )

    device = index_device(model.states.device)

    def prepare(view: RankView) -> PreparedStep[PreparedWork]:
        check_runnable(view, model.config, model.blocks)
        model.states.make_syncs(view.placement)  # remembered for the step
        overlap = can_overlap_reduction(view.placement)
        pipelines = []
        local_tokens = sum(b.local_tokens for p in view.pipelines for b in p.micro_batches)
        copy = PackedCopy(device, TOKEN_BYTES * local_tokens)
        for pipeline in view.pipelines:
            first, last = pipeline.at.pp == 0, pipeline.at.pp == pipeline.scheme.pp - 1
            prepared = []
            for micro_batch in pipeline.micro_batches:
                tokens = labels = None
                if first or last:
                    share = load_share(data, micro_batch, step=view.step)
                    tokens = copy.add(share.tokens) if first else None
                    labels = copy.add(share.labels) if last else None
                context = attention_context(
                    pipeline,
                    micro_batch,
                    model.peers,
                    device=device,
                    copy=copy.add,
                    kernel=model.kernel,
                )
                prepared.append(PreparedMicroBatch(tokens, labels, context))
            pipelines.append(PreparedPipeline(pipeline, tuple(prepared), overlap=False))
        items = _with_empty_steps(view, pipelines)
        if overlap:
            items = _overlap_last(items)
        copy.start()
        return PreparedStep(items, copy)

    return DataPreparer(data, prepare)


def _with_empty_steps(view: RankView, pipelines: Sequence[PreparedPipeline]) -> list[PreparedWork]:
    """Put pipelines in their micro-steps, with empty ones between and after them."""
    items: list[PreparedWork] = []
    if view.experts is None or view.experts.total == len(view.experts.micro_steps):
        return [*pipelines]
    shard = shards_of(view.placement).get(view.rank, WHOLE)
    starts = iter(view.experts.micro_steps)
    following = 0

    def fill(stop: int) -> None:
        items.extend(EmptyMicroStep(number, shard, False) for number in range(following, stop))

    for pipeline in pipelines:
        places = [next(starts) for _ in pipeline.micro_batches]
        if places:
            fill(places[0])
            following = places[-1] + 1
        items.append(pipeline)
    fill(view.experts.total)
    return items


def _overlap_last(items: Sequence[PreparedWork]) -> list[PreparedWork]:
    """Let the last backward overlap with reduce-scatters."""
    busy = [
        at
        for at, item in enumerate(items)
        if isinstance(item, EmptyMicroStep) or item.micro_batches
    ]
    return [
        replace(item, overlap=True) if busy[-1:] == [at] else item for at, item in enumerate(items)
    ]
