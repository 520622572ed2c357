"""One rank's part of a pipeline stage: a few decoder layers, and what its end of the model adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seqplan.profiler.measure.tensor_parallel import (
    ColumnParallel,
    TensorRanks,
    VocabularyParallelEmbedding,
    split_layer,
    vocabulary_loss,
)
from seqplan.runtime.sequence_parallel.context import AttentionContext
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.sequence_parallel.unified import attention
from seqplan.runtime.training.model import DecoderLayer, ModelConfig, rotations


@dataclass(frozen=True, slots=True)
class Call:
    """A computation in its two halves."""

    forward: Callable[[], Tensor]
    backward: Callable[[Tensor], None]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Global ranks of the same place on the stages before and after, None beyond the ends."""

    previous: int | None
    following: int | None


@dataclass(frozen=True, slots=True)
class StageWork:
    """What this rank runs of a micro-batch: its stage and the calls on it.

    ``alone``: the stage's end without the transfers; ``whole``: a layer without checkpointing.
    """

    stage: Stage
    layers: Call
    whole: Call | None
    alone: Call
    ends: Call


class Stage(nn.Module):
    """``layers`` decoder layers with embedding, norm and head, split over ``ranks``."""

    def __init__(
        self,
        config: ModelConfig,
        layers: int,
        ranks: TensorRanks,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.config = config
        self._ranks, self._device, self._dtype = ranks, device, dtype
        with device, _default_dtype(dtype):  # never in fp32 first, nor on another device
            self.layers = nn.ModuleList(
                split_layer(DecoderLayer(config, attention), ranks) for _ in range(layers)
            )
            # What backward holds of a layer while it computes it again.
            whole = replace(config, checkpointing="none")
            self.whole_layer = (
                None
                if config.checkpointing == "none"
                else split_layer(DecoderLayer(whole, attention), ranks)
            )
            rows = ranks.part(config.vocab)
            words = torch.randn(rows.stop - rows.start, config.hidden)
            self.embedding = VocabularyParallelEmbedding(words, config.vocab, ranks)
            self.norm = nn.RMSNorm(config.hidden, eps=config.eps)
            self.head = ColumnParallel(0.02 * words, ranks)

    def work(self, context: AttentionContext, neighbours: Neighbours, peers: Peers) -> StageWork:
        """Prepare the micro-batch of ``context`` on a stage between ``neighbours``."""
        alone = self.ends_call(context, neighbours)
        ends = with_transfers(alone, neighbours, self.hidden(context), peers)
        single = neighbours == Neighbours(None, None)
        return StageWork(
            stage=self,
            layers=self.layers_call(context),
            whole=self.whole_layer_call(context),
            alone=alone,
            ends=alone if single else ends,
        )

    def layers_call(self, context: AttentionContext) -> Call:
        """Prepare forward and backward of the layers on the micro-batch of ``context``."""
        return self._through(self.layers, context)

    def whole_layer_call(self, context: AttentionContext) -> Call | None:
        """Prepare one layer that keeps everything, None where all layers do."""
        return None if self.whole_layer is None else self._through([self.whole_layer], context)

    def _through(self, layers: Iterable[nn.Module], context: AttentionContext) -> Call:
        hidden, gradient = self.hidden(context).requires_grad_(), self.hidden(context)

        def forward() -> Tensor:
            rotation = rotations(context.positions, self.config, self._dtype)
            out: Tensor = hidden
            for layer in layers:
                out = layer(out, rotation, context)
            return out

        return Call(forward, lambda out: torch.autograd.backward(out, gradient))

    def ends_call(self, context: AttentionContext, neighbours: Neighbours) -> Call:
        """Prepare what the first stage adds, the embedding, and the last: norm, head and loss.

        A single stage adds both, one after the other; a stage in between nothing.
        """
        tokens = torch.randint(self.config.vocab, context.positions.shape, device=self._device)
        if neighbours.following is None:
            hidden = self.hidden(context).requires_grad_()

            def loss() -> Tensor:
                last_hidden = self.embedding(tokens) if neighbours.previous is None else hidden
                logits = self.head(self.norm(last_hidden))
                return vocabulary_loss(logits, tokens, self.config.vocab, self._ranks)

            return Call(loss, torch.autograd.backward)
        gradient = self.hidden(context)
        if neighbours.previous is None:
            return Call(
                lambda: self.embedding(tokens),
                lambda out: torch.autograd.backward(out, gradient),
            )
        return Call(lambda: gradient, lambda out: None)

    def hidden(self, context: AttentionContext) -> Tensor:
        """Draw random hidden states of this rank's tokens, (local tokens, hidden)."""
        return torch.randn(
            context.positions.shape[0], self.config.hidden, device=self._device, dtype=self._dtype
        )


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def with_transfers(call: Call, neighbours: Neighbours, like: Tensor, peers: Peers) -> Call:
    """Add to a call what 1F1B moves in a micro-batch after each half.

    After forward every stage sends a tensor shaped ``like`` its hidden states (local tokens,
    hidden) to the next and receives one from the one before; after backward gradients go the other
    way. All stages of the pipeline call it together. Every rank of tp sends its own copy.
    """
    sent, received = torch.empty_like(like), torch.empty_like(like)

    def shift(target: int | None, origin: int | None) -> None:
        peers.transfer(
            [] if target is None else [(sent, target)],
            [] if origin is None else [(received, origin)],
        ).wait()

    def forward() -> Tensor:
        out = call.forward()
        shift(neighbours.following, neighbours.previous)
        return out

    def backward(out: Tensor) -> None:
        call.backward(out)
        shift(neighbours.previous, neighbours.following)

    return Call(forward, backward)
