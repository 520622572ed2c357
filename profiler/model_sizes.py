"""Which schemes a model can run at all, from its heads, key/value heads, layers and node size."""

from __future__ import annotations

from dataclasses import dataclass

from seqplan.plans.scheme import Scheme


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a Transformer; None where a source does not state them."""

    hidden: int
    layers: int
    vocab: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn: int | None = None


def scheme_problem(
    scheme: Scheme, shape: ModelShape, *, gpus_per_node: int | None = None
) -> str | None:
    """Why ``shape`` cannot run ``scheme``, or None when it can.

    tp and ulysses both split the attention heads; pp splits the layers; key/value heads are split
    with the heads or, where there are fewer of them, replicated whole. ``gpus_per_node``: also
    refuse tensor parallelism across nodes (leave it out for schemes that were measured).
    """
    split = scheme.tp * scheme.ulysses
    if shape.heads is not None and shape.heads % split:
        return f"tp·ulysses = {split} does not divide the {shape.heads} attention heads"
    if shape.kv_heads is not None:
        if shape.kv_heads % scheme.tp and scheme.tp % shape.kv_heads:
            return f"tp = {scheme.tp} neither divides nor replicates {shape.kv_heads} KV heads"
        if shape.kv_heads % split and split % shape.kv_heads:
            return f"tp·ulysses = {split} neither divides nor replicates {shape.kv_heads} KV heads"
    if shape.layers % scheme.pp:
        return f"pp = {scheme.pp} does not divide the {shape.layers} layers"
    if gpus_per_node is not None and scheme.tp > gpus_per_node:
        return f"tp = {scheme.tp} spans nodes of {gpus_per_node} GPUs"
    return None
