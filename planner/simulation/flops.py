"""Model FLOPs of a step, and what GPUs can do at most: the two sides of model FLOPs utilisation."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.costs.analytic.estimate import model_flops as flops_of_sizes
from seqplan.costs.analytic.gpus.profiled_device import hardware_of
from seqplan.costs.model_sizes import ModelShape
from seqplan.costs.profile import Profile


def peak_flops(profile: Profile) -> float | None:
    """Return the peak dense bf16 FLOP/s of one of the profile's GPUs; None if it is not known."""
    device = hardware_of(profile)
    return None if device is None else device.peak_tflops * 1e12


def model_flops(shape: ModelShape, lengths: Sequence[int]) -> float | None:
    """Count forward and backward FLOPs that sequences of these lengths need.

    As the analytic model counts them; a model of unknown sizes has ``ModelShape.layer_weights``.
    None if the vocabulary is unknown, too. Packing and recomputation add none.
    """
    if (sizes := shape.sizes) is not None:
        return flops_of_sizes(sizes, lengths)
    if shape.vocab is None:
        return None
    weights = shape.layers * shape.layer_weights + shape.vocab * shape.hidden
    attention = 12 * shape.layers * shape.attention_width * sum(n * n for n in lengths) / 2
    return 6.0 * weights * sum(lengths) + attention
