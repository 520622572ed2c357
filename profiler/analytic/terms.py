"""Forward and backward of one micro-batch on one pipeline stage, as named terms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqplan.plans.scheme import Scheme
from seqplan.profiler.analytic.attention import attention_ms
from seqplan.profiler.analytic.hardware import ClusterHardware
from seqplan.profiler.analytic.kernels import matmul_ms, memory_ms
from seqplan.profiler.analytic.links import placement, ring_collective_ms
from seqplan.profiler.model_sizes import ModelSizes

Floats = npt.NDArray[np.float64]

CHECKPOINTING = ("none", "mlp", "full")
"""What backward computes again instead of keeping: nothing, the feed-forward, the whole layer."""

LAUNCH_US = 5.0
"""From one kernel's end to the next one's start, where nothing hides it."""

KERNELS_FORWARD, KERNELS_BACKWARD = 20, 40
"""Kernels of a layer: products, norms, rotary positions, activation, additions, collectives."""

KERNELS_RING_STEP = 2
"""The attention kernel and the merge of a ring step."""

LOSS_BYTES = 22
"""Bytes moved per logit: bf16 written and read, fp32 copy written, softmax read and written,
gradient read and written in bf16."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """A model on a cluster; ``zero``: ZeRO stage 1, 2 or 3; ``ValueError`` for other values.

    ``gradient_bytes``: of a gradient's sum during a step, 4 in fp32, 2 in bf16.
    """

    cluster: ClusterHardware
    sizes: ModelSizes
    zero: int = 1
    checkpointing: str = "none"
    gradient_bytes: int = 4

    def __post_init__(self) -> None:
        if self.zero not in (1, 2, 3):
            raise ValueError(f"zero wants 1, 2 or 3, not {self.zero!r}")
        if self.checkpointing not in CHECKPOINTING:
            raise ValueError(
                f"checkpointing wants one of {', '.join(CHECKPOINTING)}, not {self.checkpointing!r}"
            )


def stage_terms(
    deployment: Deployment, scheme: Scheme, lengths: npt.ArrayLike, dp: int = 1
) -> dict[str, Floats]:
    """Return milliseconds of forward + backward on the slowest stage, the last, by term.

    ``lengths``: tokens, shape (…, sequences), 0 where a micro-batch has fewer; each term (…). The
    stage holds layers/pp layers and the output head. Terms add up; what overlaps is counted once.
    """
    sequences = np.asarray(lengths, dtype=np.float64)
    tokens = sequences.sum(axis=-1)
    layers = deployment.sizes.layers / scheme.pp
    passes = _passes(deployment.checkpointing)
    terms: dict[str, Floats] = {
        "matrix products": layers * _products_ms(deployment, scheme, tokens),
        "memory-bound": layers * _memory_bound_ms(deployment, scheme, tokens),
        **_attention(deployment, scheme, sequences, layers, passes),
        "tp communication": layers * _tp_ms(deployment, scheme, tokens),
        "head and loss": _head_ms(deployment, scheme, tokens),
        "launch": np.full_like(tokens, _launch_ms(scheme, layers, passes)),
    }
    if deployment.zero == 3:
        hidden_by = sum(
            terms[name] for name in ("matrix products", "memory-bound", "attention")
        ) + np.zeros_like(tokens)
        moved = 3 * ring_collective_ms(
            deployment.cluster,
            placement(scheme, dp)["replica"],
            2 * layers * deployment.sizes.layer_parameters / scheme.tp,
        )
        terms["parameter gathering"] = np.maximum(moved - hidden_by, 0.0)
    return terms


@dataclass(frozen=True, slots=True)
class _Passes:
    """How often forward runs, of attention and of the feed-forward; backward once each."""

    attention: int
    feed_forward: int


def _passes(checkpointing: str) -> _Passes:
    return {"none": _Passes(1, 1), "mlp": _Passes(1, 2), "full": _Passes(2, 2)}[checkpointing]


def _products_ms(deployment: Deployment, scheme: Scheme, tokens: Floats) -> Floats:
    """Time the four products of a layer: forward, and backward for inputs and for weights."""
    sizes, hardware, passes = (
        deployment.sizes,
        deployment.cluster.hardware,
        _passes(deployment.checkpointing),
    )
    rows = tokens / scheme.sp  # gathered over tp
    width = sizes.attention_width / scheme.tp
    kv_width = max(sizes.kv_heads / scheme.tp, 1.0) * sizes.head_width
    ffn = sizes.ffn / scheme.tp
    total = np.zeros_like(tokens)
    for inner, columns, forwards in (
        (sizes.hidden, width + 2 * kv_width, passes.attention),
        (width, sizes.hidden, passes.attention),
        (sizes.hidden, 2 * ffn, passes.feed_forward),
        (ffn, sizes.hidden, passes.feed_forward),
    ):
        total += forwards * matmul_ms(hardware, rows, inner, columns)
        total += matmul_ms(hardware, rows, columns, inner)
        total += matmul_ms(hardware, inner, rows, columns)
    return total


def _memory_bound_ms(deployment: Deployment, scheme: Scheme, tokens: Floats) -> Floats:
    """Time norms (8 bytes an element, two), residual sums (6, two), rotary positions, activation.

    Backward moves twice as much. Norms and sums are split over tp by tokens, the rest by width.
    """
    sizes, passes = deployment.sizes, _passes(deployment.checkpointing)
    attention = 10 * sizes.hidden + 4 * (sizes.attention_width + sizes.kv_width)
    feed_forward = 10 * sizes.hidden + 6 * sizes.ffn
    moved = (passes.attention + 2) * attention + (passes.feed_forward + 2) * feed_forward
    return memory_ms(deployment.cluster.hardware, moved * tokens / (scheme.sp * scheme.tp))


def _attention(
    deployment: Deployment, scheme: Scheme, sequences: Floats, layers: float, passes: _Passes
) -> dict[str, Floats]:
    forward, backward = (
        attention_ms(deployment.cluster, deployment.sizes, scheme, sequences, backward=direction)
        for direction in (False, True)
    )
    return {
        name: layers * (passes.attention * getattr(forward, part) + getattr(backward, part))
        for name, part in (
            ("attention", "kernel"),
            ("ulysses", "ulysses"),
            ("ring transfer", "ring"),
            ("ring merge", "merge"),
        )
    }


def _tp_ms(deployment: Deployment, scheme: Scheme, tokens: Floats) -> Floats:
    """Time a layer's four all-gathers and reduce-scatters (USP, table 2), more when recomputing.

    Two blocks, attention and feed-forward, each gather and scatter once forward and once backward.
    """
    passes = _passes(deployment.checkpointing)
    once = ring_collective_ms(
        deployment.cluster,
        placement(scheme, 1)["tp"],
        2 * tokens / scheme.sp * deployment.sizes.hidden,
    )
    return 2 * (passes.attention + passes.feed_forward + 2) * once


def _head_ms(deployment: Deployment, scheme: Scheme, tokens: Floats) -> Floats:
    """Time the last stage's logits and loss: three products, and passes over the logits."""
    sizes, hardware = deployment.sizes, deployment.cluster.hardware
    rows, columns = tokens / scheme.sp, sizes.vocab / scheme.tp
    return (
        matmul_ms(hardware, rows, sizes.hidden, columns)
        + matmul_ms(hardware, rows, columns, sizes.hidden)
        + matmul_ms(hardware, sizes.hidden, rows, columns)
        + memory_ms(hardware, LOSS_BYTES * rows * columns)
    )


def _launch_ms(scheme: Scheme, layers: float, passes: _Passes) -> float:
    forwards = (passes.attention + passes.feed_forward) / 2
    kernels = forwards * KERNELS_FORWARD + KERNELS_BACKWARD
    kernels += (passes.attention + 1) * KERNELS_RING_STEP * (scheme.ring - 1)
    return layers * kernels * LAUNCH_US / 1e3
