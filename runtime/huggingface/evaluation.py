"""An attached model between steps: evaluation mode, and values of a step's tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.micro_batch import MicroBatchWork
from seqplan.runtime.huggingface.attached import AttachedModel
from seqplan.runtime.huggingface.attention import IMPLEMENTATION
from seqplan.runtime.huggingface.experts import AttachedExperts
from seqplan.runtime.states.sharded_states import ShardedStates
from seqplan.runtime.training.sequence_values import SequenceValues, token_values


@contextmanager
def evaluation_mode(
    model: nn.Module,
    attached: AttachedModel,
    states: ShardedStates,
    experts: AttachedExperts | None = None,
) -> Iterator[nn.Module]:
    """Yield ``model`` with its original attention, current values and no gradients.

    Collective, between steps. Split experts stay split: ranks take part in each other's calls.
    """
    states.materialize()
    attached.lm.set_attn_implementation(attached.own_attention)
    attached.eval()
    try:
        with torch.no_grad(), nullcontext() if experts is None else experts.evaluate():
            yield model
    finally:
        attached.lm.set_attn_implementation(IMPLEMENTATION)


def compute_token_values(
    work: Iterable[MicroBatchWork],
    attached: AttachedModel,
    states: ShardedStates,
    groups: Communicators,
    rows: int,
    values_of: Callable[[Tensor, MicroBatchWork], Tensor],
) -> list[SequenceValues]:
    """Compute ``values_of`` logits for each token of a step, of ``rows`` tokens at a time."""
    attached.eval()

    def by_parts(hidden: Tensor, micro_batch: MicroBatchWork) -> Tensor:
        starts = range(0, max(len(hidden), 1), rows)
        parts = [(start, start + rows) for start in starts]
        values = [values_of(attached.logits(hidden[a:b]), micro_batch.rows(a, b)) for a, b in parts]
        return torch.cat(values)

    values = token_values(work, attached, states, groups.control, values_of=by_parts)
    attached.forget_call()
    return values
