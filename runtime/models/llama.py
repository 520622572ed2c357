"""A small Llama-like decoder whose attention and positions come from the plan.

RMSNorm, rotary positions, grouped-query attention, SwiGLU. It works on the packed tokens that a
rank holds of a micro-batch: (local tokens,) in, (local tokens, vocabulary) out, no batch axis and
no padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from seqplan.plans.recomputation import split_mode
from seqplan.runtime.models.fused import rms_norm, rotate_heads, swiglu
from seqplan.runtime.recomputation import run_last, run_layer, run_part
from seqplan.runtime.sequence_parallel.context import AttentionContext
from seqplan.runtime.sequence_parallel.unified import Attend, attention
from seqplan.runtime.tensor_parallel.split import TensorSplit


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Sizes of the model; ``ValueError`` if they do not fit together.

    ``recompute``: recomputation mode of micro-batches without one; ``tied``: the output head's
    weight is the embedding's; ``head_dim``: elements of one head, 0 for hidden / heads.
    """

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 128
    vocab: int = 256
    rope_base: float = 10_000.0
    eps: float = 1e-5
    recompute: str = "none"
    tied: bool = False
    head_dim: int = 0

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        split_mode(self.recompute)
        if self.head_dim == 0:
            if self.hidden % (2 * self.heads):
                raise ValueError(
                    f"hidden {self.hidden} must be a multiple of twice the {self.heads} heads"
                )
            object.__setattr__(self, "head_dim", self.hidden // self.heads)
        if self.head_dim < 2 or self.head_dim % 2:
            raise ValueError(f"head_dim must be even and at least 2, not {self.head_dim}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")

    @property
    def head_width(self) -> int:
        """Elements of one head."""
        return self.head_dim


class LayerWeights(NamedTuple):
    """A decoder layer's weights on a rank, (outputs, inputs) each; norms are (hidden,).

    Of ``qkv``, ``output``, ``gate_up`` and ``down`` only what this tp rank holds.
    """

    attention_norm: Tensor
    qkv: Tensor
    output: Tensor
    ffn_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Llama(nn.Module):
    """Embedding, decoder layers, norm and output head.

    ``attend`` is the attention call of every layer, ``runtime.attention`` by default.
    """

    def __init__(self, config: ModelConfig, attend: Attend = attention) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(
            DecoderLayer(config, attend, place) for place in range(config.layers)
        )
        self.norm = FinalNorm(config.hidden, eps=config.eps)
        self.head = nn.Linear(config.hidden, config.vocab, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        if config.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, context: AttentionContext) -> Tensor:
        """Compute logits (local tokens, vocabulary) of int64 tokens (local tokens,)."""
        hidden = self.embedding(tokens)
        rotation = rotations(context.positions, self.config, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, rotation, context)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


class FinalNorm(nn.RMSNorm):
    """A norm that is called as a module: parameters arrive before their module runs."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalize rows of (tokens, hidden)."""
        assert self.eps is not None
        return rms_norm(hidden, self.weight, self.eps)


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each after a norm and with a residual around it."""

    def __init__(self, config: ModelConfig, attend: Attend, place: int) -> None:
        super().__init__()
        self._config, self._attend, self._place = config, attend, place
        heads = config.heads + 2 * config.kv_heads
        self.attention_norm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.qkv = nn.Linear(config.hidden, heads * config.head_dim, bias=False)
        self.output = nn.Linear(config.heads * config.head_dim, config.hidden, bias=False)
        self.ffn_norm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.gate_up = nn.Linear(config.hidden, 2 * config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(
        self, hidden: Tensor, rotation: tuple[Tensor, Tensor], context: AttentionContext
    ) -> Tensor:
        """Compute the layer: (local tokens, hidden) → the same shape."""
        weights = LayerWeights(*(getattr(self, name).weight for name in LayerWeights._fields))
        split = TensorSplit(hidden.shape[0])
        return decoder_layer(
            weights, hidden, rotation, context, split, self._config, self._place, self._attend
        )


def decoder_layer(
    weights: LayerWeights,
    hidden: Tensor,
    rotation: tuple[Tensor, Tensor],
    context: AttentionContext,
    split: TensorSplit,
    config: ModelConfig,
    place: int,
    attend: Attend = attention,
) -> Tensor:
    """Compute one decoder layer of a tp rank: (``split.rows``, hidden) → the same shape.

    ``place``: of the layer on its stage, from 0. Under the context's recomputation mode,
    ``config.recompute`` if it has none.
    """
    mode = context.recompute or config.recompute

    def run_attention(hidden: Tensor) -> Tensor:
        width = config.head_dim
        heads = weights.output.shape[1] // width
        keys = (weights.qkv.shape[0] // width - heads) // 2
        normed = rms_norm(hidden, weights.attention_norm, config.eps)
        fused = split.column(normed, weights.qkv)
        fused = fused.view(fused.shape[0], heads + 2 * keys, width)
        q, k, v = rotate_heads(fused, heads, keys, rotation)
        out = run_part("attention", mode, attend, q, k, v, context)
        return hidden + split.row(out.flatten(1), weights.output)

    def feed_forward(hidden: Tensor) -> Tensor:
        normed = rms_norm(hidden, weights.ffn_norm, config.eps)
        return run_last(split.row, swiglu(split.column(normed, weights.gate_up)), weights.down)

    def whole(hidden: Tensor) -> Tensor:
        hidden = run_attention(hidden)
        return hidden + run_part("feed_forward", mode, feed_forward, hidden)

    return run_layer(mode, place, whole, hidden)


def rotations(positions: Tensor, config: ModelConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Compute cosine and sine of rotary embeddings: (tokens, 1, head_dim / 2) (Su et al.)."""
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    steps = torch.arange(0, config.head_dim, 2, device=positions.device, dtype=exact)
    frequencies = config.rope_base ** (-steps / config.head_dim)
    angles = positions.to(exact)[:, None, None] * frequencies
    return angles.cos().to(dtype), angles.sin().to(dtype)
