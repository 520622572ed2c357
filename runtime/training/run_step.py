"""One training step of a plan: all-gather, micro-batches, reduce-scatter, clip, update.

A trainer's loop can do the same as ``run_step``, in this order, with the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.data.micro_batch import MicroBatchWork
from seqplan.runtime.errors import RankLost
from seqplan.runtime.losses.token_losses import LossOf, label_loss, loss_divisor
from seqplan.runtime.saved_tensors import SavedBytes
from seqplan.runtime.states.optimizers import check_optimizer
from seqplan.runtime.states.sharded_states import ShardedStates
from seqplan.runtime.states.unit_states import UnitStates
from seqplan.runtime.stopwatch import Stopwatch

CLIP_EPSILON = 1e-6
"""Added to the norm that gradients are divided by, as torch's ``clip_grad_norm_`` does."""

BeforeMicroBatches = Callable[[RankView, Sequence[MicroBatchWork], float], None]
"""Called ahead of a step's micro-batches, with what their losses are divided by."""


@dataclass(frozen=True, slots=True)
class MicroBatchReport:
    """A micro-batch's recomputation mode, and the bytes that it kept for backward on this rank.

    ``saved_bytes`` on the device, ``offloaded_bytes`` in host memory.
    """

    recompute: str | None
    saved_bytes: int
    offloaded_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step's outcome, the same on every rank but for ``compute_s`` and ``micro_batches``.

    ``loss``: mean over the labels of the global batch, each by its weight; ``gradient_norm``: of
    the whole gradient, before clipping; ``compute_s``: seconds this rank's device spent on its
    micro-batches, with waits for peers within them but for those for parameters; ``whole_step``: of
    the step here, the optimizer's included; ``micro_batches``: of this rank in its order, if their
    bytes are counted.
    """

    step: int
    loss: float
    gradient_norm: float
    compute_s: float
    whole_step: Stopwatch
    micro_batches: tuple[MicroBatchReport, ...] = ()

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
    work: Sequence[MicroBatchWork],
    model: nn.Module,
    states: ShardedStates,
    optimizer: torch.optim.Optimizer,
    *,
    clip_norm: float | None = None,
    loss_of: LossOf = label_loss,
    before: BeforeMicroBatches | None = None,
    count_saved: bool = False,
) -> StepResult:
    """Run a rank's part of a step and update the parameters it owns.

    Called by every rank, also by those without work. ``model(tokens, context)`` gives logits, or
    hidden states (``compute_chunked_loss``), and ``loss_of`` of them and the micro-batch a sum over
    tokens, which is divided once, by ``loss_divisor`` of the global batch. ``before`` is called on
    every rank when the parameters are on their way, with that divisor, for what a loss must know of
    the whole batch. ``clip_norm`` bounds the norm of the whole gradient. ``count_saved``: whether
    the bytes are counted that micro-batches keep for backward. ``RankLost`` if another rank died;
    ``ValueError`` if the model does not call seqplan's attention, or the optimizer needs whole
    parameters and the sharding is ``flat``.
    """
    try:
        return _run_step(
            view, work, model, states, optimizer, clip_norm, loss_of, before, count_saved
        )
    except RankLost as loss:
        raise loss.in_step(view.step) from None


def _run_step(
    view: RankView,
    work: Sequence[MicroBatchWork],
    model: nn.Module,
    states: ShardedStates,
    optimizer: torch.optim.Optimizer,
    clip_norm: float | None,
    loss_of: LossOf,
    before: BeforeMicroBatches | None,
    count_saved: bool,
) -> StepResult:
    whole_step = Stopwatch(states.device)
    check_optimizer(optimizer, states)
    divisor = loss_divisor(view, work, states)
    states.all_gather(view)
    total: Tensor | float = 0.0
    computing = states.stopwatch = Stopwatch(states.device)
    if before is not None:
        before(view, work, divisor)
    calls: int | None = None
    counter = SavedBytesCounter(
        [*model.parameters(), *model.buffers()] if count_saved else [], enabled=count_saved
    )
    for micro_batch in work:
        states.next_micro_batch()
        with counter.count(micro_batch.context.recompute):
            output = model(micro_batch.tokens, micro_batch.context)
            calls = micro_batch.context.attention_calls(calls)
            loss = loss_of(output, micro_batch) / divisor
        states.backward(loss, last=micro_batch.last)
        total = total + loss.detach().double()
    computing.stop()
    states.reduce_scatter()
    norm, mean_loss = apply_gradients(states, optimizer, total, clip_norm)
    whole_step.stop()
    return StepResult(
        step=view.step,
        loss=mean_loss,
        gradient_norm=norm,
        compute_s=computing.seconds(),
        whole_step=whole_step,
        micro_batches=counter.report(),
    )


def apply_gradients(
    states: UnitStates,
    optimizer: torch.optim.Optimizer,
    loss: Tensor | float,
    clip_norm: float | None,
) -> tuple[float, float]:
    """Update the owned parameters with the summed gradients; the gradient's norm, the whole loss.

    ``loss``: this rank's part of it. Collective.
    """
    norm, whole_loss = states.gradient_norm_and_sum(loss)
    factor = 1.0 if clip_norm is None else clip_norm / (norm + CLIP_EPSILON)
    if factor < 1.0:
        states.scale_gradients(factor)
    optimizer.step()
    return norm, whole_loss
