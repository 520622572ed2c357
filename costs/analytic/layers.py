"""The layers of a stage but attention over keys and recurrences: products, what memory bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from seqplan.costs.analytic.deployment import ELEMENT_BYTES, Deployment
from seqplan.costs.analytic.gpus.kernels import memory_ms, product_ms
from seqplan.costs.analytic.recurrent import count_recurrent_bytes, list_recurrent_weights
from seqplan.costs.model_sizes import ModelSizes
from seqplan.plans.scheme import Scheme

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Passes:
    """How often forward runs; backward runs once.

    ``attention``: attention's products; ``core``: its kernel; ``feed_forward``: its products;
    ``between``: norms, positions and activation functions of each half; ``again``: modules that
    are recomputed alone.
    """

    attention: float
    core: int
    feed_forward: float
    between: tuple[int, int]

    again: frozenset[str] = frozenset()

    def count(self, module: str) -> int:
        """Count the further passes of a module that is recomputed alone."""
        return int(module in self.again)

    @classmethod
    def from_deployment(cls, deployment: Deployment) -> Passes:
        """Those of its recomputation mode, and of the modules that it recomputes alone."""
        again = frozenset(deployment.recompute_modules)
        passes = _BY_MODE[deployment.recompute]
        if not again:
            return passes
        return replace(passes, core=passes.core + ("core_attn" in again), again=again)


_BY_MODE = {
    "none": Passes(1, 1, 1, (1, 1)),
    "elementwise": Passes(1, 1, 1, (2, 2)),
    "attention_core": Passes(1, 2, 1, (1, 1)),
    "half_products": Passes(1.5, 1, 1.5, (2, 2)),
    "mlp": Passes(1, 1, 2, (1, 2)),
    "full": Passes(2, 2, 2, (2, 2)),
}


@dataclass(frozen=True, slots=True)
class Product:
    """A product of a layer: weights (inner × columns), and how often forward runs."""

    inner: float
    columns: float
    forwards: float


def products_ms(deployment: Deployment, scheme: Scheme, layers: float, tokens: Floats) -> Floats:
    """Time the products of ``layers`` layers: forward, and backward for inputs and for weights.

    In fewer bits they are faster by ``Deployment.layer_product_gain``, casts among it.
    """
    hardware, gain = deployment.cluster.hardware, deployment.layer_product_gain
    width = ELEMENT_BYTES[deployment.precision]
    total = np.zeros_like(tokens)
    for layers_with, product in layer_products(deployment, scheme):
        rows = tokens / scheme.sp  # gathered over tp
        once = product_ms(
            hardware, rows, product.inner, product.columns, gain=gain, element_bytes=width
        )
        ms = product.forwards * once.forward + once.inputs + once.weights
        total += layers / deployment.sizes.layers * layers_with * ms
    return total


def layer_products(deployment: Deployment, scheme: Scheme) -> Iterator[tuple[int, Product]]:
    """Yield the products of the model without experts, and how many layers have each."""
    sizes, special = deployment.sizes, deployment.sizes.architecture
    passes = Passes.from_deployment(deployment)
    for inner, columns in _attention_weights(sizes, scheme.tp):
        expands = inner in (special.query_rank, special.kv_rank)
        again = passes.count("mla_up_proj") if expands else 0
        yield sizes.attending_layers, Product(inner, columns, passes.attention + again)
    for layers, inner, columns in list_recurrent_weights(sizes, scheme.tp):
        yield layers, Product(inner, columns, passes.attention)
    expanded = 1 if special.ungated else 2
    for layers, ffn, module in (
        (sizes.dense_layers, sizes.ffn, "mlp"),
        (special.expert_layers, special.shared_ffn, "shared_experts"),
    ):
        if layers and ffn:
            split = ffn / scheme.tp
            forwards = passes.feed_forward + passes.count(module)
            yield layers, Product(sizes.hidden, expanded * split, forwards)
            yield layers, Product(split, sizes.hidden, forwards)
    if special.expert_layers:
        yield special.expert_layers, Product(sizes.hidden, special.experts, passes.feed_forward)
    if latent := special.expert_latent / scheme.tp:
        forwards = passes.feed_forward + passes.count("moe")
        yield special.expert_layers, Product(sizes.hidden, latent, forwards)
        yield special.expert_layers, Product(latent, sizes.hidden, forwards)


def _attention_weights(sizes: ModelSizes, tp: int) -> list[tuple[float, float]]:
    """List the weights of attention's products on a rank: those that make q, k and v, the last."""
    special = sizes.architecture
    if not special.kv_rank:
        width = sizes.attention_width / tp
        kv_width = sizes.find_kv_width(tp) / tp
        gate = width if special.attention_gate else 0.0
        return [(sizes.hidden, width + gate + 2 * kv_width), (width, sizes.hidden)]
    heads = sizes.heads / tp
    queries = heads * (special.nope_dim + special.rope_dim)
    return [
        *(
            [(sizes.hidden, special.query_rank), (special.query_rank, queries)]
            if special.query_rank
            else [(sizes.hidden, queries)]
        ),
        (sizes.hidden, special.kv_rank + special.rope_dim),
        (special.kv_rank, heads * (special.nope_dim + special.value_dim)),
        (heads * special.value_dim, sizes.hidden),
    ]


def memory_bound_ms(
    deployment: Deployment, scheme: Scheme, layers: float, tokens: Floats
) -> Floats:
    """Time norms (8 bytes an element, two), residual sums (6, two), rotary positions, activation.

    Backward moves twice as much. Norms and sums are split over tp by tokens, the rest by width.
    If tp does not split by tokens (``Deployment.sequence_parallel``) every rank does them all.
    Without experts, whose rows are among the terms of experts.
    """
    sizes, special = deployment.sizes, deployment.sizes.architecture
    again = Passes.from_deployment(deployment)
    passes = again.between
    norms = 10.0 * sizes.hidden * (1 if deployment.sequence_parallel else scheme.tp)
    expanded = 2 if special.ungated else 3
    positions = 4.0 * (sizes.attention_width + sizes.kv_width)
    positions += 4.0 * sizes.attention_width if special.sinks else 0.0
    positions += 6.0 * sizes.attention_width if special.attention_gate else 0.0
    attention = sizes.layers * norms + sizes.attending_layers * positions
    attention += count_recurrent_bytes(special)
    sparse = 2.0 * expanded * special.shared_ffn
    dense = 2.0 * expanded * sizes.ffn
    feed_forward = (sizes.layers - special.bare_layers) * norms + special.expert_layers * sparse
    feed_forward += sizes.dense_layers * dense
    moved = (passes[0] + 2) * attention + (passes[1] + 2) * feed_forward
    moved += again.count("layernorm") * 2 * sizes.layers * 4.0 * sizes.hidden
    moved *= layers / sizes.layers * deployment.rates.memory_bound
    return memory_ms(deployment.cluster.hardware, moved * tokens / (scheme.sp * scheme.tp))
