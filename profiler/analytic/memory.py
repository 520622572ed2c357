"""Bytes on the fullest GPU: model states by ZeRO stage, activations by checkpointing, logits."""

from __future__ import annotations

from collections.abc import Mapping

from seqplan.plans.scheme import Scheme
from seqplan.profiler.analytic.hardware import GIB
from seqplan.profiler.analytic.terms import Deployment
from seqplan.profiler.model_sizes import ModelSizes

PARAMETER_BYTES, OPTIMIZER_BYTES = 2, 12
"""bf16 parameter; fp32 master copy and two Adam moments."""

UNSPLIT_BYTES = 1.5
"""Per token, hidden unit and layer on every rank of tp: what tp does not split. By this much the
activations of a rank grow with each rank of tp in what Hydraulis (arXiv 2412.07894) publishes."""

LOGIT_BYTES = 10
"""bf16 logits, their fp32 copy and its gradient."""

CONTEXT_BYTES = 3 * GIB
"""CUDA context, NCCL's buffers and cuBLAS's workspaces."""

FRAGMENTATION = 0.05
"""Share of the memory that a caching allocator cannot hand out."""


def state_bytes(deployment: Deployment) -> tuple[float, float, float]:
    """Count bytes of states: sharded over all ranks, resident of layers, resident of embeddings.

    Before any division. ZeRO 1 shards the optimizer's states, 2 gradients too, 3 parameters too.
    """
    sizes, zero, gradient = deployment.sizes, deployment.zero, deployment.gradient_bytes
    everything = sizes.parameters
    layers, embeddings = sizes.layers * sizes.layer_parameters, sizes.embedding_parameters
    sharded = OPTIMIZER_BYTES
    resident = PARAMETER_BYTES + gradient
    if zero >= 2:
        sharded, resident = sharded + gradient, resident - gradient
    if zero == 3:
        sharded, resident = sharded + PARAMETER_BYTES, resident - PARAMETER_BYTES
    return float(sharded * everything), float(resident * layers), float(resident * embeddings)


def layer_activation_bytes(sizes: ModelSizes, checkpointing: str, tp: int) -> float:
    """Count what one layer keeps per token, all in bf16, before division over tp·ulysses·ring.

    Attention keeps its input, the normed input, q, k, v, its output and the residual sum; the
    feed-forward its normed input, gate, up and their product.
    """
    attention = 2.0 * (3 * sizes.hidden + 2 * sizes.attention_width + 2 * sizes.kv_width)
    attention += UNSPLIT_BYTES * tp * sizes.hidden
    feed_forward = 2 * (sizes.hidden + 3 * sizes.ffn)
    return {
        "none": float(attention + feed_forward),
        "mlp": float(attention),
        "full": 2.0 * sizes.hidden,
    }[checkpointing]


def activation_bytes_per_token(sizes: ModelSizes, checkpointing: str, tp: int) -> float:
    """Count all layers, what is recomputed of one, and the logits; before division over ranks."""
    layer_bytes = layer_activation_bytes(sizes, checkpointing, tp)
    whole = layer_activation_bytes(sizes, "none", tp)
    return sizes.layers * layer_bytes + (whole - layer_bytes) + LOGIT_BYTES * sizes.vocab


def peak_bytes(
    deployment: Deployment, scheme: Scheme, dp: int, tokens: float
) -> Mapping[str, float]:
    """Count bytes by kind on the fullest GPU, micro-batches of ``tokens`` tokens, ``dp`` replicas.

    1F1B's first stage keeps pp micro-batches of layers/pp layers, so activations of all layers; the
    last keeps one, and the logits. The fuller of the two counts.
    """
    sizes = deployment.sizes
    sharded, layers, embeddings = state_bytes(deployment)
    held = 1.0 if scheme.pp == 1 or sizes.tied else 0.5
    spread = scheme.tp * scheme.sp
    layer_bytes = layer_activation_bytes(sizes, deployment.checkpointing, scheme.tp)
    recomputed = layer_activation_bytes(sizes, "none", scheme.tp) - layer_bytes
    logits = LOGIT_BYTES * sizes.vocab * tokens / spread
    first = tokens * (sizes.layers * layer_bytes + recomputed) / spread
    last = tokens * (sizes.layers / scheme.pp * layer_bytes + recomputed) / spread
    activations = first
    if scheme.pp > 1 and first >= last + logits:
        logits = 0.0
    else:
        activations = last
    return {
        "optimizer and sharded states": sharded / (scheme.gpus * dp),
        "parameters and gradients": layers / (scheme.tp * scheme.pp)
        + held * embeddings / scheme.tp,
        "activations": activations,
        "logits": logits,
        "buffers": _buffer_bytes(deployment, scheme, tokens),
        "context": float(CONTEXT_BYTES),
    }


def _buffer_bytes(deployment: Deployment, scheme: Scheme, tokens: float) -> float:
    """Count a tp block's gathered input, K, V and gradients in flight, and two gathered layers."""
    sizes = deployment.sizes
    buffers = 0.0
    if scheme.tp > 1:
        buffers += 2 * tokens / scheme.sp * sizes.hidden
    if scheme.ring > 1:
        held = tokens / (scheme.ring * scheme.tp * scheme.ulysses)
        buffers += 2 * held * sizes.kv_width * (2 + 4)
    if deployment.zero == 3:
        buffers += 2 * (PARAMETER_BYTES + 2) * sizes.layer_parameters / scheme.tp
    return buffers


def usable_bytes(memory_bytes: float) -> float:
    """Return what of a GPU's memory may be planned with."""
    return memory_bytes * (1 - FRAGMENTATION)
