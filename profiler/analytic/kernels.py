"""What one GPU takes for a matrix product, an attention kernel, or passing over memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seqplan.profiler.analytic.hardware import HBM_EFFICIENCY, Hardware

Floats = npt.NDArray[np.float64]

TILE = (128, 256)
"""Rows and columns of the output that one multiprocessor computes of a matrix product."""

QUERY_TILE = 128
"""Queries of one head that one multiprocessor computes in FlashAttention-2."""

KEY_RAMP = 256
"""Keys at which the attention kernel's inner loop reaches half of its rate (FlashAttention-2,
figures 4 to 6: about two thirds at 512 tokens of what it reaches at 16,384)."""

CAUSAL_EFFICIENCY = 0.9
"""Rate with a causal mask over the rate without (FlashAttention-2, figures 4 to 6): query tiles
take unequal time, and tiles on the diagonal are computed whole."""

BACKWARD_EFFICIENCY = 0.63 / 0.73
"""Rate of the attention backward over the forward's (FlashAttention-2: 63 and 73 % of the peak)."""

BACKWARD_FLOPS = 2.5
"""Attention backward over forward: five matrix products instead of two."""


def matmul_ms(
    hardware: Hardware, rows: npt.ArrayLike, inner: npt.ArrayLike, columns: npt.ArrayLike
) -> Floats:
    """Time a bf16 product (rows × inner)·(inner × columns).

    Arithmetic at the efficiency of large products, lessened by half a wave of tiles that leaves
    multiprocessors idle at the end; reading the operands and writing the result does not overlap
    with it entirely and is added.
    """
    m, k, n = (np.asarray(x, dtype=np.float64) for x in (rows, inner, columns))
    tiles = np.ceil(m / TILE[0]) * np.ceil(n / TILE[1])
    # Few tiles are split along the inner dimension, down to slices of a tile's width.
    tiles = np.maximum(tiles, np.minimum(hardware.multiprocessors, tiles * k / TILE[1]))
    filled = tiles / (tiles + 0.5 * hardware.multiprocessors)
    rate = hardware.peak_tflops * 1e9 * hardware.matmul_efficiency * filled
    moved = memory_ms(hardware, 2 * (m * k + k * n + m * n))
    return np.asarray(2 * m * k * n / rate + moved)


def attention_kernel_ms(
    hardware: Hardware,
    queries: npt.ArrayLike,
    keys: npt.ArrayLike,
    heads: float,
    head_width: int,
    *,
    causal: bool,
    backward: bool = False,
) -> Floats:
    """Time a varlen call over the sequences of the last axis: ``queries`` × ``keys`` tokens each.

    Causal: the lower half of each. The rate falls where there are few query tiles to spread over
    the multiprocessors and where the loop over keys is short (as if it had KEY_RAMP keys more).
    Shape of the result: that of ``queries`` without the last axis; a sequence of 0 costs nothing.
    """
    q, k = (np.asarray(x, dtype=np.float64) for x in (queries, keys))
    flops: Floats = (4 * heads * head_width * q * (k * (0.5 if causal else 1.0) + KEY_RAMP)).sum(
        axis=-1
    )
    tiles = heads * np.ceil(q / QUERY_TILE).sum(axis=-1)
    filled = tiles / (tiles + 0.5 * hardware.multiprocessors)
    rate = hardware.peak_tflops * 1e9 * hardware.attention_efficiency * filled
    rate = rate * (CAUSAL_EFFICIENCY if causal else 1.0)
    if backward:
        return np.asarray(flops * BACKWARD_FLOPS / (rate * BACKWARD_EFFICIENCY))
    return np.asarray(flops / rate)


def memory_ms(hardware: Hardware, size_bytes: npt.ArrayLike) -> Floats:
    """Time reading and writing ``size_bytes`` of the GPU's memory in all."""
    size = np.asarray(size_bytes, dtype=np.float64)
    return np.asarray(size / (hardware.hbm_gb_s * 1e6 * HBM_EFFICIENCY))
