"""Model FLOPs of a step, and what GPUs can do at most: the two sides of model FLOPs utilisation."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.costs.analytic.estimate import model_flops as flops_of_sizes
from seqplan.costs.model_sizes import ModelShape, parameters

PEAK_FLOPS = {
    **dict.fromkeys(("A100", "A800"), 312e12),
    **dict.fromkeys(("H100", "H800", "H200"), 989e12),
    "GB200": 2500e12,
    "B200": 2250e12,
    "MI300X": 1307e12,
}
"""Dense bf16 FLOP/s of a GPU by the name its profile gives it (NVIDIA data sheets, SXM)."""


def peak_flops(hardware: str) -> float | None:
    """Look up the peak bf16 FLOP/s of one GPU; None if it is not known."""
    return next((peak for name, peak in PEAK_FLOPS.items() if name in hardware), None)


def model_flops(shape: ModelShape, lengths: Sequence[int]) -> float | None:
    """Count forward and backward FLOPs that sequences of these lengths need; None without sizes.

    6 per parameter and token, and 12·layers·hidden·Σl²/2 (the width of all heads, if that is not
    hidden) for causal attention within each sequence: what packing or recomputation adds is not
    counted. Of a model that is no dense decoder its layers count: of experts those that a token
    runs through, of windows what a query sees.
    """
    if not shape.architecture.dense and (sizes := shape.sizes) is not None:
        return sum(flops_of_sizes(sizes, length) for length in lengths)
    weights = parameters(shape)
    if weights is None:
        return None
    attention = 12 * shape.layers * shape.attention_width * sum(n * n for n in lengths) / 2
    return 6.0 * weights * sum(lengths) + attention
