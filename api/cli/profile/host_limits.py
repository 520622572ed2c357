"""Limits of a host on whose CPU a model is measured: its memory, and a day of computing."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.costs.model_sizes import ModelSizes
from seqplan.plans.scheme import Scheme
from seqplan.profiler.measure.design import DesignPoint

HOST_FLOPS = 2e12
"""Operations a second that no host is assumed to exceed in these layers."""

LONGEST_MEASUREMENT_S = 86_400.0
"""Computing that is measured at most."""


def find_host_problem(
    sizes: ModelSizes,
    layers: int,
    schemes: Sequence[Scheme],
    points: Sequence[DesignPoint],
    *,
    expert_parallel: int,
    ranks: int,
    dtype_bytes: int,
    memory_bytes: float,
) -> str | None:
    """Return why this host cannot measure ``layers`` of a model, with what to do; None if it can.

    ``ranks``: processes on the host. Counts parameters with their gradients, and one forward and
    backward of each point, so that measuring needs more.
    """
    share = layers / sizes.layers
    rest = share * (sizes.layers_parameters - sizes.expert_parameters) + sizes.embedding_parameters
    experts = share * sizes.expert_parameters / expert_parallel
    least_tp = min(scheme.tp for scheme in schemes)
    needed = 2.0 * dtype_bytes * ranks * (rest / least_tp + experts)
    if needed > memory_bytes:
        return (
            f"--model: {layers} layers with gradients need {needed / 2**30:,.0f} GiB on {ranks} "
            f"ranks, this host has {memory_bytes / 2**30:,.0f}. Use seqplan profile derive, or "
            "fewer --measured-layers"
        )
    lengths = [length for point in points for length in point.lengths]
    linear = 6.0 * (share * sizes.active_parameters + sizes.vocab * sizes.hidden) * sum(lengths)
    attention = 6.0 * share * sizes.attending_layers * sizes.attention_width
    seconds = (linear + attention * sum(float(length) ** 2 for length in lengths)) / HOST_FLOPS
    seconds *= len(schemes) / ranks
    if seconds > LONGEST_MEASUREMENT_S:
        return (
            f"--model: one pass over the points takes {seconds / 86_400:,.0f} days or more on a "
            "CPU. Use seqplan profile derive, or shorter --lengths"
        )
    return None
