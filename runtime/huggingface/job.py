"""A training job of a Hugging Face model: a call for each step, evaluation and checkpoints."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.checkpoint.parameter_groups import Named
from seqplan.runtime.checkpoint.save_restore import Cursor, count_extra, restore, save
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.micro_batch import MicroBatchWork
from seqplan.runtime.data.prepared_step import PreparedStep
from seqplan.runtime.errors import communicating
from seqplan.runtime.huggingface.attached import AttachedModel, copy_state
from seqplan.runtime.huggingface.attention import IMPLEMENTATION
from seqplan.runtime.huggingface.expert_saving import save_split_model
from seqplan.runtime.huggingface.experts import AttachedExperts
from seqplan.runtime.huggingface.progress import progress, restore_progress
from seqplan.runtime.losses.router_loss import RoutedLoss
from seqplan.runtime.losses.token_losses import LossOf, log_probabilities
from seqplan.runtime.sources.consumer import Step
from seqplan.runtime.sources.iterate_steps import Plans, Steps, steps
from seqplan.runtime.states.held_bytes import HeldBytes, count_held_bytes
from seqplan.runtime.states.sharded_states import ShardedStates
from seqplan.runtime.training.run_step import MicroBatchReport, StepResult, run_step
from seqplan.runtime.training.sequence_values import (
    SequenceValues,
    convert_values,
    token_values,
)

Work = PreparedStep[MicroBatchWork]


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step's outcome on this rank; ``loss`` and ``gradient_norm`` are the same on every rank.

    ``learning_rates``: of the optimizer's groups, as the step used them; ``predicted_ms``: of this
    rank's pipelines, by the plan; ``measured_ms``: what it spent on their micro-batches, None where
    it had none; ``step_ms``: the whole step; ``micro_batches``: of this rank, if they are counted.
    """

    step: int
    loss: float
    gradient_norm: float
    learning_rates: tuple[float, ...]
    predicted_ms: float
    measured_ms: float | None
    step_ms: float
    micro_batches: tuple[MicroBatchReport, ...] = ()


@dataclass(frozen=True, slots=True)
class JobParts:
    """What a job is made of; ``attach.attach`` makes them for a model.

    ``named``: the optimizer's parameters with names;
    ``loss_of``: of hidden states, ``loss_rows`` tokens at a time; ``routed``: the same with the
    routers' loss, if there is one; ``prepare``: prepares a view's step; ``experts``: those that are
    split over ranks; ``close_groups``: destroys the process groups that were made for the job.
    """

    model: nn.Module
    attached: AttachedModel
    states: ShardedStates
    optimizer: torch.optim.Optimizer
    named: Named
    scheduler: Any
    loss_of: LossOf
    routed: RoutedLoss | None
    loss_rows: int
    callbacks: tuple[Callable[[StepReport], None], ...]
    prepare: Callable[[RankView], Work]
    groups: Communicators
    experts: AttachedExperts | None
    close_groups: Callable[[], None]


def count_rank_bytes(model: nn.Module, states: ShardedStates) -> HeldBytes:
    """Count what this rank holds of a model before any activation."""
    return count_held_bytes(states.units, (*model.parameters(), *model.buffers()))


class Job:
    """An attached model with its states, optimizer and place in the plans; ``attach`` makes it.

    ``model`` is the one that was given; ``next_step`` the step that follows, also after ``resume``.
    """

    def __init__(self, parts: JobParts) -> None:
        self._parts = parts
        self.model, self.groups, self.states = parts.model, parts.groups, parts.states
        self.optimizer, self.scheduler = parts.optimizer, parts.scheduler
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.next_step = 0
        # A loop that is left gives up its steps, which then close.
        self._steps: Callable[[], Steps[Work] | None] = lambda: None
        self._digest: str | None = None
        self._closed = False

    @property
    def _open(self) -> JobParts:
        """Return the parts of a job that is not closed. ``RuntimeError``."""
        if self._closed:
            raise RuntimeError("the job is closed. Attach the model again")
        return self._parts

    @property
    def held_bytes(self) -> HeldBytes:
        """Count what this rank holds before any activation; as text a line for people."""
        return count_rank_bytes(self.model, self.states)

    def steps(self, plans: Plans, **options: Any) -> Steps[Work]:
        """Iterate over the steps of ``plans`` from ``next_step`` on, as ``runtime.steps`` does.

        ``plans``: a plan file that every rank can read, a job of a planning service
        (``http://HOST:PORT/v1/jobs/JOB``), a source, or plans made here, equal on every rank, each
        on request. ``options``: further ones of ``runtime.steps``. ``PlanError`` on every rank if
        a step cannot be had or run.
        """
        iterated = steps(
            plans,
            prepare=self._open.prepare,
            control_group=self.groups.control,
            start_step=self.next_step,
            **options,
        )
        self._steps = weakref.ref(iterated)
        return iterated

    def run(
        self,
        step: Step[Work],
        *,
        clip_norm: float | None = None,
        count_saved: bool = False,
        non_blocking: bool = False,
    ) -> StepResult:
        """Train on a step, on all ranks together: the model in training mode, then acknowledged.

        Steps the scheduler and calls the callbacks. ``count_saved``: whether the bytes are counted
        that micro-batches keep for backward. ``non_blocking``: the host does not wait for the
        device, and the step is acknowledged without its time; callbacks wait all the same.
        ``RankLost`` if another rank died.
        """
        attached, routed = self._open.attached, self._open.routed
        attached.train()
        rates = tuple(float(group["lr"]) for group in self.optimizer.param_groups)
        result = run_step(
            step.view,
            step.prepared,
            attached,
            self.states,
            self.optimizer,
            clip_norm=clip_norm,
            loss_of=self._open.loss_of if routed is None else routed,
            before=None if routed is None else routed.count,
            count_saved=count_saved,
            non_blocking=non_blocking,
        )
        attached.forget_call()
        if self.scheduler is not None:
            self.scheduler.step()
        measured_ms = 1e3 * result.compute_s if step.prepared and not non_blocking else None
        if (iterated := self._steps()) is not None:
            iterated.acknowledge(result.step, measured_ms)
        self.next_step, self._digest = result.step + 1, step.view.digest
        if not self._open.callbacks:  # a report waits for the optimizer's last kernel
            return result
        report = StepReport(
            step=result.step,
            loss=result.loss,
            gradient_norm=result.gradient_norm,
            learning_rates=rates,
            predicted_ms=sum(pipeline.predicted_ms for pipeline in step.view.pipelines),
            measured_ms=measured_ms,
            step_ms=1e3 * result.step_s,
            micro_batches=result.micro_batches,
        )
        for callback in self._open.callbacks:
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
        attached, rows = self._open.attached, self._open.loss_rows
        attached.eval()

        def by_parts(hidden: Tensor, micro_batch: MicroBatchWork) -> Tensor:
            parts = [(start, start + rows) for start in range(0, max(len(hidden), 1), rows)]
            logits = (attached.logits(hidden[a:b]) for a, b in parts)
            works = (micro_batch.rows(a, b) for a, b in parts)
            pairs = zip(logits, works, strict=True)
            return torch.cat(
                [convert_values(values_of(*pair), len(pair[1].tokens)) for pair in pairs]
            )

        values = token_values(
            step.prepared, attached, self.states, self.groups.control, values_of=by_parts
        )
        attached.forget_call()
        return values

    @contextmanager
    def evaluation(self) -> Iterator[nn.Module]:
        """Yield the transformers model with the values after the last step.

        With the attention that it was loaded with, and not the job's kernel, as batches may be
        padded and generation keeps keys; ``token_values`` evaluates with the job's. In evaluation
        mode and without gradients, to evaluate on other batches or to generate. All ranks enter it
        together, between steps; inside, each rank works independently. If experts are split, a
        rank's calls need those of its block, which take part when they leave: no rank waits for
        another by other means inside.
        """
        attached, experts = self._open.attached, self._open.experts
        self.states.materialize()
        attached.lm.set_attn_implementation(attached.own_attention)
        attached.eval()
        try:
            with torch.no_grad(), nullcontext() if experts is None else experts.evaluate():
                yield self.model
        finally:
            attached.lm.set_attn_implementation(IMPLEMENTATION)

    def save_pretrained(self, folder: str | os.PathLike[str], **options: Any) -> None:
        """Write the model with its ``save_pretrained``, with the values after the last step.

        All ranks call it; the first writes, of split experts a layer's at a time. Of a model
        wrapped by peft, its adapters.
        """
        experts, attached = self._open.experts, self._open.attached
        with self.evaluation():
            if experts is not None and attached.lm is self.model:
                save_split_model(folder, attached.lm, experts, self.groups.control, options)
            elif self.rank == 0:
                writer: Any = self.model
                writer.save_pretrained(folder, state_dict=copy_state(self.model), **options)
        with communicating("saving the model"):
            dist.barrier(group=self.groups.control)

    def save_checkpoint(
        self, folder: str | os.PathLike[str], user: Mapping[str, Any] | None = None
    ) -> Path:
        """Write what ``resume`` goes on from: states, optimizer, scheduler, random numbers.

        ``user``: anything else, of tensors, numbers, texts, lists and mappings. All ranks call it,
        with the same ``user``.
        """
        extra = progress(
            self.states.device,
            self.optimizer,
            self.scheduler,
            user,
            self._parts.named,
            self.groups.control,
        )
        cursor = Cursor(self.next_step, self._digest)
        return save(folder, cursor, self.states, self.optimizer, self.groups.control, extra=extra)

    def resume(self, folder: str | os.PathLike[str]) -> Mapping[str, Any] | None:
        """Go on from the newest whole checkpoint in ``folder``; return its ``user`` state.

        None if there is no checkpoint, or it has none. All ranks call it, before ``steps``. With
        another number of ranks, new ones keep the random numbers that they have. ``ValueError`` on
        every rank if the optimizer has a group of parameters that had no options, or several.
        """
        cursor = restore(folder, self.states, self.optimizer, self.groups.control)
        if cursor is None:
            return None
        self.next_step, self._digest = cursor.next_step, cursor.last_digest
        if cursor.extra is None:
            return None
        return restore_progress(
            cursor.extra,
            self.states.device,
            self.optimizer,
            self.scheduler,
            self._parts.named,
            self.groups.control,
            saved_by=count_extra(folder, cursor.next_step),
        )

    def close(self) -> None:
        """End the job, after its last call; all ranks call it.

        The model has the values after the last step and its former attention, and can be attached
        again, unless its experts are split. The groups that ``attach`` made are destroyed. A closed
        job stays closed.
        """
        if self._closed:
            return
        self._closed = True
        self.states.close()
        if self.states.device.type == "cuda":
            torch.cuda.synchronize(self.states.device)
        if self._parts.experts is None:
            self._parts.attached.lm.set_attn_implementation(self._parts.attached.own_attention)
        dist.barrier(group=self.groups.control)
        self._parts.close_groups()
