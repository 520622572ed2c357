"""Forward and backward of one micro-batch on one pipeline stage, as named terms."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from seqplan.costs.analytic.attention import TRANSFER_MULTIPROCESSORS, attention_terms
from seqplan.costs.analytic.deployment import CostTerm, Deployment
from seqplan.costs.analytic.experts import LAUNCHES, expert_terms, split_parameters
from seqplan.costs.analytic.gpus.kernels import memory_ms, product_ms
from seqplan.costs.analytic.gpus.links import (
    placement,
    rank_latency_ms,
    ring_collective_ms,
)
from seqplan.costs.analytic.layers import Passes, memory_bound_ms, products_ms
from seqplan.costs.analytic.memory import count_host_bytes
from seqplan.costs.analytic.recurrent import recurrent_terms
from seqplan.plans.scheme import Scheme

Floats = npt.NDArray[np.float64]

HIDING = (
    *("matrix products", "memory-bound", "attention", "linear attention", "experts"),
    *("state space", "ring transfer"),
)
"""Terms that hide ZeRO-3's collectives: kernels, and transfers of a ring that exceed their kernels.
Gathering goes on while attention waits for the ring; each is counted at the rate of its links."""

HIDES_COPIES = 0.9
"""Share of forward and of backward next to which copies to and from the host run: assumed."""

LOSS_BYTES = {"whole": 22, "chunked": 22, "fused": 10}
"""Bytes moved per logit: bf16 written and read, fp32 copy written, softmax read and written,
gradient read and written in bf16; a fused kernel makes no fp32 copy and passes over them once."""


def stage_terms(
    deployment: Deployment, scheme: Scheme, lengths: npt.ArrayLike, dp: int = 1
) -> dict[str, Floats]:
    """Return milliseconds of forward + backward on the slowest stage, the last, by term.

    ``lengths``: tokens, shape (…, sequences), 0 if a micro-batch has fewer; each term (…). A
    micro-batch without tokens takes no time. The stage holds layers/pp layers, rounded up, and the
    output head. Terms add up; what overlaps is counted once.
    """
    sequences = np.asarray(lengths, dtype=np.float64)
    tokens = sequences.sum(axis=-1)
    layers = float(deployment.stage_layers(scheme.pp))
    terms: dict[str, Floats] = {
        "matrix products": products_ms(deployment, scheme, layers, tokens),
        "memory-bound": memory_bound_ms(deployment, scheme, layers, tokens),
        **attention_terms(deployment, scheme, sequences, layers),
        "tp communication": _tp_ms(deployment, scheme, layers, tokens),
        "head and loss": _head_ms(deployment, scheme, tokens),
        "launch": np.full_like(tokens, _launch_ms(deployment, scheme, layers)),
    }
    if deployment.sizes.architecture.expert_layers:
        terms |= expert_terms(deployment, scheme, layers, tokens)
    forwards = Passes.from_deployment(deployment).core
    terms |= recurrent_terms(deployment, scheme, layers, tokens, forwards)
    if deployment.offload_layers:
        terms["offload"] = _offload_ms(deployment, scheme, tokens, terms)
    if deployment.zero == 3:
        terms["parameter gathering"] = _gathering_ms(deployment, scheme, dp, layers, terms)
    for added in deployment.added_terms:
        if added.name in terms:
            raise ValueError(f"cost term {added.name!r}: the analytic model has it. Rename it")
        terms[added.name] = _time_added_term(added, deployment, scheme, sequences)
    return {name: np.where(tokens > 0, term, 0.0) for name, term in terms.items()}


def _time_added_term(
    added: CostTerm, deployment: Deployment, scheme: Scheme, sequences: Floats
) -> Floats:
    """Time a package's cost term, checked."""
    term = np.asarray(added.stage_ms(deployment, scheme, sequences), dtype=np.float64)
    if term.shape not in ((), sequences.shape[:-1]):
        raise ValueError(
            f"cost term {added.name!r}: stage_ms returns shape {term.shape} for lengths of shape "
            f"{sequences.shape}. Return {sequences.shape[:-1]}"
        )
    if not np.all(np.isfinite(term) & (term >= 0)):
        raise ValueError(f"cost term {added.name!r}: stage_ms is negative, infinite or NaN. Fix it")
    return np.broadcast_to(term, sequences.shape[:-1])


def _tp_ms(deployment: Deployment, scheme: Scheme, layers: float, tokens: Floats) -> Floats:
    """Time a layer's four all-gathers and reduce-scatters (USP, table 2), more when recomputing.

    Two blocks, attention and feed-forward, each gather and scatter once forward and once backward.
    Tokens of experts that a block of ranks holds are exchanged, not gathered.
    ``Deployment.tp_overlap`` of it is hidden behind products.
    """
    special = deployment.sizes.architecture
    gathered = deployment.sizes.layers - special.bare_layers
    if deployment.experts.degree > 1 and not special.shared_ffn:
        gathered -= special.expert_layers
    passes = Passes.from_deployment(deployment)
    once = ring_collective_ms(
        deployment.cluster,
        placement(scheme, 1)["tp"],
        2 * tokens / scheme.sp * deployment.sizes.hidden,
    )
    exposed = 1 - deployment.tp_overlap
    feed_forward = (passes.feed_forward + 1) * gathered / deployment.sizes.layers
    return exposed * 2 * (passes.attention + 1 + feed_forward) * layers * once


def _head_ms(deployment: Deployment, scheme: Scheme, tokens: Floats) -> Floats:
    """Time the last stage's logits and loss: three products, and passes over the logits.

    A chunked loss makes its logits twice.
    """
    forwards = 2 if deployment.loss == "chunked" else 1
    sizes, hardware = deployment.sizes, deployment.cluster.hardware
    rows, columns = tokens / scheme.sp, sizes.vocab / scheme.tp
    once = product_ms(hardware, rows, sizes.hidden, columns, gain=deployment.product_gain)
    return (
        forwards * once.forward
        + once.inputs
        + once.weights
        + memory_ms(hardware, LOSS_BYTES[deployment.loss] * rows * columns)
    )


def _offload_ms(
    deployment: Deployment, scheme: Scheme, tokens: Floats, terms: Mapping[str, Floats]
) -> Floats:
    """Time that copies of activations to the host and back add, beyond what hides them.

    Forward hides ``HIDES_COPIES`` of its time in copies to the host, backward in those back.
    """
    of_token = count_host_bytes(deployment, scheme.tp, scheme.pp) / scheme.gpus
    moved = of_token * tokens
    copy_ms = moved / (deployment.cluster.hardware.host_gb_s * 1e6)
    whole = np.sum(list(terms.values()), axis=0)
    passes = Passes.from_deployment(deployment)
    forward = whole / (2 + (passes.attention + passes.feed_forward) / 2)
    return np.asarray(
        np.maximum(copy_ms - HIDES_COPIES * forward, 0.0)
        + np.maximum(copy_ms - HIDES_COPIES * (whole - forward), 0.0)
    )


def _launch_ms(deployment: Deployment, scheme: Scheme, layers: float) -> float:
    passes, stack = Passes.from_deployment(deployment), deployment.rates
    forwards = (passes.attention + passes.feed_forward) / 2
    kernels = forwards * stack.forward + stack.backward
    if deployment.context_parallel == "ring":
        kernels += (passes.core + 1) * stack.ring_step * (scheme.ring - 1)
    of_experts = deployment.sizes.architecture.expert_layers / deployment.sizes.layers
    kernels += of_experts * LAUNCHES * (min(passes.feed_forward, 2.0) + 2) / 3
    return layers * kernels * stack.launch_us / 1e3


def _gathering_ms(
    deployment: Deployment,
    scheme: Scheme,
    dp: int,
    layers: float,
    terms: Mapping[str, Floats],
) -> Floats:
    """Time what ZeRO-3's collectives add: parameters twice, gradients once, all in bf16.

    They run next to the layers' kernels, from which they take multiprocessors; what takes longer
    than those is added, and what nothing runs next to: the first layer's gathering, and the last
    gradients' scattering. So is the latency by ranks of each layer's three collectives.
    """
    sizes = deployment.sizes
    experts = layers / sizes.layers * sizes.expert_parameters
    dense = layers / sizes.layers * sizes.layers_parameters - experts
    parts = split_parameters(deployment, scheme, dp, dense, experts)
    hiding = sum(
        (terms[name] for name in HIDING if name in terms), start=np.zeros_like(terms["launch"])
    )
    moved = 3 * sum(
        float(ring_collective_ms(deployment.cluster, part.group, 2 * part.parameters))
        for part in parts
    )
    ranks_ms = sum(rank_latency_ms(deployment.cluster, part.group) for part in parts)
    transfer_share = TRANSFER_MULTIPROCESSORS / deployment.cluster.hardware.multiprocessors
    ends = 2 / 3 * moved / layers + 3 * layers * ranks_ms
    return np.asarray(np.maximum(moved - hiding, transfer_share * np.minimum(moved, hiding)) + ends)
