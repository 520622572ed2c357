"""What one rank runs of a pipeline: the layers of its stage, of each its tp rank's part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from seqplan.plans.recomputation import split_mode
from seqplan.plans.views.parameter_layout import Shard, stage_of
from seqplan.runtime.experts.blocks import ExpertBlocks
from seqplan.runtime.models.fused import rms_norm
from seqplan.runtime.models.llama import (
    LayerWeights,
    ModelConfig,
    decoder_layer,
    rotations,
)
from seqplan.runtime.models.moe import ExpertWeights, RoutedFeedForward, run_experts
from seqplan.runtime.pipeline.llama_units import (
    EMBEDDING,
    HEAD,
    NORMS,
    expert_unit,
    layer_unit,
    router_unit,
)
from seqplan.runtime.recomputation import run_part
from seqplan.runtime.sequence_parallel.context import AttentionContext
from seqplan.runtime.tensor_parallel.split import TensorSplit


class ParameterSource(Protocol):
    """Where a stage's parameters come from."""

    def parameters(self, unit: str) -> Mapping[str, Tensor]:
        """Return a unit's parameters by name, this tp rank's parts, complete."""


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
    """The layers of ``shard`` in a model of ``config``, over the parameters of ``source``.

    ``blocks``: of the experts, None if each rank has all. After a forward ``router_logits`` has
    those of each layer with experts, (rows of tokens, experts).
    """

    def __init__(
        self,
        config: ModelConfig,
        shard: Shard,
        source: ParameterSource,
        blocks: ExpertBlocks | None = None,
    ) -> None:
        self.config, self.shard = config, shard
        self._source, self._blocks = source, blocks
        self.router_logits: list[Tensor] = []
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
        self.router_logits = []
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
            *(by_name.get(f"layers.{layer}.{name}.weight") for name in LayerWeights._fields)  # type: ignore[arg-type]
        )
        place = layer - self.layers[0]
        hidden, logits = decoder_layer(
            weights,
            hidden,
            rotation,
            work.context,
            work.split,
            self.config,
            place,
            routed=self.find_experts(layer),
        )
        if logits is not None:
            self.router_logits.append(logits)
        return hidden

    def find_experts(self, layer: int) -> RoutedFeedForward | None:
        """Return a layer's routed feed-forward, None without experts."""
        if not self.config.experts:
            return None
        name = layer_unit(layer)
        router = self._source.parameters(router_unit(layer))[f"{name}.router.weight"]
        held = self._source.parameters(expert_unit(layer))
        weights = ExpertWeights(
            router, held[f"{name}.experts.gate_up"], held[f"{name}.experts.down"]
        )
        return RoutedFeedForward(weights, self.config.experts_per_token, run_experts, self._blocks)

    def run_empty(self, mode: str | None) -> Tensor:
        """Run a micro-step without tokens: a zero whose backward has all gradients and exchanges.

        ``mode``: recomputation mode. Every parameter here gets a gradient of 0, in the order of
        other micro-steps, and takes part in what other ranks send to its experts. For one stage.
        """
        # Norms are on every rank, also on one without a shard: tokens of the first layer then have
        # gradients here as on other ranks, whose exchanges of backward would wait.
        hidden = self._touch(NORMS) + self._touch(EMBEDDING)
        hidden = hidden.new_zeros(0, self.config.hidden) + hidden
        for layer in self.layers:
            routed = self.find_experts(layer)
            assert routed is not None
            hidden = hidden + self._touch(layer_unit(layer))
            hidden = hidden + run_part("feed_forward", _of_part(mode), routed.run_empty, hidden)
        if not self.config.tied:
            hidden = hidden + self._touch(HEAD)
        return hidden.sum()

    def _touch(self, unit: str) -> Tensor:
        """Return a zero that depends on the parameters of a unit that are held here."""
        held = self._source.parameters(unit).values()
        zeros = [parameter.reshape(-1)[:0].sum() for parameter in held]
        return torch.stack(zeros).sum() if zeros else self._zero()

    def _zero(self) -> Tensor:
        norm = self._source.parameters(NORMS)["norm.weight"]
        return norm.new_zeros(())

    def loss(self, hidden: Tensor, work: StageInput) -> Tensor:
        """Sum the loss of the last layer's hidden states, equal on every tp rank."""
        assert work.labels is not None
        norm = self._source.parameters(NORMS)["norm.weight"]
        unit, name = (EMBEDDING, "embedding") if self.config.tied else (HEAD, "head")
        words = self._source.parameters(unit)[f"{name}.weight"]
        normed = rms_norm(hidden, norm, self.config.eps)
        return work.split.loss(work.split.column(normed, words), work.labels, self._first_word)


def _of_part(mode: str | None) -> str | None:
    """Return the mode of a feed-forward alone that repeats what ``mode`` repeats of it."""
    if mode is None or split_mode(mode)[0] in ("none", "attention_core"):
        return None
    return "mlp"
