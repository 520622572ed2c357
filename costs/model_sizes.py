"""Sizes of a model: as far as a profile knows them, whole ones, and those of well-known models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seqplan.costs.architecture import DENSE, LARGEST_SIZE, Architecture

SIZES = ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab")
"""Names of a model's sizes everywhere; ``head_dim``, ``tied`` and those of an ``Architecture``
are optional."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a Transformer; None if a source does not state them.

    ``head_dim``: elements of a head if they are not hidden/heads; ``tied``: the output head's
    weight is the embedding's; ``architecture``: parts that a dense decoder does not have.
    """

    hidden: int
    layers: int
    vocab: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn: int | None = None
    head_dim: int | None = None
    tied: bool = False
    architecture: Architecture = DENSE

    @property
    def sizes(self) -> ModelSizes | None:
        """Return whole sizes; None if one is not known."""
        known = {name: getattr(self, name) for name in SIZES}
        if None in known.values():
            return None
        return ModelSizes(
            **known, head_dim=self.head_dim, tied=self.tied, architecture=self.architecture
        )

    @property
    def attention_width(self) -> int:
        """Elements of a token's queries over all heads: hidden, unless ``head_dim`` differs.

        ``head_dim`` is known together with ``heads`` only.
        """
        if self.head_dim is None or self.heads is None:
            return self.hidden
        return self.heads * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Weights of a dense layer's products: 12·hidden², as far as sizes are unknown.

        Attention has four matrices of hidden · ``attention_width``, those of keys and values less
        by ``kv_heads``/``heads``; the feed-forward three of hidden · ``ffn``, or 8·hidden².
        """
        attention = 4 * self.hidden * self.attention_width
        if self.kv_heads is not None and self.heads is not None:
            attention = round(attention * (1 + self.kv_heads / self.heads) / 2)
        return attention + (8 * self.hidden if self.ffn is None else 3 * self.ffn) * self.hidden


def parameters(shape: ModelShape) -> int | None:
    """Count all parameters, as far as sizes are known; None if the vocabulary is unknown.

    With unknown sizes layers have their products' weights, and no norms or biases.
    """
    if (sizes := shape.sizes) is not None:
        return sizes.parameters
    if shape.vocab is None:
        return None
    tables = (1 if shape.tied else 2) * shape.vocab
    return shape.layers * shape.layer_weights + tables * shape.hidden


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSizes:
    """Sizes of a decoder; ``ValueError`` if they do not fit together.

    ``head_dim``: elements of a head, None for hidden/heads; ``tied``: the output head's weight is
    the embedding's; ``architecture``: parts that a dense decoder with a gated feed-forward lacks;
    ``left_out``: parts of the model that these sizes do not have, in words.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    head_dim: int | None = None
    tied: bool = False
    architecture: Architecture = DENSE
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (*SIZES, "head_dim"):
            size = getattr(self, name)
            if size is not None and not 1 <= size <= LARGEST_SIZE:
                raise ValueError(f"model: {name} must be from 1 to {LARGEST_SIZE:,}, not {size}")
        latent = self.architecture.kv_rank > 0
        if self.head_dim is None and not latent and self.hidden % self.heads:
            raise ValueError(
                f"model: hidden {self.hidden} is no multiple of {self.heads} heads; give head_dim"
            )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"model: heads {self.heads} must be a multiple of kv_heads {self.kv_heads}"
            )
        self.architecture.check_layers(self.layers)

    @property
    def head_width(self) -> int:
        """Elements of one head; under latent attention the mean of those of keys and of values."""
        special = self.architecture
        if special.kv_rank:
            return (special.nope_dim + special.rope_dim + special.value_dim) // 2
        return self.hidden // self.heads if self.head_dim is None else self.head_dim

    @property
    def attention_width(self) -> int:
        """Elements of a token's queries, and of attention's result, over all heads."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Elements of a token's keys (or values) over all key/value heads."""
        return self.kv_heads * self.head_width

    def find_kv_width(self, ranks: int) -> int:
        """Return the width of keys on all ``ranks`` that split heads: one head each at least."""
        return max(self.kv_heads, ranks) * self.head_width

    @property
    def attending_layers(self) -> int:
        """Layers with attention over keys, full or not: all but those that pass on a state."""
        return self.layers - self.architecture.linear_layers - self.architecture.state_layers

    @property
    def dense_layers(self) -> int:
        """Layers with one feed-forward: neither with experts nor bare."""
        return self.layers - self.architecture.expert_layers - self.architecture.bare_layers

    @property
    def layers_parameters(self) -> int:
        """Parameters of all layers: attention, feed-forward or experts, norms."""
        return self._parameters_of_layers(self.architecture.experts)

    @property
    def active_parameters(self) -> int:
        """Those of the layers that one token runs through: of experts only the chosen ones."""
        return self._parameters_of_layers(self.architecture.experts_per_token)

    def _parameters_of_layers(self, experts: int) -> int:
        special, matrices = self.architecture, 2 if self.architecture.ungated else 3
        dense = self.dense_layers * matrices * self.hidden * self.ffn
        router = self.hidden * special.experts
        sparse = matrices * self.expert_width * experts * special.expert_ffn
        sparse += (
            matrices * self.hidden * special.shared_ffn + 2 * self.hidden * special.expert_latent
        )
        attention = self.attending_layers * self._attention_parameters()
        attention += special.linear_layers * self._linear_parameters()
        attention += special.state_layers * self._state_parameters()
        norms = self.hidden * (2 * self.layers - special.bare_layers)
        return attention + dense + special.expert_layers * (router + sparse) + norms

    @property
    def expert_width(self) -> int:
        """Elements of a token that its experts take and put out."""
        return self.architecture.expert_latent or self.hidden

    @property
    def expert_parameters(self) -> int:
        """Those of all experts that tokens are sent to, of all layers."""
        special, matrices = self.architecture, 2 if self.architecture.ungated else 3
        of_layer = matrices * self.expert_width * special.experts * special.expert_ffn
        return special.expert_layers * of_layer

    def _attention_parameters(self) -> int:
        special = self.architecture
        sinks = self.heads if special.sinks else 0
        if not special.kv_rank:
            gate = self.hidden * self.attention_width if special.attention_gate else 0
            return 2 * self.hidden * (self.attention_width + self.kv_width) + gate + sinks
        queries = self.heads * (special.nope_dim + special.rope_dim)
        if special.query_rank:
            of_queries = special.query_rank * (self.hidden + queries)
        else:
            of_queries = self.hidden * queries
        of_keys = self.hidden * (special.kv_rank + special.rope_dim)
        of_keys += special.kv_rank * self.heads * (special.nope_dim + special.value_dim)
        return of_queries + of_keys + self.heads * special.value_dim * self.hidden + sinks

    def _linear_parameters(self) -> int:
        """Queries, keys, values and output gate; decay and strength of each head; convolution."""
        special = self.architecture
        keys = special.linear_key_heads * special.linear_key_dim
        values = special.linear_value_heads * special.linear_value_dim
        projections = self.hidden * (2 * keys + 3 * values + 2 * special.linear_value_heads)
        return projections + special.linear_conv * (2 * keys + values)

    def _state_parameters(self) -> int:
        """Both projections; convolution with biases; decay, skip and step of each head; norm."""
        special = self.architecture
        projections = self.hidden * (special.state_projection + special.state_width)
        convolution = (special.state_conv + 1) * special.convolved_width
        return projections + convolution + 3 * special.state_heads + special.state_width

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding, the output head (unless it is tied) and the last norm."""
        tables = (1 if self.tied else 2) * self.vocab + self.architecture.positions
        return tables * self.hidden + self.hidden

    def count_stored_parameters(self, pp: int) -> int:
        """Parameters over all ``pp`` stages: a tied embedding is on the first and on the last."""
        copied = self.vocab * self.hidden if self.tied and pp > 1 else 0
        return self.parameters + copied

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.layers_parameters + self.embedding_parameters

    @property
    def shape(self) -> ModelShape:
        """The sizes as validity rules want them."""
        return ModelShape(
            self.hidden,
            self.layers,
            vocab=self.vocab,
            heads=self.heads,
            kv_heads=self.kv_heads,
            ffn=self.ffn,
            head_dim=None if self.attention_width == self.hidden else self.head_width,
            tied=self.tied,
            architecture=self.architecture,
        )

    def as_dict(self) -> dict[str, int]:
        """The sizes by name; all but ``SIZES`` only if they differ from the usual."""
        sizes = {name: getattr(self, name) for name in SIZES}
        if self.attention_width != self.hidden:
            sizes["head_dim"] = self.head_width
        if self.tied:
            sizes["tied"] = True
        return {**sizes, **self.architecture.as_dict()}

    @classmethod
    def from_mapping(cls, sizes: Mapping[str, Any]) -> ModelSizes:
        """From sizes by name; ``TypeError`` when one is missing, or is none."""
        architecture, others = Architecture.split(sizes)
        by_name: dict[str, Any] = dict(others)
        return cls(**by_name, architecture=architecture)
