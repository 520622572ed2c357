"""Which schemes a model's sizes allow at all, as the runtime executes them."""

from __future__ import annotations

from seqplan.plans.scheme import Scheme

STAGED_MICRO_STEPS = (
    "lockstep with stages is for trainers that change groups between micro-batches (Megatron); "
    "here plan without lockstep, or with pp 1"
)
"""Reason why the built-in Llama runs no micro-steps that go through stages."""


def find_unsupported(
    scheme: Scheme, *, layers: int, heads: int, kv_heads: int, ffn: int, vocab: int
) -> str | None:
    """Return in one clause why a model cannot run ``scheme``, None if it can.

    Query heads are split evenly over tp and as evenly as they go over Ulysses within it; key heads
    with them or, if there are fewer, as copies. Layers, the feed-forward's rows and words need
    not be multiples of a degree.
    """
    if heads % scheme.tp:
        return f"tp {scheme.tp} does not divide the model's {heads} attention heads"
    if kv_heads % scheme.tp and scheme.tp % kv_heads:
        return f"tp {scheme.tp} neither divides the model's {kv_heads} KV heads nor the other way"
    if scheme.tp * scheme.ulysses > heads:
        split = f"tp {scheme.tp} and " if scheme.tp > 1 else ""
        return (
            f"{split}Ulysses degree {scheme.ulysses} exceed{'' if split else 's'} the model's "
            f"{heads} attention heads: plan with a smaller degree, or with ring attention instead"
        )
    for size, name in ((ffn, "feed-forward rows"), (vocab, "words")):
        if scheme.tp > size:
            return f"tp {scheme.tp} exceeds the model's {size} {name}"
    if scheme.pp > layers:
        return f"pp {scheme.pp} exceeds the model's {layers} layers"
    return None
