"""Losses as sums over tokens, and what they are divided by: one number for the global batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.data.micro_batch import MicroBatchWork
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


def log_probabilities(logits: Tensor, micro_batch: MicroBatchWork) -> Tensor:
    """Compute the log-probability of each row's label: (local tokens,), 0 without label."""
    exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return -nn.functional.cross_entropy(
        logits.to(exact), micro_batch.labels, ignore_index=NO_LABEL, reduction="none"
    )


def compute_chunked_loss(head: Callable[[Tensor], Tensor], loss_of: LossOf, rows: int) -> LossOf:
    """Return ``loss_of`` for hidden states, logits of ``rows`` tokens at a time.

    ``head`` gives logits (tokens, vocabulary) of hidden states (tokens, hidden), again in backward:
    at no time are there logits of more than ``rows`` tokens. ``ValueError`` where ``rows`` < 1.
    """
    if rows < 1:
        raise ValueError(f"a chunk has at least 1 row, not {rows}")

    def loss(hidden: Tensor, micro_batch: MicroBatchWork) -> Tensor:
        if len(hidden) <= rows:
            return loss_of(head(hidden), micro_batch)

        def of_chunk(hidden: Tensor, start: int) -> Tensor:
            return loss_of(head(hidden), micro_batch.rows(start, start + rows))

        parts: list[Tensor] = [
            checkpoint(of_chunk, hidden[start : start + rows], start, use_reentrant=False)
            for start in range(0, len(hidden), rows)
        ]
        return torch.stack(parts).sum()

    return loss


def loss_divisor(view: RankView, work: Sequence[MicroBatchWork], states: UnitStates) -> float:
    """Return what every loss of the step is divided by, once: the weights of all its labels.

    Where the data names no targets it is the plan's ``loss_tokens``. Collective; every rank calls
    it, also without work. ``PlanError`` on every rank if the plan states a number of loss tokens
    that the data does not have.
    """
    named, labels, weight, sequences = states.sums(
        [
            float(any(batch.weights is not None for batch in work)),
            float(sum(batch.labeled for batch in work)),
            sum(batch.weight for batch in work),
            float(sum(batch.sequences_ended for batch in work)),
        ]
    )
    if not named:
        return float(max(view.loss_tokens, 1))
    # Without the batch's count, a plan counts the tokens that have a successor.
    if view.loss_tokens not in (int(labels), view.tokens - int(sequences)):
        raise PlanError(
            f"step {view.step}: the plan has {view.loss_tokens} loss tokens, the data "
            f"{int(labels)} labels; plan with the batch's loss_tokens, or with none"
        )
    return weight if weight > 0 else 1.0
