"""Experts of a stage: their products, the rows around them, and exchanges between their ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqplan.costs.analytic.deployment import ELEMENT_BYTES, Deployment
from seqplan.costs.analytic.gpus.kernels import TILE, memory_ms, product_ms
from seqplan.costs.analytic.gpus.links import Group, exchange_ms, ring_collective_ms, split_replicas
from seqplan.costs.analytic.layers import Passes
from seqplan.costs.architecture import Architecture
from seqplan.plans.scheme import Scheme

Floats = npt.NDArray[np.float64]

GROUPED_GAIN = 0.85
"""Rate of grouped products over that of large ones."""

BIAS_BYTES = 105.0
"""Bytes moved for an element of an expert's width by biases and a clamped activation function."""

LAUNCHES = 470
"""Kernels of a layer's experts that the host launches, of forward and backward."""

SHARED_TERMS = ("experts", "expert exchange")
"""Terms that the ranks of a block share: each has the mean of the block's tokens."""

CAST_BYTES = {"bf16": 0.0, "fp8": 4.0, "mxfp8": 4.0, "nvfp4": 4.0}
"""Bytes moved to cast an element of a product's input: read in bf16, written along rows and along
columns."""


def expert_terms(
    deployment: Deployment, scheme: Scheme, layers: float, tokens: Floats
) -> dict[str, Floats]:
    """Time the experts of ``layers`` layers, forward and backward, by term (ms)."""
    special = deployment.sizes.architecture
    share = layers / deployment.sizes.layers * special.expert_layers
    terms = {
        "experts": share
        * (_products_ms(deployment, scheme, tokens) + _rows_ms(deployment, scheme, tokens))
    }
    if deployment.experts.degree > 1:
        terms["expert exchange"] = share * _exchange_ms(deployment, scheme, tokens)
    return terms


def _split(deployment: Deployment, scheme: Scheme) -> tuple[int, int]:
    """Return the ranks that hold all experts, and those that split each."""
    experts = deployment.experts
    return (experts.degree, experts.tensor) if experts.degree > 1 else (1, scheme.tp)


def _count_rows(deployment: Deployment, scheme: Scheme, tokens: Floats) -> Floats:
    """Count the rows of a rank's experts, each for one of a token's experts."""
    _, tensor = _split(deployment, scheme)
    special = deployment.sizes.architecture
    local = tokens / (scheme.sp * scheme.tp) * tensor
    return local * special.experts_per_token * deployment.experts.imbalance


def _products_ms(deployment: Deployment, scheme: Scheme, tokens: Floats) -> Floats:
    """Time a layer's grouped products: forward, and backward for inputs and for weights.

    The rows of each expert fill whole tiles, half of one more on average.
    """
    sizes, special = deployment.sizes, deployment.sizes.architecture
    degree, tensor = _split(deployment, scheme)
    count = special.experts / degree
    rows = _count_rows(deployment, scheme, tokens) / count
    rows = np.where(rows > 0, rows + TILE[0] / 2, 0.0)
    expanded = 1 if special.ungated else 2
    passes = Passes.from_deployment(deployment)
    forwards = passes.feed_forward + passes.count("moe")
    gain = deployment.layer_product_gain * GROUPED_GAIN
    width = ELEMENT_BYTES[deployment.precision]
    total = np.zeros_like(tokens)
    split = special.expert_ffn / tensor
    for k, n in ((sizes.expert_width, expanded * split), (split, sizes.expert_width)):
        once = product_ms(
            deployment.cluster.hardware, rows, k, n, count=count, gain=gain, element_bytes=width
        )
        total = total + forwards * once.forward + once.inputs + once.weights
    return total


def _rows_ms(deployment: Deployment, scheme: Scheme, tokens: Floats) -> Floats:
    """Time what memory bounds: activation functions, casts, and rows put in order of experts."""
    sizes, special = deployment.sizes, deployment.sizes.architecture
    _, tensor = _split(deployment, scheme)
    rows = _count_rows(deployment, scheme, tokens)
    expanded = 1 if special.ungated else 2
    ffn, width = special.expert_ffn / tensor, sizes.expert_width
    passes = Passes.from_deployment(deployment)
    cast = CAST_BYTES[deployment.precision]
    activation = 2.0 * (expanded + 1) * ffn
    activation += BIAS_BYTES * ffn if special.expert_bias else 0.0
    ordered = deployment.experts.rates.passes * sizes.expert_width
    forwards = passes.feed_forward + passes.count("moe")
    between = passes.between[1] + max(passes.count("moe_act"), passes.count("moe"))
    moved = (between + 2) * activation + (forwards + 1) / 2 * ordered
    moved += cast * (forwards * (width + ffn) + width + expanded * ffn)
    return memory_ms(deployment.cluster.hardware, moved * rows * deployment.rates.memory_bound)


def count_copies(special: Architecture, places: int, limit: float | None = None) -> float:
    """Count the places that hold any of a token's experts, of ``places`` with equally many."""
    distinct = places * (1 - (1 - 1 / places) ** special.experts_per_token)
    return distinct if limit is None else min(distinct, limit)


def _exchange_ms(deployment: Deployment, scheme: Scheme, tokens: Floats) -> Floats:
    """Time a layer's exchanges: rows to their experts and back, in forward and in backward.

    Where the feed-forward is recomputed, its two again. ``ExpertParallelism.overlap`` of them is
    hidden.
    """
    cluster, sizes, options = deployment.cluster, deployment.sizes, deployment.experts
    special = sizes.architecture
    group = Group(options.degree, options.tensor)
    near = group.members_per_node(cluster)
    nodes = -(-options.degree // near)
    payload = 2.0 * tokens / (scheme.sp * scheme.tp) * sizes.expert_width
    if options.rates.deduplicated:
        limit = _node_limit(special, nodes)
        of_nodes = count_copies(special, nodes, limit)
        of_ranks = max(count_copies(special, options.degree), of_nodes)
        within, between = of_ranks * (near - 1) / near, of_nodes * (nodes - 1) / nodes
    else:
        copies = special.experts_per_token
        within = copies * (near - 1) / options.degree
        between = copies * (options.degree - near) / options.degree
    passes = Passes.from_deployment(deployment)
    forwards = (2 if passes.feed_forward == 2 else 1) + passes.count("moe")
    once = exchange_ms(
        cluster,
        group,
        within * payload * options.imbalance,
        between * payload * options.imbalance,
        options.rates.rate,
    )
    total = 2 * (forwards + 1) * once
    if options.tensor > 1:
        whole = payload * special.experts_per_token * options.tensor * options.imbalance
        gathered = ring_collective_ms(cluster, Group(options.tensor), whole)
        total = total + 2 * (forwards + 1) * gathered
    return np.asarray((1 - options.overlap) * total)


def _node_limit(special: Architecture, nodes: int) -> float | None:
    """Return the nodes that a token's experts are on at most, if routing limits them."""
    if not special.expert_groups:
        return None
    return special.groups_per_token * max(1.0, nodes / special.expert_groups)


@dataclass(frozen=True, slots=True)
class Replicated:
    """Parameters of a rank, sharded over the ranks of ``group``; ``copies`` have equal shards."""

    parameters: float
    group: Group
    copies: Group


def split_parameters(
    deployment: Deployment, scheme: Scheme, dp: int, dense: float, experts: float
) -> list[Replicated]:
    """Divide parameters of a stage over its ranks: ``dense`` ones by tp, ``experts`` by blocks.

    Without expert parallelism experts are divided as all others.
    """
    shards, options = deployment.optimizer_shards, deployment.experts
    if options.degree == 1:
        dense, experts = dense + experts, 0.0
    parts = [Replicated(dense / scheme.tp, *split_replicas(scheme, dp, shards))]
    if experts:
        size = max(1, scheme.stage_gpus * dp // options.ranks)
        sharded = min(size, max(1, shards // (options.ranks * scheme.pp))) if shards else size
        group = Group(sharded, options.ranks)
        copies = Group(size // sharded, options.ranks * sharded)
        parts.append(Replicated(experts / options.ranks, group, copies))
    return parts


def block_problem(deployment: Deployment, scheme: Scheme) -> str | None:
    """Describe why the ranks of a stage are no whole blocks of experts; None if they are."""
    ranks, stage = deployment.experts.ranks, deployment.cluster.gpus // scheme.pp
    if stage % ranks:
        return f"blocks of {ranks} ranks of experts do not divide a stage's {stage} GPUs"
    return None
