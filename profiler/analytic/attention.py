"""Attention of one layer under Ulysses and ring: kernels, all-to-alls, transfers, merging."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqplan.plans.scheme import Scheme
from seqplan.profiler.analytic.hardware import ClusterHardware
from seqplan.profiler.analytic.kernels import attention_kernel_ms, memory_ms
from seqplan.profiler.analytic.links import all_to_all_ms, placement, shift_ms
from seqplan.profiler.model_sizes import ModelSizes

Floats = npt.NDArray[np.float64]

PERMUTE_PASSES = 4
"""Times an all-to-all's payload is read or written: to bring heads in front, and back in order."""

MERGE_BYTES = 38
"""Bytes moved per element when a partial result is merged into its fp32 sum, operation by operation
as ring-flash-attention's public code does: cast (2 + 4), difference (12), product (8), sum (12)."""

ACCUMULATE_BYTES = 10
"""The same for a gradient: the fp32 sum read and written, the bf16 part read."""

CAST_BYTES = 12
"""Per element of a ring's fp32 sums: made from the first bf16 part, cast back at the end."""

TRANSFER_MULTIPROCESSORS = 16
"""Multiprocessors that NCCL's kernels take from the attention kernel while a transfer is under way
(assumed: one per channel; between 8 and 32 by topology)."""


@dataclass(frozen=True, slots=True)
class AttentionMs:
    """Milliseconds on the slowest rank; ``ring``: what transfers take beyond their kernels."""

    kernel: Floats
    ulysses: Floats
    ring: Floats
    merge: Floats

    @property
    def total(self) -> Floats:
        """Sum of all parts."""
        total: Floats = self.kernel + self.ulysses + self.ring + self.merge
        return total


def attention_ms(
    cluster: ClusterHardware,
    sizes: ModelSizes,
    scheme: Scheme,
    lengths: npt.ArrayLike,
    *,
    backward: bool,
    balanced: bool = True,
) -> AttentionMs:
    """Time causal attention of one layer, forward or backward, of micro-batches of sequences.

    ``lengths``: tokens, shape (…, sequences), 0 where a micro-batch has fewer; results (…).
    Ulysses: four all-to-alls each way (q, k, v and the output; USP, arXiv 2405.07719, table 2), of
    k and v only the key/value heads, replicated where there are fewer than ranks. Ring: in each of
    ``ring`` steps K and V move on while the step's kernel runs, so a step costs the longer of the
    two; backward their gradients move with them in fp32. ``balanced``: zigzag, every rank has half
    of each later block to do; else the last rank does all of each (basic ring).
    """
    sequences = np.asarray(lengths, dtype=np.float64)
    tokens = sequences.sum(axis=-1)
    groups = placement(scheme, 1)
    heads = sizes.heads / (scheme.tp * scheme.ulysses)
    kv_heads = max(sizes.kv_heads / (scheme.tp * scheme.ulysses), 1.0)
    width, kv_width = heads * sizes.head_width, kv_heads * sizes.head_width

    held = tokens / scheme.ring  # queries, keys and values of a rank while it attends
    query_bytes, kv_bytes = 2 * held * width, 2 * held * kv_width
    ulysses = np.zeros_like(tokens)
    if scheme.ulysses > 1:
        for payload in (query_bytes, kv_bytes):  # q and the output; k and v
            ulysses += 2 * all_to_all_ms(cluster, groups["ulysses"], payload)
            ulysses += 2 * memory_ms(cluster.hardware, PERMUTE_PASSES * payload)

    def kernel(share: float, causal: bool) -> Floats:
        pieces = sequences / scheme.ring
        return attention_kernel_ms(
            cluster.hardware,
            pieces,
            pieces * share,
            heads,
            sizes.head_width,
            causal=causal,
            backward=backward,
        )

    own = kernel(1.0, True)
    steps = scheme.ring - 1
    if steps == 0:
        return AttentionMs(own, ulysses, np.zeros_like(tokens), np.zeros_like(tokens))
    later = kernel(0.5 if balanced else 1.0, False)
    moved = shift_ms(cluster, groups["ring"], 2 * kv_bytes * (3 if backward else 1))
    taken = TRANSFER_MULTIPROCESSORS / cluster.hardware.multiprocessors

    def beyond(kernel_ms: Floats) -> Floats:
        return np.maximum(moved - kernel_ms, taken * np.minimum(moved, kernel_ms))

    transfer = beyond(own) + (steps - 1) * beyond(later)
    elements = held * width
    if backward:
        transfer = transfer + beyond(later)  # the gradients of K and V return home
        elements = held * (width + 2 * kv_width)
    merged_bytes = (ACCUMULATE_BYTES if backward else MERGE_BYTES) * steps + CAST_BYTES
    merge = memory_ms(cluster.hardware, merged_bytes * elements)
    return AttentionMs(own + steps * later, ulysses, transfer, merge)
