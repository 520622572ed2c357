"""Layers that pass a state from token to token: linear attention, and state-space layers.

Neither attends to keys: their time is linear in the tokens, whatever the lengths of sequences.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.gpus.kernels import memory_ms
from seqplan.costs.architecture import Architecture
from seqplan.costs.model_sizes import ModelSizes
from seqplan.plans.scheme import Scheme

Floats = npt.NDArray[np.float64]

LINEAR_CHUNK = 64
"""Tokens that a linear-attention kernel takes at once (flash-linear-attention's default)."""

EFFICIENCY = 0.25
"""Of the rate of large products that kernels of a state reach: assumed, compared with no
measurement."""


def list_recurrent_weights(sizes: ModelSizes, tp: int) -> Iterator[tuple[int, float, float]]:
    """Yield the products of these layers on a rank: layers that have it, rows and columns."""
    special = sizes.architecture
    if special.linear_layers:
        values = special.linear_value_heads * special.linear_value_dim
        wide = _linear_width(special) + values + 2 * special.linear_value_heads
        yield special.linear_layers, sizes.hidden, wide / tp
        yield special.linear_layers, values / tp, sizes.hidden
    if special.state_layers:
        yield special.state_layers, sizes.hidden, special.state_projection / tp
        yield special.state_layers, special.state_width / tp, sizes.hidden


def count_recurrent_bytes(special: Architecture) -> float:
    """Count the bytes of a token that the other kernels of these layers move.

    Over all layers, without products and recurrences. The convolution of linear attention reads its
    inputs for each of its tokens; that of state-space layers is one kernel, and a gated norm
    follows their scan.
    """
    linear = 4.0 * special.linear_conv * _linear_width(special)
    state = 4.0 * special.convolved_width + 6.0 * special.state_width
    return special.linear_layers * linear + special.state_layers * state


def count_recurrent_elements(special: Architecture) -> int:
    """Count the elements of a token that these layers keep for backward, without their input.

    Linear attention: queries, keys, values, gate and result. State-space layers (kernels of
    mamba_ssm): the projection's result, that of the scan, and the normed one.
    """
    values = special.linear_value_heads * special.linear_value_dim
    linear = 2 * special.linear_key_heads * special.linear_key_dim + 3 * values
    state = special.state_projection + 2 * special.state_width
    return special.linear_layers * linear + special.state_layers * state


def recurrent_terms(
    deployment: Deployment, scheme: Scheme, layers: float, tokens: Floats, forwards: int
) -> dict[str, Floats]:
    """Time the recurrences of ``layers`` layers, by term (ms); backward takes twice as long.

    ``forwards``: how often forward runs.
    """
    special = deployment.sizes.architecture
    passes = (forwards + 2) * layers / deployment.sizes.layers
    terms = {}
    if special.linear_layers:
        once = _recurrence_ms(deployment, scheme, tokens, *_linear_work(special))
        terms["linear attention"] = passes * special.linear_layers * once
    if special.state_layers:
        once = _recurrence_ms(deployment, scheme, tokens, *_state_work(special))
        terms["state space"] = passes * special.state_layers * once
    return terms


def _linear_work(special: Architecture) -> tuple[float, float]:
    """Count operations and bytes of a token in a layer of linear attention.

    By the gated delta rule: within a chunk scores and their product with values, and the inverse
    that the rule needs; between chunks the state of each head is read and brought forward.
    """
    keys, values = special.linear_key_dim, special.linear_value_dim
    of_head = 2.0 * (2 * LINEAR_CHUNK * (keys + values) + 3 * keys * values)
    return special.linear_value_heads * of_head, 4.0 * _linear_width(special)


def _state_work(special: Architecture) -> tuple[float, float]:
    """Count operations and bytes of a token in a state-space layer (Mamba 2, arXiv 2405.21060).

    Within a chunk scores of each group and their product with inputs; between chunks a token is
    added to its head's state, and reads it.
    """
    scores = special.state_chunk * (special.state_groups * special.state_size)
    within = special.state_chunk * special.state_width
    between = 2 * special.state_size * special.state_width
    return 2.0 * (scores + within + between), 4.0 * special.convolved_width


def _recurrence_ms(
    deployment: Deployment, scheme: Scheme, tokens: Floats, flops: float, moved: float
) -> Floats:
    hardware = deployment.cluster.hardware
    rate = hardware.peak_tflops * 1e9 * hardware.matmul_efficiency * EFFICIENCY
    of_rank = tokens / (scheme.tp * scheme.sp)
    return np.asarray(of_rank * flops / rate + memory_ms(hardware, moved * of_rank))


def _linear_width(special: Architecture) -> int:
    keys = special.linear_key_heads * special.linear_key_dim
    return 2 * keys + special.linear_value_heads * special.linear_value_dim
