"""VeOmni's rules: dynamic batches of tokens, and images assigned to ranks by their squares.

A micro-batch takes samples in the order of the buffer, each that it has room for; all samples of a
step are in the buffer here, and ranks take micro-batches in turn. Images go longest first to the
rank with the least Σ patches², and their embeddings come back to the rank of their sample.

Source: ``DynBszBuffer.get_samples`` in veomni/data/dynamic_batching.py and
``post_mbs_balancing_greedy_without_pad`` in veomni/utils/data_balance/balance_sorting_algo.py of
github.com/ByteDance-Seed/VeOmni at d9774494, August 2026.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.systems.windows import fill_in_order, round_robin


def assign_dynamic_batches(
    batch: Batch, ranks: int, model: SchemeModel
) -> tuple[Batch, list[list[list[int]]]]:
    """Fill micro-batches up to memory in order, and assign them to ranks in turn."""
    padded = [model.scheme.pad_sequence(length) for length in batch.lengths]
    return batch, round_robin(fill_in_order(padded, model.max_sequence), ranks)


def assign_longest_first(loads: Sequence[float], ranks: int) -> list[list[int]]:
    """Assign positions, largest load first, each to the rank with the least; ties to the first."""
    parts: list[list[int]] = [[] for _ in range(ranks)]
    heap = [(0.0, rank) for rank in range(ranks)]
    for i in sorted(range(len(loads)), key=lambda i: (-loads[i], i)):
        load, rank = heappop(heap)
        parts[rank].append(i)
        heappush(heap, (load + loads[i], rank))
    return parts
