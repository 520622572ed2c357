"""Bytes on the fullest GPU: model states by ZeRO stage, activations by recomputation mode, logits.

Constants are stated with their sources; gradients' bytes and whether tp splits norms and
residuals by tokens are the deployment's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf

from seqplan.costs.analytic.deployment import CHUNK_ROWS, ELEMENT_BYTES, Deployment
from seqplan.costs.analytic.gpus.hardware import GIB
from seqplan.costs.analytic.recurrent import count_recurrent_elements
from seqplan.costs.model_sizes import ModelSizes
from seqplan.plans.recomputation import count_offloaded_in_flight
from seqplan.plans.scheme import Scheme

PARAMETER_BYTES, OPTIMIZER_BYTES = 2, 12
"""bf16 parameter; fp32 master copy and two Adam moments."""

UNSPLIT_BYTES = 1.5
"""Per token, hidden unit and layer on every rank of tp, if tp does not split norms and residuals
by tokens: what it does not split. By this much the activations of a rank grow with each rank of tp
in what Hydraulis (arXiv 2412.07894) publishes."""

LOGIT_BYTES = 10
"""bf16 logits, their fp32 copy and its gradient; a stack may keep more, see ``Stack``."""

TILE_PASSES = 7
"""Elements of a tile's feed-forward that are there at once, per token and its width."""

CONTEXT_BYTES = 3 * GIB
"""CUDA context, NCCL's buffers and cuBLAS's workspaces: assumed."""

FRAGMENTATION = 0.05
"""Share of the memory that a caching allocator cannot hand out."""

MOVING_LAYERS = 2
"""Layers whose activations are on the device and on their way to the host or back."""

TIGHT = 0.1
"""How far the bytes may be off: from this share below the usable memory to this share above the
whole the answer is *tight*."""


def state_bytes(deployment: Deployment) -> tuple[float, float, float]:
    """Count bytes of states: sharded over all ranks, resident of layers, resident of embeddings.

    On the device, before any division. ZeRO 1 shards the optimizer's states, 2 gradients too, 3
    parameters too.
    """
    sizes, zero, gradient = deployment.sizes, deployment.zero, deployment.gradient_bytes
    everything = sizes.parameters
    layers, embeddings = sizes.layers_parameters, sizes.embedding_parameters
    sharded = 0 if deployment.offload_optimizer else OPTIMIZER_BYTES
    resident = PARAMETER_BYTES + gradient
    if zero >= 2:
        sharded, resident = sharded + gradient, resident - gradient
    if zero == 3:
        sharded, resident = sharded + PARAMETER_BYTES, resident - PARAMETER_BYTES
    if deployment.offload_parameters:
        sharded = 0
    return float(sharded * everything), float(resident * layers), float(resident * embeddings)


def count_expert_bytes(deployment: Deployment) -> float:
    """Count the resident part of the experts' states, which those of layers contain."""
    sizes = deployment.sizes
    return state_bytes(deployment)[1] * sizes.expert_parameters / sizes.layers_parameters


def layer_activation_bytes(
    sizes: ModelSizes,
    recompute: str,
    tp: int,
    *,
    sequence_parallel: bool = True,
    imbalance: float = 1.0,
    modules: Collection[str] = (),
    input_bytes: float = 2.0,
) -> float:
    """Count the saved bytes of one layer per token, before division over tp·ulysses·ring.

    Attention keeps its input, the normed input, q, k, v, its output and the residual sum; the
    feed-forward its normed input, gate, up and their product; experts that for each that a token
    runs through. ``elementwise`` keeps the outputs of products and attention, ``half_products``
    those of attention and of every second product, which is most with fused projections: the first
    of attention and of the feed-forward. ``attention_core`` drops nothing but the sums of softmax:
    a fused kernel keeps no scores. The mean of all layers. ``imbalance``: tokens of the fullest
    rank of experts over the mean; ``modules``: parts that ``none`` recomputes, of
    ``RECOMPUTED_MODULES``; ``input_bytes``: of an element that a product keeps, in its precision.
    """
    special = sizes.architecture
    attended = 2 * sizes.attention_width + 2 * sizes.find_kv_width(tp)
    if special.kv_rank:
        attended += special.query_rank + special.kv_rank + special.rope_dim
    if special.attention_gate:
        attended += 2 * sizes.attention_width  # the gate, and its factor
    layers = sizes.layers
    inner = (sizes.attending_layers * attended + count_recurrent_elements(special)) / layers
    fed = 1 - special.bare_layers / layers
    sparse_share, dense_share = special.expert_layers / layers, sizes.dense_layers / layers
    chosen = special.experts_per_token * imbalance * sparse_share
    ffn = dense_share * sizes.ffn + sparse_share * special.shared_ffn
    ffn += chosen * special.expert_ffn
    rows = chosen * sizes.expert_width  # to experts, and as many back
    latent = sparse_share * special.expert_latent  # before experts, and the sum after them
    unsplit = 0.0 if sequence_parallel else UNSPLIT_BYTES * tp * sizes.hidden
    attention = 2.0 * ((1 + fed) * sizes.hidden + inner) + input_bytes * sizes.hidden + unsplit
    expanded = 1 if special.ungated else 2
    feed_forward = 2 * (expanded * ffn + rows) + input_bytes * (fed * sizes.hidden + ffn + rows)
    feed_forward += input_bytes * latent
    put_out = 2.0 * ((1 + fed) * sizes.hidden + inner + expanded * ffn + 2 * rows) + unsplit
    put_out += 2.0 * latent
    of_width = 2.0 * expanded + input_bytes
    statistics = 4.0 * sizes.heads * sizes.attending_layers / layers
    dropped = {
        "layernorm": (1 + fed) * input_bytes * sizes.hidden,
        "core_attn": statistics,
        "mla_up_proj": 2.0 * sizes.heads * (2 * (special.nope_dim + special.rope_dim))
        + 2.0 * sizes.heads * special.value_dim,
        "moe_act": input_bytes * chosen * special.expert_ffn,
        "mlp": of_width * dense_share * sizes.ffn,
        "shared_experts": of_width * sparse_share * special.shared_ffn,
        "moe": of_width * chosen * special.expert_ffn + (2 + input_bytes) * rows,
    }
    return {
        "none": float(attention + feed_forward) - sum(dropped[name] for name in modules),
        "elementwise": float(put_out),
        "attention_core": float(attention + feed_forward - statistics),
        "half_products": put_out - 2.0 * sizes.hidden,
        "mlp": float(attention),
        "full": 2.0 * sizes.hidden,
    }[recompute]


def activation_bytes_per_token(deployment: Deployment, tp: int) -> float:
    """Count all layers, one's recomputed part, and the logits; before division over ranks."""
    return count_kept_bytes(deployment, tp) + count_transient_bytes(deployment, tp)


def count_kept_bytes(deployment: Deployment, tp: int) -> float:
    """Count the bytes that all layers keep until backward; before division over ranks.

    On the device: those of layers that are offloaded are ``count_host_bytes``.
    """
    layers = deployment.sizes.layers * (1 - deployment.offload_layers)
    return layers * _split_recomputed(deployment, tp)[0]


def count_host_bytes(deployment: Deployment, tp: int, pp: int = 1) -> float:
    """Count the bytes that layers keep on the host until backward; before division over ranks.

    Of pp micro-batches in flight on a stage, whose number of layers is rounded up.
    """
    share, layers = deployment.offload_layers, deployment.sizes.layers
    kept = _split_recomputed(deployment, tp)[0]
    return count_offloaded_in_flight(share, layers, pp) * kept


def count_transient_bytes(deployment: Deployment, tp: int) -> float:
    """Count one layer's recomputed part or the logits; before division over ranks.

    The larger, as logits are gone when a layer is recomputed. With offload also ``MOVING_LAYERS``,
    on their way to the host or back.
    """
    kept, recomputed = _split_recomputed(deployment, tp)
    moving = MOVING_LAYERS * kept if deployment.offload_layers else 0.0
    return moving + max(recomputed, count_logit_bytes(deployment))


def count_host_state_bytes(deployment: Deployment) -> float:
    """Count the bytes of states in host memory; before division over ranks."""
    offloaded = OPTIMIZER_BYTES if deployment.offload_optimizer else 0
    if deployment.offload_parameters:
        offloaded += PARAMETER_BYTES + deployment.gradient_bytes
    return float(offloaded * deployment.sizes.parameters)


def count_logit_bytes(deployment: Deployment) -> float:
    """Count the bytes of the loss that grow with tokens; before division over ranks."""
    sizes = deployment.sizes
    width = {"whole": sizes.vocab, "chunked": 0, "fused": sizes.hidden}[deployment.loss]
    return float(deployment.rates.logit_bytes * width)


def count_fixed_loss_bytes(deployment: Deployment) -> float:
    """Count the bytes of the loss that do not grow with tokens; before division over tp."""
    return float(
        LOGIT_BYTES * CHUNK_ROWS * deployment.sizes.vocab if deployment.loss == "chunked" else 0
    )


def _split_recomputed(deployment: Deployment, tp: int) -> tuple[float, float]:
    """Count a layer's bytes per token that stay, and those that recomputing it adds."""
    kept_bytes, whole = (
        layer_activation_bytes(
            deployment.sizes,
            recompute,
            tp,
            sequence_parallel=deployment.sequence_parallel,
            imbalance=deployment.experts.imbalance,
            modules=modules,
            input_bytes=ELEMENT_BYTES[deployment.precision],
        )
        for recompute, modules in (
            (deployment.recompute, deployment.recompute_modules),
            ("none", ()),
        )
    )
    recomputed = _count_recomputed(deployment, tp, kept_bytes, whole)
    return kept_bytes + _count_added_bytes(deployment, tp), recomputed


def _count_recomputed(deployment: Deployment, tp: int, kept: float, whole: float) -> float:
    """Count the most bytes per token of a layer in backward beyond those it keeps.

    All that is recomputed; with the gradients of gate and up, if the stack keeps gradients, before
    the feed-forward is gone and attention has its. In tiles a feed-forward needs none that grow
    with tokens.
    """
    sizes, mode = deployment.sizes, deployment.recompute
    if mode not in ("mlp", "full"):
        return whole - kept
    attention = layer_activation_bytes(
        sizes,
        "mlp",
        tp,
        sequence_parallel=deployment.sequence_parallel,
        input_bytes=ELEMENT_BYTES[deployment.precision],
    )
    in_attention, in_feed_forward = attention - kept, whole - kept
    if deployment.rates.keeps_gradients:
        special = sizes.architecture
        width = sizes.dense_layers / sizes.layers * sizes.ffn
        in_feed_forward += 2 * (sizes.hidden + (1 if special.ungated else 2) * width)
        if mode == "full":
            in_attention += _count_attention_gradients(deployment)
    return max(in_attention, 0.0 if deployment.tiled_mlp else in_feed_forward)


def _count_attention_gradients(deployment: Deployment) -> int:
    """Count the bytes per token of attention's gradients in a layer, by its kernel.

    Of the layer's and attention's output, of queries in bf16 and summed in fp32, of keys and
    values. If those are fewer, FlashAttention 2 has them for each query head, and 3 sums them in
    fp32. ``sdpa`` copies keys and values to each query head before.
    """
    sizes, kernel = deployment.sizes, deployment.cluster.hardware.attention_kernel
    queries, keys = sizes.attention_width, sizes.kv_width
    total = 2 * sizes.hidden + 8 * queries + 4 * keys
    if sizes.kv_heads < sizes.heads:
        total += 8 * keys if kernel == "fa3" else 4 * queries
        total += 4 * (queries - keys) if kernel == "sdpa" else 0
    return total


def _count_added_bytes(deployment: Deployment, tp: int) -> float:
    """Count a layer's bytes per token by cost terms of packages. ``ValueError`` if negative."""
    total = 0.0
    for term in deployment.added_terms:
        added = float(term.layer_bytes(deployment, tp))
        if not 0 <= added < inf:
            raise ValueError(f"cost term {term.name!r}: layer_bytes is {added}. Return 0 or more")
        total += added
    return total


def peak_bytes(
    deployment: Deployment, scheme: Scheme, dp: int, tokens: float
) -> Mapping[str, float]:
    """Count bytes by kind on the fullest GPU, micro-batches of ``tokens`` tokens, ``dp`` replicas.

    1F1B's first stage keeps pp micro-batches of layers/pp layers, so activations of all layers,
    and where stages are interleaved (pp − 1)/(pp·v) more; the last keeps one, and the logits. The
    fuller of the two counts. Logits are what they need beyond a recomputed layer, which is there
    after them.
    """
    sizes = deployment.sizes
    sharded, layers, embeddings = state_bytes(deployment)
    per_parameter = layers / sizes.layers_parameters
    held = 1.0 if scheme.pp == 1 or sizes.tied else 0.5
    spread = scheme.tp * scheme.sp
    layer_bytes, recomputed = _split_recomputed(deployment, scheme.tp)
    if deployment.offload_layers:
        recomputed += MOVING_LAYERS * layer_bytes
        layer_bytes *= 1 - deployment.offload_layers
    logits = max(0.0, count_logit_bytes(deployment) - recomputed) * tokens / spread
    logits += (
        count_fixed_loss_bytes(deployment) / scheme.tp * min(1.0, tokens / scheme.sp / CHUNK_ROWS)
    )
    parts = scheme.pp * deployment.virtual_stages
    held_layers = deployment.stage_layers(scheme.pp)
    ahead = 1.0 if deployment.virtual_stages == 1 else 1 + (scheme.pp - 1) / parts
    first = tokens * (scheme.pp * held_layers * ahead * layer_bytes + recomputed) / spread
    last = tokens * (held_layers * layer_bytes + recomputed) / spread
    activations = first
    if scheme.pp > 1 and first >= last + logits:
        logits = 0.0
    else:
        activations = last
    return {
        "optimizer and sharded states": sharded / (deployment.optimizer_shards or scheme.gpus * dp),
        "parameters and gradients": per_parameter
        * count_held_parameters(deployment, scheme)
        * held_layers
        + held * embeddings / scheme.tp,
        "activations": activations,
        "logits": logits,
        "buffers": _buffer_bytes(deployment, scheme, tokens),
        "context": float(CONTEXT_BYTES),
    }


def count_held_parameters(deployment: Deployment, scheme: Scheme) -> float:
    """Count the parameters of a layer on a rank, states not sharded."""
    sizes, experts = deployment.sizes, deployment.experts
    holders = experts.ranks if experts.degree > 1 else scheme.tp
    dense = (sizes.layers_parameters - sizes.expert_parameters) / scheme.tp
    return (dense + sizes.expert_parameters / holders) / sizes.layers


def _buffer_bytes(deployment: Deployment, scheme: Scheme, tokens: float) -> float:
    """Count a tp block's gathered input, K, V and gradients, and ``count_fixed_buffer_bytes``."""
    per_token = count_gathered_bytes(deployment.sizes.hidden, scheme.tp)
    per_token += count_transfer_bytes(deployment, scheme)
    fixed = count_fixed_buffer_bytes(deployment, scheme)
    return fixed + per_token * tokens / (scheme.tp * scheme.sp)


def count_gathered_bytes(hidden: int, tp: int) -> float:
    """Count a tp block's gathered input, per token and before division over tp·sp."""
    return 0.0 if tp == 1 else 2.0 * hidden * tp


def count_transfer_bytes(deployment: Deployment, scheme: Scheme) -> float:
    """Count bytes that ring and Ulysses send and receive, per token before division over tp·sp.

    Of a ring keys and values in bf16 and their gradients in fp32; if they are gathered, of all its
    ranks at once. Of Ulysses the keys and values that are copied to have a head a rank, in each
    layer that keeps them.
    """
    sizes, total = deployment.sizes, 0.0
    keys = sizes.find_kv_width(scheme.tp * scheme.ulysses)
    copied = count_copied_bytes(sizes, scheme)
    if scheme.ring > 1:
        held = scheme.ring if deployment.context_parallel == "all-gather" else 1
        total += 2 * keys * (2 + 4) * held
    if deployment.recompute != "full":
        total += copied * sizes.attending_layers * (1 - deployment.offload_layers)
    elif deployment.rates.keeps_gradients and scheme.ulysses > 1:
        # Sent next to received: attention's output, its gradient, and those of q, k and v.
        total += 6 * sizes.attention_width + 4 * keys + 2 * copied
    else:
        total += copied
    return total


def count_copied_bytes(sizes: ModelSizes, scheme: Scheme) -> int:
    """Count a layer's bytes of keys and values that Ulysses copies.

    So that each rank has a head: per token, in bf16, before division over tp·sp. Those that tp
    copies are not among them.
    """
    copied = sizes.find_kv_width(scheme.tp * scheme.ulysses) - sizes.find_kv_width(scheme.tp)
    return 2 * 2 * copied


def count_fixed_buffer_bytes(deployment: Deployment, scheme: Scheme) -> float:
    """Count the bytes of buffers that do not grow with tokens: tiles, and two gathered layers."""
    buffers = 0.0
    if deployment.tiled_mlp:
        buffers += 2 * TILE_PASSES * deployment.sizes.hidden * deployment.sizes.ffn
    if deployment.zero == 3:
        buffers += 2 * (PARAMETER_BYTES + 2) * count_held_parameters(deployment, scheme)
    return buffers


def usable_bytes(memory_bytes: float) -> float:
    """Return the usable part of a GPU's memory."""
    return memory_bytes * (1 - FRAGMENTATION)


VERDICTS = ("fits", "tight", "does not fit")


def verdict(needed_bytes: float, memory_bytes: float) -> str:
    """Return ``fits``, ``tight`` or ``does not fit``, by ``TIGHT``."""
    if needed_bytes <= (1 - TIGHT) * usable_bytes(memory_bytes):
        return VERDICTS[0]
    return VERDICTS[1] if needed_bytes <= (1 + TIGHT) * memory_bytes else VERDICTS[2]
