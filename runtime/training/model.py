"""A small Llama-like decoder whose attention and positions come from the plan.

RMSNorm, rotary positions, grouped-query attention, SwiGLU. It works on the packed tokens that a
rank holds of a micro-batch: (local tokens,) in, (local tokens, vocabulary) out, no batch axis and
no padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from seqplan.runtime.sequence_parallel.context import AttentionContext
from seqplan.runtime.sequence_parallel.unified import Attend, attention

CHECKPOINTING = ("none", "mlp", "full")
"""What backward computes again instead of keeping: nothing, the feed-forward, the whole layer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Sizes of the model; ``ValueError`` where they do not fit together."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 128
    vocab: int = 256
    rope_base: float = 10_000.0
    eps: float = 1e-5
    checkpointing: str = "none"

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.checkpointing not in CHECKPOINTING:
            raise ValueError(
                f"checkpointing must be one of {', '.join(CHECKPOINTING)}, "
                f"not {self.checkpointing!r}"
            )
        if self.hidden % (2 * self.heads):
            raise ValueError(
                f"hidden {self.hidden} must be a multiple of twice the {self.heads} heads"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")

    @property
    def head_dim(self) -> int:
        """Elements of one head."""
        return self.hidden // self.heads


class Llama(nn.Module):
    """Embedding, decoder layers, norm and output head.

    ``attend`` is the attention call of every layer, the product's own by default.
    """

    def __init__(self, config: ModelConfig, attend: Attend = attention) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(DecoderLayer(config, attend) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.head = nn.Linear(config.hidden, config.vocab, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, context: AttentionContext) -> Tensor:
        """Compute logits (local tokens, vocabulary) of int64 tokens (local tokens,)."""
        hidden = self.embedding(tokens)
        rotation = rotations(context.positions, self.config, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, rotation, context)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each after a norm and with a residual around it."""

    def __init__(self, config: ModelConfig, attend: Attend) -> None:
        super().__init__()
        self._attend = attend
        self._checkpointing = config.checkpointing
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.width = width = config.head_dim
        self.attention_norm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.qkv = nn.Linear(
            config.hidden, (config.heads + 2 * config.kv_heads) * width, bias=False
        )
        self.output = nn.Linear(config.heads * width, config.hidden, bias=False)
        self.ffn_norm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.gate_up = nn.Linear(config.hidden, 2 * config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(
        self, hidden: Tensor, rotation: tuple[Tensor, Tensor], context: AttentionContext
    ) -> Tensor:
        """Compute the layer: (local tokens, hidden) → the same shape."""
        if self._checkpointing == "full":
            again: Tensor = checkpoint(self._layer, hidden, rotation, context, use_reentrant=False)
            return again
        return self._layer(hidden, rotation, context)

    def _layer(
        self, hidden: Tensor, rotation: tuple[Tensor, Tensor], context: AttentionContext
    ) -> Tensor:
        tokens = hidden.shape[0]
        fused = self.qkv(self.attention_norm(hidden))
        fused = fused.view(tokens, self.heads + 2 * self.kv_heads, self.width)
        q, k, v = fused.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        attended = self._attend(rotated(q, rotation), rotated(k, rotation), v, context)
        hidden = hidden + self.output(attended.flatten(1))
        if self._checkpointing == "mlp":
            fed: Tensor = checkpoint(self._feed_forward, hidden, use_reentrant=False)
            return hidden + fed
        return hidden + self._feed_forward(hidden)

    def _feed_forward(self, hidden: Tensor) -> Tensor:
        gate, up = self.gate_up(self.ffn_norm(hidden)).chunk(2, dim=-1)
        result: Tensor = self.down(nn.functional.silu(gate) * up)
        return result


def rotations(positions: Tensor, config: ModelConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Compute cosine and sine (tokens, 1, head_dim / 2) of rotary positions (Su et al., Eq. 15)."""
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    steps = torch.arange(0, config.head_dim, 2, device=positions.device, dtype=exact)
    frequencies = config.rope_base ** (-steps / config.head_dim)
    angles = positions.to(exact)[:, None, None] * frequencies
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotated(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate (tokens, heads, head_dim), the first half of each head against the second."""
    cosine, sine = rotation
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of the cross-entropy of the labelled tokens; label −100 counts nothing.

    A sum, not a mean: the caller divides once by the plan's ``loss_tokens``, so that every token of
    the global batch weighs the same wherever it was computed.
    """
    exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return nn.functional.cross_entropy(logits.to(exact), labels, ignore_index=-100, reduction="sum")
