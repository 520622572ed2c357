"""Recomputation modes: which activations of a micro-batch the backward pass computes again.

A mode is written as its name, or as ``elementwise+0.5`` if that share of the layers also has its
activations in host memory from forward to backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

MODES = ("none", "elementwise", "attention_core", "half_products", "mlp", "full")
"""From keeping everything to keeping each layer's input only.

``elementwise``: everything but matrix products and attention; ``attention_core``: scores, softmax
and their product with values (Korthikanti et al., arXiv 2205.05198); ``half_products``: elementwise
operations, and every second matrix product (as torchtitan's selective mode); ``mlp``: the
feed-forward part of a layer; ``full``: the whole layer.
"""


def split_mode(mode: str) -> tuple[str, float]:
    """Split a mode into its name and the share of the layers that it offloads.

    ``ValueError`` for an unknown name, and for a share that is not above 0 and up to 1.
    """
    name, plus, text = mode.partition("+")
    if name not in MODES:
        raise ValueError(f"unknown recomputation mode: {mode}. Give one of {', '.join(MODES)}")
    if not plus:
        return name, 0.0
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1 or join_mode(name, share) != mode:
        raise ValueError(
            f"layers offloaded by mode {mode}: {text or 'none'}. Give a share such as {name}+0.5"
        )
    return name, share


def join_mode(name: str, offload_layers: float) -> str:
    """Write a mode of a name that offloads a share of the layers."""
    return f"{name}+{offload_layers:g}" if offload_layers else name


def write_mode(mode: str | None) -> dict[str, str | float]:
    """Write a mode as the fields of a micro-batch in JSON; none if it has no mode."""
    if mode is None:
        return {}
    name, share = split_mode(mode)
    return {"recompute": name, "offload_layers": share} if share else {"recompute": name}


REPEATING = {"none": "mlp", "attention_core": "full"}
"""Modes that repeat no exchange of experts' tokens, with those that do the same and repeat them.

All others compute a layer's feed-forward again, with its exchanges."""


def repeats_exchanges(mode: str | None) -> bool:
    """Return whether a mode repeats the exchanges of experts' tokens; not without a mode."""
    return mode is not None and split_mode(mode)[0] not in REPEATING


def rank_mode(mode: str) -> tuple[int, float]:
    """Return a key that sorts modes from keeping everything to keeping least."""
    name, share = split_mode(mode)
    return MODES.index(name), share


def is_offloaded(offload_layers: float, layer: int) -> bool:
    """Return whether a layer is offloaded, by its place on the stage from 0.

    Rounded up, and evenly spread, so that copies are. The first layer, whose backward comes last,
    is always among them.
    """
    return count_offloaded(offload_layers, layer + 1) > count_offloaded(offload_layers, layer)


def count_offloaded(offload_layers: float, layers: int) -> int:
    """Count the layers of a stage of ``layers`` that are offloaded, rounded up."""
    return ceil(round(layers * offload_layers, 9))


def count_offloaded_in_flight(offload_layers: float, layers: int, pp: int) -> int:
    """Count the offloaded layers that a stage has of its ``pp`` micro-batches in flight."""
    return pp * count_offloaded(offload_layers, -(-layers // pp))


def window_share(parts: Sequence[tuple[float, float]], pp: int) -> float:
    """Compute the part of the memory that micro-batches in flight together need.

    ``parts``: of up to ``pp`` micro-batches in a row, padded tokens / MaxLen of its mode, and the
    share of a token's bytes that the mode keeps until backward. The first of ``pp`` stages keeps
    1/pp of the layers of each, and one of them is in backward with all that it recomputes.
    """
    kept_share = sum(used * share for used, share in parts) / pp
    return kept_share + max((used * (1 - share) for used, share in parts), default=0.0)
