"""A training job of a Hugging Face model: made once, then a call for each step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seqplan.plans.plan import Plan
from seqplan.plans.views.owners import Owners
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.tokens import TokenData
from seqplan.runtime.errors import communicating
from seqplan.runtime.huggingface.attention import IMPLEMENTATION
from seqplan.runtime.huggingface.hosted import copied_state
from seqplan.runtime.huggingface.inspection import hosted_preparation, inspected
from seqplan.runtime.huggingface.launch import join_ranks, plan_source
from seqplan.runtime.huggingface.progress import progress, restore_progress
from seqplan.runtime.huggingface.report import StepReport
from seqplan.runtime.huggingface.router_loss import RoutedLoss
from seqplan.runtime.states.checkpoint import Cursor, restore, save
from seqplan.runtime.states.gradient_push import Reduce
from seqplan.runtime.states.held_bytes import HeldBytes, held_bytes
from seqplan.runtime.states.optimizers import refuse_unfit
from seqplan.runtime.states.sharded_states import ShardedStates
from seqplan.runtime.steps.consumer import PlanConsumer, Step
from seqplan.runtime.steps.in_process import agreed_steps
from seqplan.runtime.steps.source import PlanSource
from seqplan.runtime.training.loss import LossOf, chunked_loss, label_loss, log_probabilities
from seqplan.runtime.training.prepare import MicroBatchWork
from seqplan.runtime.training.run_step import StepResult, run_step
from seqplan.runtime.training.token_values import SequenceValues, token_values

Work = tuple[MicroBatchWork, ...]
Optimizers = Callable[[list[tuple[str, nn.Parameter]]], torch.optim.Optimizer]

_PREFIX = "model."
"""What a hosted model's parameters are called by beyond their own names."""


def host(
    model: nn.Module,
    data: TokenData,
    *,
    optimizer: Optimizers,
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
    loss_of: LossOf = label_loss,
    loss_rows: int = 4096,
    autocast: torch.dtype | None = None,
    callbacks: Sequence[Callable[[StepReport], None]] = (),
    groups: Communicators | None = None,
    resident_bytes: float | None = None,
    owners: Owners = "slices",
    reduce: Reduce = "step",
) -> Job:
    """Take a causal language model over and return the job that trains it, on every rank together.

    ``model``: of transformers, or wrapped by peft, in its dtype and on this rank's device; trained
    values are taken from the first rank, frozen ones must be alike. ``optimizer`` gets names and
    what this rank owns of the trained parameters, as torch's optimizers take them: slices of one
    axis, for an element-wise optimizer, or, where ``owners`` is ``matrices``, whole parameters, for
    those that need them; a rank may own none. ``scheduler`` gets the optimizer and is stepped after
    each step. ``loss_of`` gets logits and the micro-batch, or parts of ``loss_rows`` tokens of
    both, and gives a sum over tokens. ``autocast``: dtype in which the model computes.
    ``callbacks`` are called after each step. ``resident_bytes``: what plans count on beside
    activations (``Planner.resident_bytes``); a model that takes well more is refused. ``reduce``:
    after what gradients are summed at their owners (``ShardedStates``). ``groups``: made here where
    None, after the default process group where there is none either: of torchrun's ranks, or of
    this process alone.

    ``UnsupportedModel``, on every rank, for a model that is not computed exactly;
    ``ValueError`` where frozen values differ between ranks, more is held than that, or the
    optimizer needs whole parameters and owners hold slices.
    """
    joined = join_ranks(model)
    return Job(
        model,
        data,
        optimizer=optimizer,
        scheduler=scheduler,
        loss_of=loss_of,
        loss_rows=loss_rows,
        autocast=autocast,
        callbacks=callbacks,
        groups=groups or Communicators.create(),
        resident_bytes=resident_bytes,
        owners=owners,
        reduce=reduce,
        ends_process_group=joined,
    )


class Job:
    """A hosted model with its states, optimizer and place in the plans; ``host`` makes it.

    ``model`` is the one that was given; ``next_step`` the step that follows, also after ``resume``.
    """

    def __init__(
        self,
        model: nn.Module,
        data: TokenData,
        *,
        optimizer: Optimizers,
        scheduler: Callable[[torch.optim.Optimizer], Any] | None,
        loss_of: LossOf,
        loss_rows: int,
        autocast: torch.dtype | None,
        callbacks: Sequence[Callable[[StepReport], None]],
        groups: Communicators,
        resident_bytes: float | None,
        owners: Owners,
        reduce: Reduce,
        ends_process_group: bool,
    ) -> None:
        self.model, self.groups = model, groups
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._hosted, attends = inspected(model, autocast, groups)
        self.states = ShardedStates(self._hosted, groups.states, owners=owners, reduce=reduce)
        if resident_bytes is not None:
            self.held_bytes.refuse_above(resident_bytes, groups.control)
        masters = self.states.master_parameters()
        self.optimizer = optimizer([(n.removeprefix(_PREFIX), p) for n, p in masters])
        refuse_unfit(self.optimizer, self.states)
        self.scheduler = None if scheduler is None else scheduler(self.optimizer)
        self.next_step = 0
        self._loss_of = chunked_loss(self._hosted.logits, loss_of, loss_rows)
        self._routed: RoutedLoss | None = None
        if attends.router_loss is not None:
            self._routed = RoutedLoss(
                attends.router_loss, self._hosted, self._loss_of, groups.control
            )
        self._rows = loss_rows
        self._callbacks = list(callbacks)
        self._ends_process_group = ends_process_group
        self._prepare = hosted_preparation(self._hosted, attends, data, groups, self.states.device)
        self._consumer: PlanConsumer[Work] | None = None
        self._digest: str | None = None

    @property
    def held_bytes(self) -> HeldBytes:
        """Count what this rank holds before any activation; as text a line for people."""
        tensors = (*self.model.parameters(), *self.model.buffers())
        return held_bytes(self.states.units, tensors)

    def steps(
        self, plans: str | os.PathLike[str] | PlanSource | Iterable[Plan], **options: Any
    ) -> Iterator[Step[Work]]:
        """Yield the steps of ``plans`` from ``next_step`` on, each agreed on by all ranks.

        ``plans``: a plan file that every rank can read, a job of a planning service
        (``http://HOST:PORT/v1/jobs/JOB``, with ``SEQPLAN_TOKEN`` of the environment where there is
        one), a source, or plans made here, alike on every rank, each when it is asked for.
        ``options``: further ones of ``PlanConsumer``. ``PlanError`` on every rank where a step
        cannot be had or run.
        """
        if isinstance(plans, (str, os.PathLike)):
            plans = plan_source(plans, self.world_size)
        where: dict[str, Any] = {
            "rank": self.rank,
            "world_size": self.world_size,
            "prepare": self._prepare,
            "control_group": self.groups.control,
        }
        if not hasattr(plans, "view"):
            in_process: Any = plans
            yield from agreed_steps(in_process, first_step=self.next_step, **where)
            return
        source: Any = plans
        with PlanConsumer(source, start_step=self.next_step, **where, **options) as consumer:
            self._consumer = consumer
            try:
                yield from consumer
            finally:
                self._consumer = None

    def run(self, step: Step[Work], *, clip_norm: float | None = None) -> StepResult:
        """Train on a step, on all ranks together: the model in training mode, then acknowledged.

        Steps the scheduler and calls the callbacks. ``RankLost`` where another rank died.
        """
        self._hosted.train()
        rates = tuple(float(group["lr"]) for group in self.optimizer.param_groups)
        result = run_step(
            step.view,
            step.prepared,
            self._hosted,
            self.states,
            self.optimizer,
            clip_norm=clip_norm,
            loss_of=self._loss_of if self._routed is None else self._routed,
            before=None if self._routed is None else self._routed.count,
        )
        self._hosted.forget_call()
        if self.scheduler is not None:
            self.scheduler.step()
        measured_ms = 1e3 * result.compute_s if step.prepared else None
        if self._consumer is not None:
            self._consumer.acknowledge(result.step, measured_ms)
        self.next_step, self._digest = result.step + 1, step.view.digest
        report = StepReport(
            step=result.step,
            loss=result.loss,
            gradient_norm=result.gradient_norm,
            learning_rates=rates,
            predicted_ms=sum(pipeline.predicted_ms for pipeline in step.view.pipelines),
            measured_ms=measured_ms,
            step_ms=1e3 * result.step_s,
        )
        for callback in self._callbacks:
            callback(report)
        return result

    def token_values(
        self,
        step: Step[Work],
        *,
        values_of: Callable[[Tensor, MicroBatchWork], Tensor] = log_probabilities,
    ) -> list[SequenceValues]:
        """Compute a value for each token of a step's sequences, as ``token_values`` does.

        In evaluation mode, with the values after the last step; ``values_of`` gets logits. By
        default the log-probabilities of the labels.
        """
        self._hosted.eval()

        def by_parts(hidden: Tensor, micro_batch: MicroBatchWork) -> Tensor:
            starts = range(0, max(len(hidden), 1), self._rows)
            parts = [(start, start + self._rows) for start in starts]
            values = [
                values_of(self._hosted.logits(hidden[a:b]), micro_batch.rows(a, b))
                for a, b in parts
            ]
            return torch.cat(values)

        values = token_values(
            step.prepared, self._hosted, self.states, self.groups.control, values_of=by_parts
        )
        self._hosted.forget_call()
        return values

    @contextmanager
    def evaluation(self) -> Iterator[nn.Module]:
        """Lend the model as transformers has it, with the values after the last step.

        With the attention that it was loaded with, in evaluation mode and without gradients, to
        evaluate on batches of one's own or to generate. All ranks enter it together, between steps;
        what is done within is each rank's own.
        """
        self.states.materialize()
        lm = self._hosted.lm
        lm.set_attn_implementation(self._hosted.own_attention)
        self._hosted.eval()
        try:
            with torch.no_grad():
                yield self.model
        finally:
            lm.set_attn_implementation(IMPLEMENTATION)

    def save_pretrained(self, folder: str | os.PathLike[str], **options: Any) -> None:
        """Write the model as its own ``save_pretrained`` does, with the values after the last step.

        All ranks call it; the first writes. Of a model wrapped by peft, its adapters.
        """
        with self.evaluation():
            if self.rank == 0:
                writer: Any = self.model
                writer.save_pretrained(folder, state_dict=copied_state(self.model), **options)
        with communicating("saving the model"):
            dist.barrier(group=self.groups.control)

    def save_checkpoint(
        self, folder: str | os.PathLike[str], user: Mapping[str, Any] | None = None
    ) -> Path:
        """Write what ``resume`` goes on from: states, optimizer, scheduler, random numbers.

        ``user``: anything else, of tensors, numbers, texts, lists and mappings. All ranks call it,
        with the same ``user``.
        """
        extra = progress(self.rank, self.states.device, self.optimizer, self.scheduler, user)
        cursor = Cursor(self.next_step, self._digest)
        return save(folder, cursor, self.states, self.optimizer, self.groups.control, extra=extra)

    def resume(self, folder: str | os.PathLike[str]) -> Mapping[str, Any] | None:
        """Go on from the newest whole checkpoint in ``folder``; return its ``user`` state.

        None where there is no checkpoint, or it has none. All ranks call it, before ``steps``. With
        another number of ranks, new ones keep the random numbers that they have.
        """
        cursor = restore(folder, self.states, self.optimizer, self.groups.control)
        if cursor is None:
            return None
        self.next_step, self._digest = cursor.next_step, cursor.last_digest
        if cursor.extra is None:
            return None
        return restore_progress(
            cursor.extra, self.rank, self.states.device, self.optimizer, self.scheduler
        )

    def close(self) -> None:
        """Wait for all ranks after the last call; end the process group, where ``host`` made it."""
        dist.barrier(group=self.groups.control)
        if self._ends_process_group:
            dist.destroy_process_group()
