"""What one rank runs of a pipeline: the layers of its stage, of each its tp rank's part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from seqplan.plans.views.parameter_layout import Shard, stage_of
from seqplan.runtime.models.fused import rms_norm
from seqplan.runtime.models.llama import (
    LayerWeights,
    ModelConfig,
    decoder_layer,
    rotations,
)
from seqplan.runtime.pipeline.llama_units import EMBEDDING, HEAD, NORMS, layer_unit
from seqplan.runtime.sequence_parallel.context import AttentionContext
from seqplan.runtime.tensor_parallel.split import TensorSplit


class ParameterSource(Protocol):
    """Where a stage's parameters come from."""

    def parameters(self, unit: str) -> Mapping[str, Tensor]:
        """Return a unit's parameters by name, this tp rank's parts, complete."""
        ...


@dataclass(frozen=True, slots=True)
class StageInput:
    """One micro-batch on one rank.

    ``tokens`` (local tokens,) on the first stage and ``labels`` on the last, int64, else None;
    ``labels`` are −100 for ignored tokens.
    """

    tokens: Tensor | None
    labels: Tensor | None
    context: AttentionContext
    split: TensorSplit


class Stage:
    """The layers of ``shard`` in a model of ``config``, over the parameters of ``source``."""

    def __init__(self, config: ModelConfig, shard: Shard, source: ParameterSource) -> None:
        self.config, self.shard = config, shard
        self._source = source
        self.layers = [
            layer
            for layer in range(config.layers)
            if stage_of(layer, config.layers, shard.pp) == shard.stage
        ]
        self.first, self.last = shard.stage == 0, shard.stage == shard.pp - 1
        self._first_word = shard.tp_rank * config.vocab // shard.tp

    def forward(self, hidden: Tensor | None, work: StageInput) -> Tensor:
        """Compute hidden states (rows, hidden) or, on the last stage, the summed loss.

        ``hidden``: of the stage before, None on the first.
        """
        if self.first:
            hidden = self.embed(work)
        assert hidden is not None
        rotation = rotations(work.context.positions, self.config, hidden.dtype)
        for layer in self.layers:
            hidden = self.layer(layer, hidden, rotation, work)
        return self.loss(hidden, work) if self.last else hidden

    def embed(self, work: StageInput) -> Tensor:
        """Look the tokens up: → (rows, hidden)."""
        assert work.tokens is not None
        words = self._source.parameters(EMBEDDING)["embedding.weight"]
        return work.split.embed(work.tokens, words, self._first_word)

    def layer(
        self, layer: int, hidden: Tensor, rotation: tuple[Tensor, Tensor], work: StageInput
    ) -> Tensor:
        """Compute one layer of the model: (rows, hidden) → the same shape."""
        norms = self._source.parameters(NORMS)
        matrices = self._source.parameters(layer_unit(layer))
        by_name = {**norms, **matrices}
        weights = LayerWeights(
            *(by_name[f"layers.{layer}.{name}.weight"] for name in LayerWeights._fields)
        )
        place = layer - self.layers[0]
        return decoder_layer(
            weights, hidden, rotation, work.context, work.split, self.config, place
        )

    def loss(self, hidden: Tensor, work: StageInput) -> Tensor:
        """Sum the loss of the last layer's hidden states, equal on every tp rank."""
        assert work.labels is not None
        norm = self._source.parameters(NORMS)["norm.weight"]
        unit, name = (EMBEDDING, "embedding") if self.config.tied else (HEAD, "head")
        words = self._source.parameters(unit)[f"{name}.weight"]
        normed = rms_norm(hidden, norm, self.config.eps)
        return work.split.loss(work.split.column(normed, words), work.labels, self._first_word)
