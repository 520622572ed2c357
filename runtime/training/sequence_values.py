"""A value for each token, such as its log-probability: computed under a plan, gathered whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn

from seqplan.runtime.communicators import gather_objects
from seqplan.runtime.data.micro_batch import MicroBatchWork
from seqplan.runtime.losses.token_losses import log_probabilities
from seqplan.runtime.states.sharded_states import ShardedStates


class SequenceValues(NamedTuple):
    """A sample's id and a value for each of its planned tokens: float32 or float64 (tokens,).

    Aligned as targets are: entry i belongs to token i as its target, 0 for the first.
    """

    id: int
    values: npt.NDArray[np.floating]


_Piece = tuple[int, int, int, int, npt.NDArray[np.floating]]
"""Of a sequence: position, id and length, the first token, and the values from there on."""


def token_values(
    work: Iterable[MicroBatchWork],
    model: nn.Module,
    states: ShardedStates,
    group: dist.ProcessGroup,
    *,
    values_of: Callable[[Tensor, MicroBatchWork], Tensor] = log_probabilities,
) -> list[SequenceValues]:
    """Compute ``values_of(model's output, micro-batch)``, (local tokens,), of a step's sequences.

    With the parameters as they are after the last step, without gradients, in the model's present
    mode. Every rank calls it, also without work, and gets all sequences, whole, in the order of the
    step's batch. ``group`` is any CPU group. ``RankLost`` if another rank died; ``ValueError`` for
    values of another shape.
    """
    states.materialize()
    pieces: list[_Piece] = []
    with torch.no_grad():
        for micro_batch in work:
            micro_batch.context.forget_calls()
            output = model(micro_batch.tokens, micro_batch.context)
            micro_batch.context.attention_calls()
            rows = len(micro_batch.tokens)
            values = convert_values(values_of(output, micro_batch), rows).cpu().numpy()
            at = 0
            for share in micro_batch.shares:
                for start, stop in share.ranges:
                    targets = min(stop + 1, share.length) - (start + 1)
                    part = values[at : at + targets]
                    pieces.append((share.position, share.id, share.length, start + 1, part))
                    at += stop - start
    gathered = gather_objects(pieces, group, "gathering the values of the tokens")
    whole: dict[int, SequenceValues] = {}
    for position, id, length, start, part in (piece for rank in gathered for piece in rank):
        if position not in whole:
            whole[position] = SequenceValues(id, np.zeros(length, part.dtype))
        whole[position].values[start : start + len(part)] = part
    return [whole[position] for position in sorted(whole)]


def convert_values(values: object, rows: int) -> Tensor:
    """Return values of rows, half precision in float32. ``TypeError`` or ``ValueError``."""
    if not isinstance(values, Tensor):
        raise TypeError(f"values_of: returned {type(values).__name__}. Return a tensor")
    if values.shape != (rows,):
        raise ValueError(
            f"values_of: returned shape {tuple(values.shape)} for {rows} rows. "
            "Return a value of each row"
        )
    if values.is_complex():
        raise TypeError("values_of: returned complex values. Return real ones")
    values = values.detach()
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
