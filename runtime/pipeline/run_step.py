"""One training step of any strategy: all-gather, pipelines, reduce-scatter, clip, update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from seqplan.plans.views.parameter_layout import Shard
from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.data.prepared_step import PreparedStep
from seqplan.runtime.errors import RankLost
from seqplan.runtime.experts.micro_steps import align_modes
from seqplan.runtime.losses.router_loss import RouterCounts, RouterLoss
from seqplan.runtime.losses.token_losses import LossDivisor
from seqplan.runtime.pipeline.one_f_one_b import PipelinePasses
from seqplan.runtime.pipeline.prepare import (
    EmptyMicroStep,
    PreparedMicroBatch,
    PreparedPipeline,
    PreparedWork,
    StagedModel,
)
from seqplan.runtime.pipeline.stage import Stage, StageInput
from seqplan.runtime.states.staged_states import StagedStates
from seqplan.runtime.stopwatch import Stopwatch
from seqplan.runtime.tensor_parallel.split import TensorSplit
from seqplan.runtime.training.run_step import (
    SavedBytesCounter,
    StepResult,
    apply_gradients,
    check_update,
)


def run_staged_step(
    view: RankView,
    work: PreparedStep[PreparedWork],
    model: StagedModel,
    optimizer: torch.optim.Optimizer,
    *,
    clip_norm: float | None = None,
    count_saved: bool = False,
    non_blocking: bool = False,
) -> StepResult:
    """Run a rank's part of a step with any ⟨tp, pp, ulysses, ring⟩.

    Called by every rank, also by those without work. ``count_saved``, ``non_blocking``: as of
    ``run_step``. ``RankLost`` if another rank died; ``ValueError`` for what ``check_update``
    rejects.
    """
    states = model.states
    try:
        whole_step = Stopwatch(states.device)
        check_update(optimizer, states, clip_norm)
        divisor = LossDivisor(view, work, states, labels=_count_labels(view))
        model.tensor_groups.extend(view.placement)
        states.begin(view.placement)
        computing = states.stopwatch = Stopwatch(states.device)
        total: Tensor | float = 0.0
        held = [leaf for unit in states.units for leaf in unit.parameters]
        counter = SavedBytesCounter(held, enabled=count_saved)
        runner = _Runner(view, model, counter)
        items, modes = _align_recomputation(view, list(work), states, model.config.recompute)
        if model.config.router_loss:
            runner.count_routed(items)
        for item in items:
            if isinstance(item, EmptyMicroStep):
                runner.run_empty(item, modes[item.number])
            else:
                total = total + runner.run_pipeline(item)
        computing.stop()
        states.reduce_scatter()
        totals = apply_gradients(
            states, optimizer, total, clip_norm, divisor=divisor, non_blocking=non_blocking
        )
        whole_step.stop()
    except RankLost as loss_of_rank:
        raise loss_of_rank.in_step(view.step) from None
    return StepResult(view.step, totals, computing, whole_step, counter.report())


class _Runner:
    """Runs the items of a step's work on this rank."""

    def __init__(self, view: RankView, model: StagedModel, counter: SavedBytesCounter) -> None:
        self._view, self._model, self._counter = view, model, counter
        self._states = model.states
        self._routers: RouterCounts | None = None

    def count_routed(self, items: Sequence[PreparedWork]) -> None:
        """Count the tokens of each expert in the global batch, without gradients; collective."""
        config, group = self._model.config, self._model.control_group
        loss = RouterLoss(config.experts, config.experts_per_token, config.router_loss)
        routers = RouterCounts(loss)
        with torch.no_grad():
            for item in items:
                if isinstance(item, EmptyMicroStep):
                    self._stage(item.shard).run_empty(None)
                else:
                    self._passes(item).count_routed(routers)
        routers.add_up(self._view.tokens, group, layers=config.layers)
        self._routers = routers

    def run_pipeline(self, prepared: PreparedPipeline) -> Tensor | float:
        """Run one pipeline; the part of the loss that this rank counts."""

        def backward(tensor: Tensor, gradient: Tensor | None, last: bool) -> None:
            self._states.backward(tensor, gradient, last=last and prepared.overlap)

        passes = self._passes(prepared)
        passes.run(backward)
        return passes.loss

    def run_empty(self, item: EmptyMicroStep, mode: str | None) -> None:
        """Run a micro-step without tokens under a recomputation mode."""
        self._states.backward(self._stage(item.shard).run_empty(mode), last=item.overlap)

    def _passes(self, prepared: PreparedPipeline) -> PipelinePasses:
        pipeline = prepared.view
        group = self._model.tensor_groups.of(pipeline.tp_group)
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
        return PipelinePasses(
            pipeline,
            works,
            self._stage(Shard(scheme.tp, scheme.pp, at.tp, at.pp)),
            self._model.peers,
            scale=1.0 / max(self._view.loss_tokens, 1),
            counter=self._counter,
            dtype=self._states.dtype,
            device=self._states.device,
            routers=self._routers,
        )

    def _stage(self, shard: Shard) -> Stage:
        return Stage(self._model.config, shard, self._states, self._model.blocks)


def _count_labels(view: RankView) -> int:
    """Count the labels whose losses this rank is the one to count."""
    return sum(
        batch.local_tokens - sum(share.is_ended for share in batch.sequences)
        for pipeline in view.pipelines
        if pipeline.at.tp == 0 and pipeline.at.pp == pipeline.scheme.pp - 1
        for batch in pipeline.micro_batches
    )


def _align_recomputation(
    view: RankView, items: Sequence[PreparedWork], states: StagedStates, default: str
) -> tuple[list[PreparedWork], list[str | None]]:
    """Give micro-batches the recomputation that they have in common with those of other ranks.

    Also returns that of each micro-step of expert parallelism. ``default``: of micro-batches
    without one.
    """
    pipelines = [item for item in items if isinstance(item, PreparedPipeline)]
    local = [
        batch.context.recompute or default for item in pipelines for batch in item.micro_batches
    ]
    modes = align_modes(view, local, states.start_sums)
    numbers = range(len(local)) if view.experts is None else view.experts.micro_steps
    aligned = iter([modes[number] for number in numbers])

    def align(batch: PreparedMicroBatch) -> PreparedMicroBatch:
        context, mode = batch.context, next(aligned)
        if (context.recompute or default) == mode:
            return batch
        return replace(batch, context=replace(context, recompute=mode))

    return [
        replace(item, micro_batches=tuple(map(align, item.micro_batches)))
        if isinstance(item, PreparedPipeline)
        else item
        for item in items
    ], modes
