"""One training step of a plan: all-gather, micro-batches, reduce-scatter, clip, update.

A trainer's loop can do the same as ``run_step``, in this order, with the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.data.micro_batch import MicroBatchWork
from seqplan.runtime.data.prepared_step import PreparedStep
from seqplan.runtime.errors import RankLost
from seqplan.runtime.experts.micro_steps import align_modes
from seqplan.runtime.losses.token_losses import LossDivisor, LossOf, is_label_loss, label_loss
from seqplan.runtime.saved_tensors import SavedBytes
from seqplan.runtime.states.optimizers import check_optimizer
from seqplan.runtime.states.sharded_states import ShardedStates
from seqplan.runtime.states.unit_states import UnitStates
from seqplan.runtime.stopwatch import Stopwatch

CLIP_EPSILON = 1e-6
"""Added to the norm that gradients are divided by, as torch's ``clip_grad_norm_`` does."""

BeforeMicroBatches = Callable[[RankView, Sequence[MicroBatchWork], float], None]
"""Called ahead of a step's micro-batches, with the divisor of their losses."""


@dataclass(frozen=True, slots=True)
class MicroBatchReport:
    """A micro-batch's recomputation mode, and the bytes that it kept for backward on this rank.

    ``saved_bytes`` on the device, ``offloaded_bytes`` in host memory.
    """

    recompute: str | None
    saved_bytes: int
    offloaded_bytes: int = 0


class StepTotals:
    """A step's whole loss and its gradient's norm before clipping, the same on every rank.

    On the device until one is read. ``divisor``: of the losses, checked before.
    """

    def __init__(self, sums: Tensor, divisor: LossDivisor | None = None) -> None:
        self.squares, self._sums, self._divisor = sums[0], sums, divisor

    @cached_property
    def values(self) -> tuple[float, float]:
        """Loss and norm; ``PlanError`` if the plan's number of loss tokens is wrong."""
        if self._divisor is not None:
            self._divisor.check()
        squares, loss, labels = self._sums.tolist()
        if self._divisor is not None:
            self._divisor.check_labels(labels)
        return loss, squares**0.5


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step's outcome, the same on every rank but for ``compute_s`` and ``micro_batches``.

    ``computing``: of this rank's micro-batches; ``whole_step``: of the step here, the optimizer's
    included; ``micro_batches``: of this rank in its order, if their bytes are counted.
    """

    step: int
    totals: StepTotals
    computing: Stopwatch
    whole_step: Stopwatch
    micro_batches: tuple[MicroBatchReport, ...] = ()

    @property
    def loss(self) -> float:
        """Mean over the labels of the global batch, each by its weight."""
        return self.totals.values[0]

    @property
    def gradient_norm(self) -> float:
        """Norm of the whole gradient, before clipping."""
        return self.totals.values[1]

    @property
    def compute_s(self) -> float:
        """Seconds this rank's device spent on its micro-batches.

        With waits for peers within them, without those for parameters.
        """
        return self.computing.seconds()

    @property
    def step_s(self) -> float:
        """Seconds of the whole step here; on CUDA waits for the optimizer's last kernel."""
        return self.whole_step.seconds()


class SavedBytesCounter:
    """Counts what each micro-batch of a step keeps for backward, unless ``enabled`` is False.

    ``parameters``: those held here, which are not counted.
    """

    def __init__(self, parameters: Sequence[Tensor], *, enabled: bool) -> None:
        self._parameters, self._enabled = parameters, enabled
        self._counts: list[tuple[str | None, SavedBytes]] = []

    def count(self, recompute: str | None) -> AbstractContextManager[None]:
        """Count the forward of a micro-batch under a mode."""
        if not self._enabled:
            return nullcontext()
        self._counts.append((recompute, SavedBytes(self._parameters)))
        return self._counts[-1][1].hooks()

    def report(self) -> tuple[MicroBatchReport, ...]:
        """Return the counts so far, in order."""
        return tuple(
            MicroBatchReport(mode, saved.total, saved.offloaded) for mode, saved in self._counts
        )


def run_step(
    view: RankView,
    work: PreparedStep[MicroBatchWork],
    model: nn.Module,
    states: ShardedStates,
    optimizer: torch.optim.Optimizer,
    *,
    clip_norm: float | None = None,
    loss_of: LossOf = label_loss,
    before: BeforeMicroBatches | None = None,
    count_saved: bool = False,
    non_blocking: bool = False,
) -> StepResult:
    """Run a rank's part of a step and update the parameters it owns.

    Called by every rank, also by those without work. ``model(tokens, context)`` gives logits, or
    hidden states (``compute_chunked_loss``), and ``loss_of`` of them and the micro-batch a sum over
    tokens, which is divided once, by ``loss_divisor`` of the global batch. ``before`` is called on
    every rank when the parameters are on their way, with that divisor, for what a loss must know of
    the whole batch. ``clip_norm`` bounds the norm of the whole gradient. ``count_saved``: whether
    the bytes are counted that micro-batches keep for backward. ``non_blocking``: see
    ``apply_gradients``. ``RankLost`` if another rank died; ``PlanError``, before the update, if the
    plan's number of loss tokens is wrong; ``ValueError`` if the model does not call seqplan's
    attention, for what ``check_update`` rejects, or if a step that reduces after each micro-batch,
    which waits for the ranks' counts, is to be ``non_blocking``.
    """
    try:
        whole_step = Stopwatch(states.device)
        check_update(optimizer, states, clip_norm)
        if non_blocking:
            states.check_non_blocking()
        labels = sum(batch.labeled for batch in work) if is_label_loss(loss_of) else None
        divisor = LossDivisor(view, work, states, labels=labels)
        states.all_gather(view)
        total: Tensor | float = 0.0
        computing = states.stopwatch = Stopwatch(states.device)
        batches = _align_recomputation(view, list(work), states)
        if before is not None:
            before(view, batches, divisor.check())
        calls: int | None = None
        counter = SavedBytesCounter(
            [*model.parameters(), *model.buffers()] if count_saved else [], enabled=count_saved
        )
        for micro_batch in batches:
            states.next_micro_batch()
            context = micro_batch.context
            context.forget_calls()
            with nullcontext() if micro_batch.is_empty else counter.count(context.recompute):
                output = model(micro_batch.tokens, context)
                calls = context.attention_calls(calls)
                loss = divisor.divide(loss_of(output, micro_batch))
            del output  # logits, which backward does not read
            states.backward(loss, last=micro_batch.last)
            total = total + loss.detach().double()
        computing.stop()
        states.reduce_scatter()
        totals = apply_gradients(
            states, optimizer, total, clip_norm, divisor=divisor, non_blocking=non_blocking
        )
        whole_step.stop()
    except RankLost as loss_of_rank:
        raise loss_of_rank.in_step(view.step) from None
    return StepResult(view.step, totals, computing, whole_step, counter.report())


def _align_recomputation(
    view: RankView, batches: Sequence[MicroBatchWork], states: ShardedStates
) -> list[MicroBatchWork]:
    """Give micro-batches the recomputation that they have in common with those of other ranks."""
    local = [batch.context.recompute for batch in batches if not batch.is_empty]
    modes = align_modes(view, local, states.start_sums)
    return [
        batch
        if batch.context.recompute == mode
        else replace(batch, context=replace(batch.context, recompute=mode))
        for batch, mode in zip(batches, modes, strict=True)
    ]


def check_update(
    optimizer: torch.optim.Optimizer, states: UnitStates, clip_norm: float | None
) -> None:
    """Reject updates that would be wrong, before a step computes. ``ValueError``."""
    check_optimizer(optimizer, states)
    if clip_norm is not None and not (isinstance(clip_norm, Real) and clip_norm > 0):
        raise ValueError(f"clip_norm: {clip_norm!r}. Give a number above 0, or None")


def apply_gradients(
    states: UnitStates,
    optimizer: torch.optim.Optimizer,
    loss: Tensor | float,
    clip_norm: float | None,
    *,
    divisor: LossDivisor | None = None,
    non_blocking: bool = False,
) -> StepTotals:
    """Update the owned parameters with the summed gradients; collective.

    ``loss``: this rank's part of it; ``divisor``: of the losses, checked before the update.
    ``non_blocking``: the host does not wait for the device; loss and norm are read, and the divisor
    is checked, on request.
    """
    labels = 0 if divisor is None else divisor.labels or 0
    totals = StepTotals(states.start_norm_and_sum(loss, labels), divisor)
    if non_blocking:
        if clip_norm is not None:
            factor = clip_norm / (totals.squares.sqrt() + CLIP_EPSILON)
            states.scale_gradients(factor.clamp(max=1.0))
    else:
        _, norm = totals.values
        factor_of_norm = 1.0 if clip_norm is None else clip_norm / (norm + CLIP_EPSILON)
        if factor_of_norm < 1.0:
            states.scale_gradients(factor_of_norm)
    with record_function("seqplan::optimizer"):
        optimizer.step()
    return totals
