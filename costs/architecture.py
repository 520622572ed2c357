"""Parts of a decoder's layers next to full attention and one gated feed-forward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

LARGEST_SIZE = 10**7
"""Of any size; products of them stay finite."""

FLAGS = frozenset({"ungated", "sinks", "attention_gate", "expert_bias"})
"""Which of an ``Architecture`` are yes or no."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """Sizes that a dense decoder does not have; 0 and False throughout: it is one.

    - ``ungated``: the feed-forward has two matrices, not three; ``positions``: learned positions.
    - ``window_layers`` attend to the last ``window`` tokens only, ``chunk_layers`` to those of
      their chunk of ``chunk`` tokens; ``sinks``: attention has a learned sink in each head;
      ``attention_gate``: a gate as wide as its result.
    - ``linear_layers`` have linear attention (gated delta rule) of ``linear_key_heads`` heads of
      ``linear_key_dim`` and ``linear_value_heads`` of ``linear_value_dim``, behind a convolution of
      ``linear_conv`` tokens.
    - ``state_layers`` are state-space layers (Mamba 2): ``state_heads`` of ``state_head_dim``, in
      ``state_groups`` with inputs and outputs of ``state_size``, behind a convolution of
      ``state_conv`` tokens, ``state_chunk`` tokens at once. ``bare_layers`` lack a feed-forward.
    - latent attention (MLA) where ``kv_rank`` is above 0: keys and values come from ``kv_rank``
      elements, queries from ``query_rank`` (0: from the hidden state); heads are of ``nope_dim`` +
      ``rope_dim`` elements in queries and keys, and of ``value_dim`` in values.
    - ``expert_layers`` have ``experts`` feed-forwards of ``expert_ffn``, of which a token runs
      through ``experts_per_token``, and one of ``shared_ffn`` (0: none) for all tokens. With
      ``expert_groups`` a token's experts are of ``groups_per_token`` groups at most; with
      ``expert_bias`` their products have biases, and their activation function clamps. With
      ``expert_latent`` above 0 a token's elements are projected to so many before its experts, and
      back after them.
    """

    ungated: bool = False
    positions: int = 0
    window_layers: int = 0
    window: int = 0
    chunk_layers: int = 0
    chunk: int = 0
    sinks: bool = False
    attention_gate: bool = False
    linear_layers: int = 0
    linear_key_heads: int = 0
    linear_value_heads: int = 0
    linear_key_dim: int = 0
    linear_value_dim: int = 0
    linear_conv: int = 0
    state_layers: int = 0
    state_heads: int = 0
    state_head_dim: int = 0
    state_size: int = 0
    state_groups: int = 0
    state_conv: int = 0
    state_chunk: int = 0
    bare_layers: int = 0
    query_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    nope_dim: int = 0
    value_dim: int = 0
    expert_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    expert_groups: int = 0
    groups_per_token: int = 0
    expert_bias: bool = False
    expert_latent: int = 0

    def __post_init__(self) -> None:
        for name in NAMES:
            value = getattr(self, name)
            if type(value) is not (bool if name in FLAGS else int):
                wanted = "true or false" if name in FLAGS else "a whole number"
                raise ValueError(f"model: {name} must be {wanted}: {value!r}")
            if not 0 <= value <= LARGEST_SIZE:
                raise ValueError(f"model: {name} must be from 0 to {LARGEST_SIZE:,}, not {value}")
        for of, needed in (
            ("window_layers", ("window",)),
            ("chunk_layers", ("chunk",)),
            ("linear_layers", LINEAR),
            ("state_layers", STATE),
            ("kv_rank", ("nope_dim", "value_dim")),
            ("expert_layers", ("experts", "experts_per_token", "expert_ffn")),
            ("expert_groups", ("experts", "groups_per_token")),
            ("expert_latent", ("expert_layers",)),
        ):
            if getattr(self, of) and (missing := [n for n in needed if not getattr(self, n)]):
                raise ValueError(
                    f"model: {of} {getattr(self, of)} requires {', '.join(missing)} too"
                )
        if self.experts_per_token > self.experts:
            raise ValueError(
                f"model: experts_per_token {self.experts_per_token} is more than the "
                f"{self.experts} experts"
                ". Lower experts_per_token"
            )

    @property
    def dense(self) -> bool:
        """Whether there is nothing beyond a dense decoder with full attention."""
        return self == DENSE

    @property
    def state_width(self) -> int:
        """Elements of a token's input to a state-space layer's scan, and of its result."""
        return self.state_heads * self.state_head_dim

    @property
    def convolved_width(self) -> int:
        """Elements that a state-space layer convolves: the input, and B and C of each group."""
        return self.state_width + 2 * self.state_groups * self.state_size

    @property
    def state_projection(self) -> int:
        """Elements that a state-space layer projects a token to: those, a gate, and time steps."""
        return self.state_width + self.convolved_width + self.state_heads

    def check_layers(self, layers: int) -> None:
        """``ValueError`` if more layers are special than the model has."""
        mixing = self.window_layers + self.chunk_layers + self.linear_layers + self.state_layers
        for name, count in (
            ("window, chunk, linear and state-space", mixing),
            ("expert and bare", self.expert_layers + self.bare_layers),
        ):
            if count > layers:
                raise ValueError(
                    f"model: {count} {name} layers of {layers}"
                    ". Give at most as many as the model has layers"
                )

    def as_dict(self) -> dict[str, int]:
        """Return what differs from a dense decoder, by name."""
        return {name: value for name in NAMES if (value := getattr(self, name))}

    @classmethod
    def split(cls, sizes: Mapping[str, Any]) -> tuple[Architecture, dict[str, Any]]:
        """Split sizes by name into those of the architecture and all others."""
        mine = {name: sizes[name] for name in NAMES if sizes.get(name) is not None}
        return cls(**mine), {name: value for name, value in sizes.items() if name not in NAMES}


LINEAR = (
    "linear_key_heads",
    "linear_value_heads",
    "linear_key_dim",
    "linear_value_dim",
)
STATE = (
    *("state_heads", "state_head_dim", "state_size", "state_groups", "state_conv"),
    "state_chunk",
)
NAMES = tuple(field.name for field in fields(Architecture))
"""Names of an architecture's sizes everywhere."""

DENSE = Architecture()
