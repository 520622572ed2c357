"""Time of one GPU for a matrix product, an attention kernel, or passing over memory."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seqplan.costs.analytic.gpus.hardware import HBM_EFFICIENCY, Hardware

Floats = npt.NDArray[np.float64]

TILE = (128, 256)
"""Rows and columns of the output that one multiprocessor computes of a matrix product."""

QUERY_TILE = 128
"""Queries of one head that one multiprocessor computes in FlashAttention-2."""

KEY_RAMP = 256
"""Keys at which the attention kernel's inner loop reaches half of its rate (FlashAttention-2,
figures 4 to 6: about two thirds at 512 tokens of what it reaches at 16,384)."""

BACKWARD_FLOPS = 2.5
"""Attention backward over forward: five matrix products instead of two."""

KEPT_TIMES = 512
"""Times that are kept: recomputation modes of a scheme, and schemes with equal rows, share them."""


class ProductMs(NamedTuple):
    """Milliseconds of a product with weights: forward, and backward by what it is for."""

    forward: Floats
    inputs: Floats
    weights: Floats


def product_ms(
    hardware: Hardware,
    rows: Floats,
    inner: float,
    columns: float,
    *,
    count: float = 1,
    gain: float = 1.0,
    element_bytes: float = 2,
) -> ProductMs:
    """Time ``rows`` times weights of inner × columns, and the two products of its backward."""
    options = (count, gain, element_bytes)
    return _time_product(hardware, rows.tobytes(), rows.shape, inner, columns, options)


@lru_cache(maxsize=KEPT_TIMES)
def _time_product(
    hardware: Hardware,
    data: bytes,
    shape: tuple[int, ...],
    inner: float,
    columns: float,
    options: tuple[float, float, float],
) -> ProductMs:
    rows = np.frombuffer(data).reshape(shape)
    shapes = ((rows, inner, columns), (rows, columns, inner), (inner, rows, columns))
    count, gain, element_bytes = options
    times = (
        matmul_ms(hardware, *of, count=count, gain=gain, element_bytes=element_bytes)
        for of in shapes
    )
    return ProductMs(*map(freeze, times))


def freeze(array: Floats) -> Floats:
    """Forbid changes to an array that callers share."""
    array.setflags(write=False)
    return array


def matmul_ms(
    hardware: Hardware,
    rows: npt.ArrayLike,
    inner: npt.ArrayLike,
    columns: npt.ArrayLike,
    *,
    count: npt.ArrayLike = 1,
    gain: float = 1.0,
    element_bytes: float = 2,
) -> Floats:
    """Time ``count`` products (rows × inner)·(inner × columns) of one call.

    Arithmetic at the efficiency of large bf16 products, ``gain`` times as fast, lessened by half a
    wave of tiles that leaves multiprocessors idle at the end; reading the operands, of
    ``element_bytes`` an element, and writing the result in bf16 does not overlap with it entirely
    and is added.
    """
    m, k, n = (np.asarray(x, dtype=np.float64) for x in (rows, inner, columns))
    times = np.asarray(count, dtype=np.float64)
    peak = hardware.peak_tflops * 1e9 * hardware.matmul_efficiency * gain

    axes = max(m.ndim, k.ndim, n.ndim, times.ndim)
    both = np.array((m, _whole_tiles(m, TILE[0])))
    begun = both.reshape(2, *(1,) * (axes - m.ndim), *m.shape)
    tiles = times * np.ceil(begun / TILE[0]) * np.ceil(n / TILE[1])
    # Few tiles are split along the inner dimension, down to slices of a tile's width.
    tiles = np.maximum(tiles, np.minimum(hardware.multiprocessors, tiles * k / TILE[1]))
    idle = 0.5 * hardware.multiprocessors / np.where(tiles > 0, tiles, 1.0)
    working_ms = (times * 2 * begun * k * n * (1 + idle) / peak).max(axis=0)
    moved = memory_ms(hardware, times * (element_bytes * (m * k + k * n) + 2 * m * n))
    return np.asarray(working_ms + moved)


def attention_kernel_ms(
    hardware: Hardware,
    queries: npt.ArrayLike,
    keys: npt.ArrayLike,
    heads: float,
    head_width: float,
    *,
    causal: bool,
    backward: bool = False,
) -> Floats:
    """Time a varlen call over the sequences of the last axis: ``queries`` × ``keys`` tokens each.

    Causal: the lower half of each. The rate falls if there are few query tiles to spread over
    the multiprocessors and where the loop over keys is short (as if it had KEY_RAMP keys more).
    Shape of the result: that of ``queries`` without the last axis; a sequence of 0 costs nothing.
    """
    q, k = (np.asarray(x, dtype=np.float64) for x in (queries, keys))
    seen_keys = k * (0.5 if causal else 1.0)
    return seen_keys_ms(hardware, q, seen_keys, heads, head_width, masked=causal, backward=backward)


def seen_keys_ms(
    hardware: Hardware,
    queries: npt.ArrayLike,
    seen: npt.ArrayLike,
    heads: float,
    head_width: float,
    *,
    masked: bool,
    backward: bool = False,
) -> Floats:
    """Time a varlen call by how many keys a query sees on average, ``seen``; shapes as above.

    ``masked``: whether tiles are cut by a mask (causal, a window), which costs some of the rate.
    """
    q, k = (np.asarray(x, dtype=np.float64) for x in (queries, seen))
    speed = hardware.attention_rate
    share = speed.backward if backward else speed.forward
    peak = hardware.peak_tflops * 1e9 * share * speed.of_width(head_width, masked=masked)
    peak *= speed.causal if masked else 1.0

    whole = _whole_tiles(q, QUERY_TILE)
    whole_seen = k * np.divide(whole, q, out=np.zeros_like(q), where=q > 0)

    def kernel_ms(q: Floats, k: Floats) -> Floats:
        flops: Floats = (4 * heads * head_width * q * (k + KEY_RAMP)).sum(axis=-1)
        tiles = heads * np.ceil(q / QUERY_TILE).sum(axis=-1)
        # Without tokens there is nothing to do, and the rate does not matter.
        filled = np.maximum(tiles, 1.0) / (tiles + speed.wave * hardware.multiprocessors)
        return np.asarray(flops * (BACKWARD_FLOPS if backward else 1.0) / (peak * filled))

    return np.asarray(np.maximum(kernel_ms(q, k), kernel_ms(whole, whole_seen)))


def _whole_tiles(size: Floats, tile: int) -> Floats:
    """Round ``size`` down to whole tiles.

    A tile begun counts as whole for how full the device is, though work is counted by the row. A
    call takes at least as long as without its last tile begun, so that no row makes it faster.
    """
    return np.asarray(np.floor(size / tile) * tile)


def memory_ms(hardware: Hardware, size_bytes: npt.ArrayLike) -> Floats:
    """Time reading and writing ``size_bytes`` of the GPU's memory in all."""
    size = np.asarray(size_bytes, dtype=np.float64)
    return np.asarray(size / (hardware.hbm_gb_s * 1e6 * HBM_EFFICIENCY))
