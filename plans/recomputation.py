"""Recomputation modes: which activations of a micro-batch the backward pass computes again."""

from __future__ import annotations

from collections.abc import Sequence

MODES = ("none", "elementwise", "attention_core", "half_products", "mlp", "full")
"""From keeping everything to keeping each layer's input only.

``elementwise``: everything but matrix products and attention; ``attention_core``: scores, softmax
and their product with values (Korthikanti et al., arXiv 2205.05198); ``half_products``: elementwise
operations, and every second matrix product (as torchtitan's selective mode); ``mlp``: the
feed-forward part of a layer; ``full``: the whole layer.
"""


def window_share(parts: Sequence[tuple[float, float]], pp: int) -> float:
    """Compute the part of the memory that micro-batches in flight together need.

    ``parts``: of up to ``pp`` micro-batches in a row, padded tokens / MaxLen of its mode, and the
    share of a token's bytes that the mode keeps until backward. The first of ``pp`` stages keeps
    1/pp of the layers of each, and one of them is in backward with all that it recomputes.
    """
    kept_share = sum(used * share for used, share in parts) / pp
    return kept_share + max((used * (1 - share) for used, share in parts), default=0.0)
