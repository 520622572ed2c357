"""Recomputation modes: which activations of a micro-batch the backward pass computes again."""

from __future__ import annotations

MODES = ("none", "elementwise", "attention_core", "half_products", "mlp", "full")
"""From keeping everything to keeping each layer's input only.

``elementwise``: everything but matrix products and attention; ``attention_core``: scores, softmax
and their product with values (Korthikanti et al., arXiv 2205.05198); ``half_products``: what is
elementwise, and every second matrix product (as torchtitan's selective mode); ``mlp``: the
feed-forward part of a layer; ``full``: the whole layer.
"""
