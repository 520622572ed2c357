"""A rank's part of a micro-batch as a model gets it: tokens, labels and the attention's context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from seqplan.plans.views.micro_batch_view import SequenceShare
from seqplan.runtime.sequence_parallel.context import AttentionContext


@dataclass(frozen=True, slots=True)
class MicroBatchWork:
    """One micro-batch on this rank.

    ``tokens`` and ``labels``: int64 (local tokens,), labels shifted within each document and −100
    at its end; ``last``: the rank's last of the step, after which no gradient changes, if
    gradients may then leave during its backward (``can_overlap_reduction``), else never. Under
    expert parallelism some may have no tokens and no sequences (``is_empty``). If the
    data has targets: ``weights`` (local tokens,) of the labels, float64, 0 without one, and
    ``extras`` by name, (local tokens, …), both shifted as labels are. ``shares``: the sequences,
    and what the rank holds of each.
    """

    tokens: Tensor
    labels: Tensor
    context: AttentionContext
    last: bool
    weights: Tensor | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    shares: tuple[SequenceShare, ...] = ()
    labeled: int = 0
    weight: float = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether it is a micro-step of expert parallelism in which this rank has no tokens."""
        return not self.context.lengths

    @property
    def sequences_ended(self) -> int:
        """Count the sequences whose last token is held here."""
        return sum(share.is_ended for share in self.shares)

    def rows(self, start: int, stop: int) -> MicroBatchWork:
        """Return the work of rows ``[start, stop)``; the context is of all."""
        part = slice(start, stop)
        return replace(
            self,
            tokens=self.tokens[part],
            labels=self.labels[part],
            weights=None if self.weights is None else self.weights[part],
            extras={name: values[part] for name, values in self.extras.items()},
        )
