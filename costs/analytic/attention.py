"""Attention of one layer under Ulysses and ring: kernels, all-to-alls, transfers, merging."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.analytic.gpus.kernels import KEPT_TIMES, freeze, memory_ms, seen_keys_ms
from seqplan.costs.analytic.gpus.links import all_to_all_ms, placement, ring_collective_ms, shift_ms
from seqplan.costs.analytic.layers import Passes
from seqplan.costs.model_sizes import ModelSizes
from seqplan.plans.scheme import Scheme

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


class AttentionMask(NamedTuple):
    """Which keys before it a query sees: the last ``window``, or those of its ``chunk``; 0: all."""

    window: int = 0
    chunk: int = 0

    @property
    def reach(self) -> int:
        """Tokens before which nothing is cut."""
        return self.window or self.chunk

    def seen(self, lengths: Floats) -> Floats:
        """Count the keys that a query sees on average, in sequences of these lengths."""
        reach = float(self.reach)
        if not reach:
            return lengths / 2
        within = np.minimum(lengths, reach)
        with np.errstate(invalid="ignore", divide="ignore"):
            if self.window:
                pairs = within * within / 2 + (lengths - within) * reach
            else:
                whole = np.floor(lengths / reach)
                rest = lengths - whole * reach
                pairs = (whole * reach * reach + rest * rest) / 2
            return np.where(lengths > 0, pairs / lengths, 0.0)


def attention_terms(
    deployment: Deployment, scheme: Scheme, sequences: Floats, layers: float
) -> dict[str, Floats]:
    """Time attention over keys in ``layers`` layers, forward and backward, by term.

    ``sequences``: tokens, shape (…, sequences). Layers of each kind (full, within a window, within
    chunks) are as frequent among them as in the whole model.
    """
    sizes, special = deployment.sizes, deployment.sizes.architecture
    full = sizes.attending_layers - special.window_layers - special.chunk_layers
    masks = (
        (AttentionMask(), full),
        (AttentionMask(window=special.window), special.window_layers),
        (AttentionMask(chunk=special.chunk), special.chunk_layers),
    )
    forwards = Passes.from_deployment(deployment).core
    names = {"attention": "kernel", "ulysses": "ulysses", "ring transfer": "ring"}
    names["ring merge"] = "merge"
    terms = {name: np.zeros_like(sequences.sum(axis=-1)) for name in names}
    for mask, count in masks:
        if not count:
            continue
        for backward, passes in ((False, forwards), (True, 1)):
            gathered = deployment.context_parallel == "all-gather"
            once = _time_once(
                deployment.cluster,
                sizes,
                scheme,
                sequences.tobytes(),
                sequences.shape,
                backward,
                mask,
                gathered,
            )
            for name, part in names.items():
                terms[name] = terms[name] + layers / sizes.layers * count * passes * getattr(
                    once, part
                )
    return terms


@lru_cache(maxsize=KEPT_TIMES)
def _time_once(
    cluster: ClusterHardware,
    sizes: ModelSizes,
    scheme: Scheme,
    data: bytes,
    shape: tuple[int, ...],
    backward: bool,
    mask: AttentionMask,
    gathered: bool,
) -> AttentionMs:
    sequences = np.frombuffer(data).reshape(shape)
    once = attention_ms(
        cluster, sizes, scheme, sequences, backward=backward, mask=mask, gathered=gathered
    )
    for part in (once.kernel, once.ulysses, once.ring, once.merge):
        freeze(part)
    return once


def attention_ms(
    cluster: ClusterHardware,
    sizes: ModelSizes,
    scheme: Scheme,
    lengths: npt.ArrayLike,
    *,
    backward: bool,
    balanced: bool = True,
    mask: AttentionMask = AttentionMask(),  # noqa: B008 (immutable)
    gathered: bool = False,
) -> AttentionMs:
    """Time causal attention of one layer, forward or backward, of micro-batches of sequences.

    ``lengths``: tokens, shape (…, sequences), 0 if a micro-batch has fewer; results (…).
    Ulysses: four all-to-alls each way (q, k, v and the output; USP, arXiv 2405.07719, table 2), of
    k and v only the key/value heads, replicated if there are fewer than ranks. Ring: in each of
    ``ring`` steps K and V move on while the step's kernel runs, so a step costs the longer of the
    two; backward their gradients move with them in fp32. ``balanced``: zigzag, every rank has half
    of each later block to do; else the last rank does all of each (basic ring).

    Sequences that ``mask`` cuts do not go round a ring: a rank fetches the keys that its queries
    see beyond its keys, up to the mask's reach for each of its two chunks. ``gathered``:
    keys and values of the whole ring are gathered instead before one kernel, and their gradients
    scattered after it; nothing is merged, and nothing hidden.
    """
    one = _LayerAttention(cluster, sizes, scheme, mask, backward)
    sequences = np.asarray(lengths, dtype=np.float64)
    tokens = sequences.sum(axis=-1)
    ulysses, none = one.ulysses_ms(tokens), np.zeros_like(tokens)
    if scheme.ring == 1:
        work = one.kernel_ms(sequences, mask.seen(sequences), masked=True)
        return AttentionMs(work, ulysses, none, none)
    if gathered:
        return one.gather_ms(sequences, ulysses)
    cut = np.where(sequences > mask.reach, sequences, 0.0) if mask.reach else 0.0 * sequences
    cut_ms, fetched_ms = one.cut_ms(cut) if cut.any() else (none, none)
    sequences = sequences - cut
    if not sequences.any():
        return AttentionMs(cut_ms, ulysses, fetched_ms, none)
    work, transfer, merge = one.ring_ms(sequences, balanced=balanced)
    return AttentionMs(work + cut_ms, ulysses, transfer + fetched_ms, merge)


@dataclass(frozen=True)
class _LayerAttention:
    """Attention of one layer, forward or backward, on the ranks of a scheme."""

    cluster: ClusterHardware
    sizes: ModelSizes
    scheme: Scheme
    mask: AttentionMask
    backward: bool

    @property
    def heads(self) -> float:
        """Heads of a rank while it attends."""
        return self.sizes.heads / (self.scheme.tp * self.scheme.ulysses)

    @property
    def width(self) -> float:
        """Width of a rank's queries."""
        return self.heads * self.sizes.head_width

    @property
    def kv_width(self) -> float:
        """Width of a rank's keys."""
        ranks = self.scheme.tp * self.scheme.ulysses
        return self.sizes.find_kv_width(ranks) / ranks

    @property
    def directions(self) -> int:
        """Times that keys and values move: backward with their gradients in fp32."""
        return 3 if self.backward else 1

    def kernel_ms(self, lengths: Floats, seen: Floats, *, masked: bool) -> Floats:
        """Time the kernel over queries that see so many keys each."""
        return seen_keys_ms(
            self.cluster.hardware,
            lengths,
            seen,
            self.heads,
            self.sizes.head_width,
            masked=masked,
            backward=self.backward,
        )

    def ulysses_ms(self, tokens: Floats) -> Floats:
        """Time the all-to-alls of Ulysses and their permutations."""
        held = tokens / self.scheme.ring
        ulysses = np.zeros_like(tokens)
        if self.scheme.ulysses > 1:
            group = placement(self.scheme, 1)["ulysses"]
            for payload in (2 * held * self.width, 2 * held * self.kv_width):
                # q and the output; k and v
                ulysses += 2 * all_to_all_ms(self.cluster, group, payload)
                ulysses += 2 * memory_ms(self.cluster.hardware, PERMUTE_PASSES * payload)
        return ulysses

    def gather_ms(self, sequences: Floats, ulysses: Floats) -> AttentionMs:
        """Time attention over gathered keys and values."""
        tokens = sequences.sum(axis=-1)
        kv_bytes = 2 * (tokens / self.scheme.ring) * self.kv_width
        whole = ring_collective_ms(
            self.cluster, placement(self.scheme, 1)["ring"], 2 * kv_bytes * self.scheme.ring
        ) * (2 if self.backward else 1)
        pieces = sequences / self.scheme.ring
        work = self.kernel_ms(pieces, self.mask.seen(sequences), masked=True)
        return AttentionMs(work, ulysses, whole, np.zeros_like(tokens))

    def cut_ms(self, cut: Floats) -> tuple[Floats, Floats]:
        """Time sequences that the mask cuts: the kernel, and fetching keys."""
        work = self.kernel_ms(cut / self.scheme.ring, self.mask.seen(cut), masked=True)
        fetched = 2 * np.minimum(cut / (2 * self.scheme.ring), self.mask.reach) * (cut > 0)
        kv_of = 2 * 2 * fetched.sum(axis=-1) * self.kv_width
        group = placement(self.scheme, 1)["ring"]
        return work, shift_ms(self.cluster, group, kv_of * self.directions)

    def ring_ms(self, sequences: Floats, *, balanced: bool) -> tuple[Floats, Floats, Floats]:
        """Time a ring: kernels, transfers beyond them, and merging."""
        pieces, held = sequences / self.scheme.ring, sequences.sum(axis=-1) / self.scheme.ring
        kv_bytes = 2 * held * self.kv_width
        first = self.kernel_ms(pieces, pieces / 2, masked=True)
        steps = self.scheme.ring - 1
        later = self.kernel_ms(pieces, pieces * (0.5 if balanced else 1.0), masked=False)
        group = placement(self.scheme, 1)["ring"]
        moved = shift_ms(self.cluster, group, 2 * kv_bytes * self.directions)
        transfer_share = TRANSFER_MULTIPROCESSORS / self.cluster.hardware.multiprocessors

        def beyond(kernel_ms: Floats) -> Floats:
            return np.maximum(moved - kernel_ms, transfer_share * np.minimum(moved, kernel_ms))

        transfer = beyond(first) + (steps - 1) * beyond(later)
        elements = held * self.width
        if self.backward:
            transfer = transfer + beyond(later)  # the gradients of K and V return home
            elements = held * (self.width + 2 * self.kv_width)
        merged_bytes = (ACCUMULATE_BYTES if self.backward else MERGE_BYTES) * steps + CAST_BYTES
        merge = memory_ms(self.cluster.hardware, merged_bytes * elements)
        return first + steps * later, transfer, merge
