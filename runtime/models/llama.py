"""A small Llama-like decoder whose attention and positions come from the plan.

RMSNorm, rotary positions, grouped-query attention, SwiGLU. It works on the packed tokens that a
rank holds of a micro-batch: (local tokens,) in, (local tokens, vocabulary) out, no batch axis and
no padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seqplan.plans.recomputation import split_mode
from seqplan.runtime.experts.blocks import ExpertBlocks, SplitExperts, split_experts
from seqplan.runtime.models.fused import rms_norm, rotate_heads, swiglu
from seqplan.runtime.models.moe import (
    Experts,
    ExpertWeights,
    RoutedFeedForward,
    RunExperts,
    run_experts,
)
from seqplan.runtime.recomputation import run_last, run_layer, run_part
from seqplan.runtime.sequence_parallel.context import AttentionContext
from seqplan.runtime.sequence_parallel.unified import Attend, attention
from seqplan.runtime.tensor_parallel.split import TensorSplit


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Sizes of the model; ``ValueError`` if they do not fit together.

    ``recompute``: recomputation mode of micro-batches without one; ``tied``: the output head's
    weight is the embedding's; ``head_dim``: elements of one head, 0 for hidden / heads.
    ``experts``: of every layer, 0 for none, of which each token takes ``experts_per_token``, each
    ``expert_ffn`` wide; ``ffn`` then is the width of the experts that all tokens share, 0 without;
    ``router_loss``: coefficient of the load-balancing loss (Switch Transformer, Eq. 4-6).
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
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    router_loss: float = 0.0

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab"):
            least = 0 if name == "ffn" and self.experts else 1
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        self._check_experts()
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

    def _check_experts(self) -> None:
        if not self.experts:
            for name in ("experts_per_token", "expert_ffn", "router_loss"):
                if getattr(self, name):
                    raise ValueError(f"{name} is for a model with experts: give experts, too")
            return
        if not 1 <= self.experts_per_token <= self.experts:
            raise ValueError(
                f"experts_per_token must be in 1 … {self.experts} (experts), not "
                f"{self.experts_per_token}"
            )
        if self.expert_ffn < 1 or not self.router_loss >= 0:
            raise ValueError(
                f"expert_ffn {self.expert_ffn} must be at least 1, router_loss {self.router_loss} "
                "at least 0"
            )

    @property
    def head_width(self) -> int:
        """Elements of one head."""
        return self.head_dim


class LayerWeights(NamedTuple):
    """A decoder layer's weights on a rank, (outputs, inputs) each; norms are (hidden,).

    Of ``qkv``, ``output``, ``gate_up`` and ``down`` only what this tp rank holds; the last two None
    if no feed-forward is shared by all tokens.
    """

    attention_norm: Tensor
    qkv: Tensor
    output: Tensor
    ffn_norm: Tensor
    gate_up: Tensor | None
    down: Tensor | None


class Llama(nn.Module):
    """Embedding, decoder layers, norm and output head.

    ``attend`` is the attention call of every layer, ``runtime.attention`` by default, ``run`` that
    of its experts. After a forward ``router_logits`` has those of each layer with experts, (local
    tokens, experts).
    """

    def __init__(
        self, config: ModelConfig, attend: Attend = attention, run: RunExperts = run_experts
    ) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(
            DecoderLayer(config, attend, run, place) for place in range(config.layers)
        )
        self.norm = FinalNorm(config.hidden, eps=config.eps)
        self.head = nn.Linear(config.hidden, config.vocab, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        if config.tied:
            self.head.weight = self.embedding.weight

    @property
    def router_logits(self) -> tuple[Tensor, ...]:
        """The routers' logits of the last forward, by layer."""
        kept = (layer.router_logits for layer in self.layers)
        return tuple(logits for logits in kept if isinstance(logits, Tensor))

    def split_experts(
        self, blocks: ExpertBlocks, group: dist.ProcessGroup, device: torch.device
    ) -> SplitExperts:
        """Keep this rank's experts only, for ``ShardedStates``; see ``split_experts``.

        ``ValueError`` for a model without experts, or if they do not divide.
        """
        check_experts(self.config, blocks)
        modules = {}
        for place, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            layer.blocks = blocks
            modules[f"layers.{place}.experts"] = layer.experts
        return split_experts(modules, blocks, group, device)

    def forward(self, tokens: Tensor, context: AttentionContext) -> Tensor:
        """Compute logits (local tokens, vocabulary) of int64 tokens (local tokens,)."""
        hidden = self.embedding(tokens)
        rotation = rotations(context.positions, self.config, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, rotation, context)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def check_experts(config: ModelConfig, blocks: ExpertBlocks | None) -> None:
    """Reject expert parallelism that a model cannot have. ``ValueError``."""
    if blocks is not None and not config.experts:
        raise ValueError(f"expert_parallel: {blocks.degree} for a model without experts. Give 1")
    if blocks is not None:
        blocks.count_local(config.experts)


class FinalNorm(nn.RMSNorm):
    """A norm that is called as a module: parameters arrive before their module runs."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalize rows of (tokens, hidden)."""
        assert self.eps is not None
        return rms_norm(hidden, self.weight, self.eps)


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each after a norm and with a residual around it."""

    def __init__(self, config: ModelConfig, attend: Attend, run: RunExperts, place: int) -> None:
        super().__init__()
        self._config, self._attend, self._run, self._place = config, attend, run, place
        self.blocks: ExpertBlocks | None = None
        self.router_logits: Tensor | None = None
        heads = config.heads + 2 * config.kv_heads
        self.attention_norm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.qkv = nn.Linear(config.hidden, heads * config.head_dim, bias=False)
        self.output = nn.Linear(config.heads * config.head_dim, config.hidden, bias=False)
        self.ffn_norm = nn.RMSNorm(config.hidden, eps=config.eps)
        if config.ffn:
            self.gate_up = nn.Linear(config.hidden, 2 * config.ffn, bias=False)
            self.down = nn.Linear(config.ffn, config.hidden, bias=False)
        if config.experts:
            self.router = nn.Linear(config.hidden, config.experts, bias=False)
            self.experts = Experts(config.experts, config.hidden, config.expert_ffn)

    def forward(
        self, hidden: Tensor, rotation: tuple[Tensor, Tensor], context: AttentionContext
    ) -> Tensor:
        """Compute the layer: (local tokens, hidden) → the same shape."""
        weights = LayerWeights(
            self.attention_norm.weight,
            self.qkv.weight,
            self.output.weight,
            self.ffn_norm.weight,
            self.gate_up.weight if self._config.ffn else None,
            self.down.weight if self._config.ffn else None,
        )
        split = TensorSplit(hidden.shape[0])
        routed = None
        if self._config.experts:
            held = ExpertWeights(self.router.weight, self.experts.gate_up, self.experts.down)
            top_k = self._config.experts_per_token
            routed = RoutedFeedForward(held, top_k, self._run, self.blocks)
        hidden, self.router_logits = decoder_layer(
            weights,
            hidden,
            rotation,
            context,
            split,
            self._config,
            self._place,
            self._attend,
            routed,
        )
        return hidden


def decoder_layer(
    weights: LayerWeights,
    hidden: Tensor,
    rotation: tuple[Tensor, Tensor],
    context: AttentionContext,
    split: TensorSplit,
    config: ModelConfig,
    place: int,
    attend: Attend = attention,
    routed: RoutedFeedForward | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute one decoder layer of a tp rank: (``split.rows``, hidden) → the same shape.

    Also returns its router's logits, (rows of tokens, experts), None without ``routed``. ``place``:
    of the layer on its stage, from 0. Under the context's recomputation mode, ``config.recompute``
    if it has none.
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

    def feed_forward(hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        normed = rms_norm(hidden, weights.ffn_norm, config.eps)
        out, logits = None, None
        if routed is not None:
            out, logits = routed.forward(normed, split.token_rows)
        if weights.gate_up is not None:
            features = swiglu(split.column(normed, weights.gate_up))
            shared = run_last(split.row, features, weights.down)
            out = shared if out is None else out + shared
        assert out is not None
        return out, logits

    def whole(hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        hidden = run_attention(hidden)
        out, logits = run_part("feed_forward", mode, feed_forward, hidden)
        return hidden + out, logits

    return run_layer(mode, place, whole, hidden)


def rotations(positions: Tensor, config: ModelConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Compute cosine and sine of rotary embeddings: (tokens, 1, head_dim / 2) (Su et al.)."""
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    steps = torch.arange(0, config.head_dim, 2, device=positions.device, dtype=exact)
    frequencies = config.rope_base ** (-steps / config.head_dim)
    angles = positions.to(exact)[:, None, None] * frequencies
    return angles.cos().to(dtype), angles.sin().to(dtype)
