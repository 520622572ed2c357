"""One training step of any strategy: all-gather, pipelines, reduce-scatter, clip, update."""

from __future__ import annotations

import torch
from torch import Tensor

from seqplan.plans.views.parameter_layout import Shard
from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.data.prepared_step import PreparedStep
from seqplan.runtime.errors import RankLost
from seqplan.runtime.models.llama import ModelConfig
from seqplan.runtime.pipeline.one_f_one_b import PipelinePasses
from seqplan.runtime.pipeline.prepare import PreparedPipeline
from seqplan.runtime.pipeline.stage import Stage, StageInput
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.states.optimizers import check_optimizer
from seqplan.runtime.states.staged_states import StagedStates
from seqplan.runtime.stopwatch import Stopwatch
from seqplan.runtime.tensor_parallel.groups import TensorGroups
from seqplan.runtime.tensor_parallel.split import TensorSplit
from seqplan.runtime.training.run_step import SavedBytesCounter, StepResult, apply_gradients


def run_staged_step(
    view: RankView,
    work: PreparedStep[PreparedPipeline],
    config: ModelConfig,
    states: StagedStates,
    optimizer: torch.optim.Optimizer,
    *,
    peers: Peers,
    tensor_groups: TensorGroups,
    clip_norm: float | None = None,
    count_saved: bool = False,
    non_blocking: bool = False,
) -> StepResult:
    """Run a rank's part of a step with any ⟨tp, pp, ulysses, ring⟩.

    Called by every rank, also by those without work. ``peers``: for transfers between stages, which
    attention may share; ``count_saved``, ``non_blocking``: as of ``run_step``. ``RankLost`` if
    another rank died; ``ValueError`` if the optimizer needs whole parameters and the sharding is
    ``flat``.
    """
    try:
        whole_step = Stopwatch(states.device)
        check_optimizer(optimizer, states)
        tensor_groups.extend(view.placement)
        states.begin(view.placement)
        computing = states.stopwatch = Stopwatch(states.device)
        total: Tensor | float = 0.0
        held = [leaf for unit in states.units for leaf in unit.parameters]
        counter = SavedBytesCounter(held, enabled=count_saved)
        for prepared in work:
            total = total + _run_pipeline(
                view, prepared, config, states, peers, tensor_groups, counter
            )
        computing.stop()
        states.reduce_scatter()
        totals = apply_gradients(states, optimizer, total, clip_norm, non_blocking=non_blocking)
        whole_step.stop()
    except RankLost as loss_of_rank:
        raise loss_of_rank.in_step(view.step) from None
    return StepResult(view.step, totals, computing, whole_step, counter.report())


def _run_pipeline(
    view: RankView,
    prepared: PreparedPipeline,
    config: ModelConfig,
    states: StagedStates,
    peers: Peers,
    tensor_groups: TensorGroups,
    counter: SavedBytesCounter,
) -> Tensor | float:
    """Run one pipeline; the part of the loss that this rank counts."""
    pipeline = prepared.view
    group = tensor_groups.of(pipeline.tp_group)
    works = [
        StageInput(
            batch.tokens,
            batch.labels,
            batch.context,
            TensorSplit(len(batch.context.positions), group),
        )
        for batch in prepared.micro_batches
    ]
    scheme, at = pipeline.scheme, pipeline.at
    stage = Stage(config, Shard(scheme.tp, scheme.pp, at.tp, at.pp), states)
    passes = PipelinePasses(
        pipeline,
        works,
        stage,
        peers,
        scale=1.0 / max(view.loss_tokens, 1),
        counter=counter,
        dtype=states.dtype,
        device=states.device,
    )

    def backward(tensor: Tensor, gradient: Tensor | None, last: bool) -> None:
        states.backward(tensor, gradient, last=last and prepared.overlap)

    passes.run(backward)
    return passes.loss
