"""The products, embedding and loss of one tp rank, with sequence parallelism between them.

Between products tp rank t holds rows ``[t·c, (t+1)·c)`` of the hidden states, c = ⌈tokens / tp⌉,
the last of them padding (Korthikanti et al., arXiv 2205.05198): backward keeps 1/tp
of all. A column-parallel product gathers its input, and gathers it again in backward instead of
keeping it; a row-parallel product's sums are scattered. Without tensor parallelism all of it is
the plain operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seqplan.runtime.recomputation import keep_result
from seqplan.runtime.tensor_parallel.groups import TensorGroup


@dataclass(frozen=True, slots=True)
class TensorSplit:
    """A micro-batch's tensor parallelism: ``tokens`` are shared by the ranks of ``group``.

    None if tp is 1.
    """

    tokens: int
    group: TensorGroup | None = None

    @property
    def rows(self) -> int:
        """Rows of a hidden state here, padding included."""
        return self.tokens if self.group is None else -(-self.tokens // self.group.degree)

    @property
    def token_rows(self) -> int:
        """Rows here that are tokens, not padding."""
        first = 0 if self.group is None else self.group.index * self.rows
        return min(self.rows, max(0, self.tokens - first))

    def column(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Multiply hidden states here by this rank's rows of a weight (outputs, inputs).

        (rows, inputs) → (tokens, this rank's outputs).
        """
        if self.group is None:
            return nn.functional.linear(hidden, weight)
        result: Tensor = _GatheredLinear.apply(hidden, weight, self.group, self.tokens)  # type: ignore[no-untyped-call]
        return result

    def row(self, features: Tensor, weight: Tensor) -> Tensor:
        """Multiply all tokens' features by this rank's weight columns, and sum over tp.

        (tokens, this rank's inputs) · (outputs, this rank's inputs) → (rows, outputs).
        """
        if self.group is None:
            return nn.functional.linear(features, weight)
        result: Tensor = _ScatteredLinear.apply(features, weight, self.group, self.rows)  # type: ignore[no-untyped-call]
        return result

    def embed(self, tokens: Tensor, weight: Tensor, first: int) -> Tensor:
        """Look up tokens (tokens,) in this rank's embedding rows, from ``first`` on.

        → (rows, hidden).
        """
        if self.group is None:
            return nn.functional.embedding(tokens, weight)
        foreign = (tokens < first) | (tokens >= first + weight.shape[0])
        local = (tokens - first).masked_fill(foreign, 0)
        rows = nn.functional.embedding(local, weight).masked_fill(foreign[:, None], 0.0)
        padded = nn.functional.pad(rows, (0, 0, 0, self.rows * self.group.degree - self.tokens))
        result: Tensor = _Scattered.apply(padded, self.group)  # type: ignore[no-untyped-call]
        return result

    def loss(self, logits: Tensor, labels: Tensor, first: int) -> Tensor:
        """Sum the cross-entropy of labeled tokens, of which −100 counts nothing.

        ``logits``: (tokens, this rank's part of the vocabulary, from ``first`` on). The sum is the
        same on every rank of tp: one of them counts it. Two numbers a token cross the ranks.
        """
        result: Tensor = _VocabularyLoss.apply(logits, labels, first, self.group)  # type: ignore[no-untyped-call]
        return result


def _product(left: Tensor, right: Tensor, rows: int) -> Tensor:
    """Multiply two matrices; ``rows``: of the result, those beyond the product's are zero."""
    result = left.new_empty(rows, right.shape[1])
    torch.mm(left, right, out=result[: left.shape[0]])
    result[left.shape[0] :] = 0.0
    return result


class _GatheredLinear(torch.autograd.Function):
    """A product of gathered rows; only the rows here are kept, and gathered again in backward.

    Both collectives of backward overlap with its products.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, group: TensorGroup, tokens: int
    ) -> Tensor:
        ctx.group, ctx.tokens = group, tokens
        ctx.save_for_backward(hidden, weight)
        (result,) = keep_result(
            "product",
            lambda: (nn.functional.linear(group.all_gather(hidden)()[:tokens], weight),),
        )
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        group: TensorGroup = ctx.group
        (gradient,) = gradients
        gathered = group.all_gather(hidden)
        partial = _product(gradient, weight, hidden.shape[0] * group.degree)
        whole = gathered()[: ctx.tokens]
        scattered = group.reduce_scatter(partial)
        of_weight = gradient.t() @ whole
        return scattered(), of_weight, None, None


class _ScatteredLinear(torch.autograd.Function):
    """Row-parallel product, reduce-scattered: each rank keeps ``rows`` rows of the sum."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, group: TensorGroup, rows: int
    ) -> Tensor:
        ctx.group = group
        ctx.save_for_backward(features, weight)
        (result,) = keep_result(
            "product",
            lambda: (group.reduce_scatter(_product(features, weight.t(), rows * group.degree))(),),
        )
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        features, weight = ctx.saved_tensors
        group: TensorGroup = ctx.group
        whole = group.all_gather(gradients[0])()[: features.shape[0]]
        # Transposed, as such a weight is stored, so that adding to it copies nothing.
        return whole @ weight, (features.t() @ whole).t(), None, None


class _Scattered(torch.autograd.Function):
    """Partial sums of all rows → sums of the rows here."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor, group: TensorGroup) -> Tensor:
        ctx.group = group
        return group.reduce_scatter(partial)()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        group: TensorGroup = ctx.group
        return group.all_gather(gradients[0])(), None


class _VocabularyLoss(torch.autograd.Function):
    """One all-reduce of maxima, one of (Σ exp, target's score) together."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, first: int, group: TensorGroup | None
    ) -> Tensor:
        exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
        counted = labels >= 0
        foreign = (labels < first) | (labels >= first + logits.shape[1])
        local = (labels - first).masked_fill(foreign, 0)
        largest = logits.amax(-1).to(exact)
        if group is not None:
            largest = group.all_reduce(largest, maximum=True)
        shifted = torch.sub(logits, largest[:, None])  # in the exact dtype
        target = shifted.gather(1, local[:, None]).squeeze(1).masked_fill(foreign, 0.0)
        exponentials = shifted.exp_()
        sums = torch.stack((exponentials.sum(-1), target), dim=1)
        if group is not None:
            sums = group.all_reduce(sums)
        loss = ((sums[:, 0].log() - sums[:, 1]) * counted).sum()
        ctx.save_for_backward(exponentials, sums[:, 0], local, foreign, counted)
        ctx.dtype = logits.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        exponentials, sums, local, foreign, counted = ctx.saved_tensors
        scale = counted * gradients[0]
        result = exponentials * (scale / sums)[:, None]
        result.scatter_add_(1, local[:, None], -(scale * ~foreign)[:, None])
        return result.to(ctx.dtype), None, None, None
