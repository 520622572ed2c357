"""Tensor parallelism of the measured layers, as Megatron splits them (arXiv 1909.08053, §3).

Query, key, value, gate and up are split by columns, output and down by rows, embedding and head by
the vocabulary. A block's input is copied to all ranks (all-reduce of its gradient in backward), its
output is summed over them (all-reduce in forward), so that a layer has two all-reduces each way:
the volume of the all-gathers and reduce-scatters of Megatron's sequence parallelism, which is not
used: norms and residuals are on every rank.

torch's own ``parallelize_module`` would do the same through DTensor, whose dispatch costs as much
again as a small layer on a CPU and would be measured as launch overhead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seqplan.runtime.training.model import DecoderLayer, token_loss


@dataclass(frozen=True, slots=True)
class TensorRanks:
    """The tp group that a rank is in: its ``index`` of ``degree``; no group where that is 1."""

    index: int = 0
    degree: int = 1
    group: dist.ProcessGroup | None = None

    def part(self, size: int) -> slice:
        """Return this rank's part of ``size`` rows, split as evenly as they go."""
        return slice(
            self.index * size // self.degree,
            (self.index + 1) * size // self.degree,
        )


def tensor_ranks(degree: int, rank: int, world_size: int) -> TensorRanks | None:
    """Make the group of ``degree`` neighbouring ranks that ``rank`` is in.

    Every rank of the job calls it in the same order of degrees. None on a rank left over where the
    degree does not divide the world.
    """
    mine = None
    for first in range(0, world_size - degree + 1, degree):
        ranks = list(range(first, first + degree))
        group = dist.new_group(ranks)
        if rank in ranks:
            mine = TensorRanks(rank - first, degree, group)
    return mine


class _Copied(torch.autograd.Function):
    """Input of a column-parallel product: itself, its gradient summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # Fresh from the product's own backward, so that it may be summed in place.
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _Summed(torch.autograd.Function):
    """Output of a row-parallel product: summed over the ranks in place, its gradient as it is."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.mark_dirty(tensor)
        dist.all_reduce(tensor, group=group)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0], None


class ColumnParallel(nn.Module):
    """A product whose output's columns are split; ``weight``: (this rank's columns, input)."""

    def __init__(self, weight: Tensor, ranks: TensorRanks) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())
        self._ranks = ranks

    def forward(self, tensor: Tensor) -> Tensor:
        """Multiply (tokens, input) → (tokens, this rank's columns)."""
        if self._ranks.degree > 1:
            tensor = _Copied.apply(tensor, self._ranks.group)  # type: ignore[no-untyped-call]
        return nn.functional.linear(tensor, self.weight)


class RowParallel(nn.Module):
    """A product whose input's columns are split; ``weight``: (output, this rank's columns)."""

    def __init__(self, weight: Tensor, ranks: TensorRanks) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())
        self._ranks = ranks

    def forward(self, tensor: Tensor) -> Tensor:
        """Multiply (tokens, this rank's columns) → (tokens, output), the same on every rank."""
        result = nn.functional.linear(tensor, self.weight)
        if self._ranks.degree > 1:
            result = _Summed.apply(result, self._ranks.group)  # type: ignore[no-untyped-call]
        return result


def split_layer(layer: DecoderLayer, ranks: TensorRanks) -> DecoderLayer:
    """Leave the layer with this rank's part of its weights, and return it.

    Heads are split evenly; key and value heads with them or, where there are fewer than ranks, one
    on each rank (then the gradients of a head's copies add up). ``ValueError`` where the degree
    divides neither.
    """
    degree = ranks.degree
    if degree == 1:
        return layer
    heads, kv_heads, width = layer.heads, layer.kv_heads, layer.width
    if heads % degree or (kv_heads % degree and degree % kv_heads):
        raise ValueError(f"tp = {degree} does not split {heads} heads and {kv_heads} KV heads")
    queries = ranks.part(heads)
    # The head that this rank's first query attends to, and as many as its queries share.
    key_heads = max(kv_heads // degree, 1)
    first = queries.start * kv_heads // heads
    keys = slice(first, first + key_heads)
    by_head = layer.qkv.weight.view(-1, width, layer.qkv.in_features)
    q, k, v = torch.split(by_head, [heads, kv_heads, kv_heads])
    fused = torch.cat((q[queries], k[keys], v[keys])).flatten(0, 1)
    gate, up = layer.gate_up.weight.chunk(2)
    columns = ranks.part(gate.shape[0])
    split = slice(queries.start * width, queries.stop * width)
    modules = {
        "qkv": ColumnParallel(fused, ranks),
        "output": RowParallel(layer.output.weight[:, split], ranks),
        "gate_up": ColumnParallel(torch.cat((gate[columns], up[columns])), ranks),
        "down": RowParallel(layer.down.weight[:, columns], ranks),
    }
    for name, module in modules.items():
        setattr(layer, name, module)
    layer.heads, layer.kv_heads = queries.stop - queries.start, key_heads
    return layer


class VocabularyParallelEmbedding(nn.Module):
    """An embedding whose rows are split; ``weight``: (this rank's rows, hidden)."""

    def __init__(self, weight: Tensor, vocab: int, ranks: TensorRanks) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())
        self._ranks, self._rows = ranks, ranks.part(vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        """Look up (tokens,) → (tokens, hidden), the same on every rank."""
        if self._ranks.degree == 1:
            return nn.functional.embedding(tokens, self.weight)
        local, foreign = _local(tokens, self._rows)
        rows = nn.functional.embedding(local, self.weight).masked_fill(foreign[:, None], 0.0)
        summed: Tensor = _Summed.apply(rows, self._ranks.group)  # type: ignore[no-untyped-call]
        return summed


def vocabulary_loss(logits: Tensor, labels: Tensor, vocab: int, ranks: TensorRanks) -> Tensor:
    """Compute ``token_loss`` of logits (tokens, this rank's columns); every token has a label.

    Three sums of one number a token go over the ranks, never the logits. The same on every rank.
    """
    if ranks.degree == 1:
        return token_loss(logits, labels)
    exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
    scores = logits.to(exact)
    largest = scores.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=ranks.group)
    scores = scores - largest[:, None]
    local, foreign = _local(labels, ranks.part(vocab))
    mine = scores.gather(1, local[:, None]).squeeze(1).masked_fill(foreign, 0.0)
    target = _Summed.apply(mine, ranks.group)  # type: ignore[no-untyped-call]
    total = _Summed.apply(scores.exp().sum(-1), ranks.group)  # type: ignore[no-untyped-call]
    loss: Tensor = (total.log() - target).sum()
    return loss


def _local(tokens: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
    """Return indexes into a rank's rows, and which tokens are another rank's (index 0)."""
    foreign = (tokens < rows.start) | (tokens >= rows.stop)
    return (tokens - rows.start).masked_fill(foreign, 0), foreign
