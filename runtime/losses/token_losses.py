"""Losses as sums over tokens, and what they are divided by: one number for the global batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.data.micro_batch import MicroBatchWork
from seqplan.runtime.data.prepared_step import PreparedStep
from seqplan.runtime.data.tokens import NO_LABEL
from seqplan.runtime.errors import PlanError
from seqplan.runtime.states.unit_states import UnitStates

LossOf = Callable[[Tensor, MicroBatchWork], Tensor]
"""From what the model gives, row by row, and the micro-batch to a scalar: a sum over its rows."""


def token_loss(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Sum of the cross-entropy of the labeled tokens; label −100 counts nothing.

    logits (tokens, vocabulary), labels and ``weights`` (tokens,), 1 if None. A sum, not a mean:
    the caller divides once by what the global batch counts, so that every token of it weighs the
    same wherever it was computed.
    """
    exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
    how = "sum" if weights is None else "none"
    losses = nn.functional.cross_entropy(
        logits.to(exact), labels, ignore_index=NO_LABEL, reduction=how
    )
    return losses if weights is None else (losses * weights.to(exact)).sum()


def label_loss(logits: Tensor, micro_batch: MicroBatchWork) -> Tensor:
    """Sum of the cross-entropy of a micro-batch's labels, each by its weight."""
    return token_loss(logits, micro_batch.labels, micro_batch.weights)


def is_label_loss(loss_of: LossOf) -> bool:
    """Return whether a loss is ``label_loss``, also in chunks or with routers' loss."""
    return inspect.unwrap(loss_of) is label_loss


def log_probabilities(logits: Tensor, micro_batch: MicroBatchWork) -> Tensor:
    """Compute the log-probability of each row's label: (local tokens,), 0 without label."""
    exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return -nn.functional.cross_entropy(
        logits.to(exact), micro_batch.labels, ignore_index=NO_LABEL, reduction="none"
    )


def check_scalar(loss: object) -> Tensor:
    """Return a loss that is a scalar. ``TypeError`` if it is no tensor, else ``ValueError``."""
    if not isinstance(loss, Tensor):
        raise TypeError(f"loss_of: returned {type(loss).__name__}. Return a scalar tensor")
    if loss.ndim:
        raise ValueError(f"loss_of: returned shape {tuple(loss.shape)}. Return a sum over tokens")
    return loss


def compute_chunked_loss(head: Callable[[Tensor], Tensor], loss_of: LossOf, rows: int) -> LossOf:
    """Return ``loss_of`` for hidden states, logits of ``rows`` tokens at a time.

    ``head`` gives logits (tokens, vocabulary) of hidden states (tokens, hidden), again in backward:
    at no time are there logits of more than ``rows`` tokens. ``ValueError`` where ``rows`` < 1.
    """
    if rows < 1:
        raise ValueError(f"a chunk has at least 1 row, not {rows}")

    @wraps(loss_of)
    def loss(hidden: Tensor, micro_batch: MicroBatchWork) -> Tensor:
        if len(hidden) <= rows:
            return loss_of(head(hidden), micro_batch)

        def of_chunk(hidden: Tensor, start: int) -> Tensor:
            return check_scalar(loss_of(head(hidden), micro_batch.rows(start, start + rows)))

        parts: list[Tensor] = [
            checkpoint(of_chunk, hidden[start : start + rows], start, use_reentrant=False)
            for start in range(0, len(hidden), rows)
        ]
        return torch.stack(parts).sum()

    return loss


class LossDivisor:
    """Divisor of all losses of a step: the weights of its labels, or the plan's ``loss_tokens``.

    Made by all ranks together. With data that has targets, ranks add their counts up on the device
    and the host does not wait: read ``check`` later. ``labels``: of this rank, if the loss sums
    them all; without targets, ``check_labels`` compares their sum with the plan's number.
    """

    def __init__(
        self,
        view: RankView,
        work: PreparedStep[Any],
        states: UnitStates,
        *,
        labels: int | None = None,
    ) -> None:
        check_prepared(work)
        self._view = view
        self.labels = None if work.has_targets else labels
        self._sums: Tensor | None = None
        if work.has_targets:
            batches = list(work)
            self._sums = states.start_sums(
                [
                    float(sum(batch.labeled for batch in batches)),
                    sum(batch.weight for batch in batches),
                    float(sum(batch.sequences_ended for batch in batches)),
                ]
            )

    def divide(self, loss: Tensor) -> Tensor:
        """Divide a loss, a scalar, in its dtype."""
        check_scalar(loss)
        if self._sums is None:
            return loss / float(max(self._view.loss_tokens, 1))
        weight = self._sums[1]
        return loss / torch.where(weight > 0, weight, 1.0).to(loss.dtype)

    def check(self) -> float:
        """Return the divisor; ``PlanError`` if the plan's number of loss tokens is wrong.

        Waits for the device if the data has targets.
        """
        view = self._view
        if self._sums is None:
            return float(max(view.loss_tokens, 1))
        labels, weight, sequences = self._sums.tolist()
        # Without the batch's count, a plan counts the tokens that have a successor.
        if view.loss_tokens != view.tokens - int(sequences):
            self._compare(labels)
        return float(weight) if weight > 0 else 1.0

    def check_labels(self, labels: float) -> None:
        """Compare all ranks' ``labels`` with the plan's number of loss tokens. ``PlanError``."""
        if self.labels is not None:
            self._compare(labels)

    def _compare(self, labels: float) -> None:
        view = self._view
        if view.loss_tokens != int(labels):
            raise PlanError(
                f"step {view.step}: the plan has {view.loss_tokens} loss tokens, the data "
                f"{int(labels)} labels; plan with the batch's loss_tokens, or with none"
            )


def check_prepared(work: object) -> None:
    """Raise ``TypeError`` if a step's work is not as its preparer returned it."""
    if not isinstance(work, PreparedStep):
        raise TypeError(
            f"work must be the preparer's result, also if it is empty, not {type(work).__name__}"
        )


def loss_divisor(view: RankView, work: PreparedStep[MicroBatchWork], states: UnitStates) -> float:
    """Return the divisor of every loss of the step: the weights of all its labels.

    If the data names no targets it is the plan's ``loss_tokens``. Collective; every rank calls
    it, also without work. ``PlanError`` on every rank if the plan states a number of loss tokens
    that the data does not have.
    """
    return LossDivisor(view, work, states).check()
