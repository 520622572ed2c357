"""Model FLOPs of a step, and what GPUs can do at most: the two sides of model FLOPs utilisation."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.costs.analytic.estimate import model_flops as flops_of_sizes
from seqplan.costs.analytic.profiled_device import hardware_of
from seqplan.costs.model_sizes import ModelShape, parameters
from seqplan.costs.profile import Profile


def peak_flops(profile: Profile) -> float | None:
    """Return the peak dense bf16 FLOP/s of one of the profile's GPUs; None if it is not known."""
    device = hardware_of(profile)
    return None if device is None else device.peak_tflops * 1e12


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
