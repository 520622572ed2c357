"""One derived scheme: its limits, its coefficients from the terms, its entry in a profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.analytic.memory import count_transfer_bytes
from seqplan.costs.fit.latency_fit import Errors, Observed, fit_curve
from seqplan.costs.latency import Latency
from seqplan.costs.model_sizes import ModelSizes
from seqplan.costs.profiled_scheme import BUFFER
from seqplan.costs.scheme_rules import scheme_problem
from seqplan.plans.percent import percent
from seqplan.plans.scheme import Scheme

Floats = npt.NDArray[np.float64]

SHORTEST, POINTS = 128, 25
"""Lengths that coefficients are fitted to: from SHORTEST tokens to the longest, geometrically."""

PACKED_TOKENS, PACKED_LENGTHS = 32768, (256, 1024, 4096, 16384)
"""Micro-batches of so many tokens, in sequences of each length, which are fitted next to them if
windows or experts make the time of a micro-batch no quadratic of its lengths."""

Times = Callable[[Scheme, Floats], Floats]
"""Times (ms) of micro-batches on a scheme, from lengths of shape (micro-batches, sequences)."""


def fit_terms(
    times: Times, scheme: Scheme, longest: int, *, packed: bool = False
) -> tuple[Latency, Errors]:
    """Fit a·l² + b·l + c to ``times``, with the errors of the fit.

    ``longest``: tokens up to which it is fitted; ``ValueError`` for too few. ``packed``: also to
    micro-batches of several sequences.
    """
    if longest < 4 * SHORTEST:
        raise ValueError(f"longest {longest}: must be at least {4 * SHORTEST} tokens")
    least = max(SHORTEST, 2 * scheme.stage_gpus)
    lengths = np.unique(np.geomspace(least, max(longest, 16 * least), POINTS).round())
    observed = _time(times, scheme, [(int(length),) for length in lengths])
    if packed:
        inside = [length for length in PACKED_LENGTHS if least <= length < longest]
        packs = [(length,) * (PACKED_TOKENS // length) for length in inside]
        observed += _time(times, scheme, packs)
    curve = fit_curve(observed)
    return curve.latency, curve.errors


def _time(times: Times, scheme: Scheme, micro_batches: Sequence[tuple[int, ...]]) -> list[Observed]:
    """Time micro-batches together."""
    if not micro_batches:
        return []
    lengths = np.zeros((len(micro_batches), max(map(len, micro_batches))))
    for row, micro_batch in zip(lengths, micro_batches, strict=True):
        row[: len(micro_batch)] = micro_batch
    timed = zip(micro_batches, times(scheme, lengths), strict=True)
    return [Observed(micro_batch, float(ms)) for micro_batch, ms in timed]


def fit_residuals(errors: Sequence[Errors], *, largest: bool = False) -> str:
    """Describe how far the worst scheme's quadratic is from the terms it was fitted to.

    ``largest``: also at the worst micro-batch. Layers that attend within a window cost in
    proportion to a sequence's length beyond it, and few tokens leave experts idle, so that no
    quadratic is right over the whole range; the coefficients are what plans are made with, and
    bounds proven for.
    """
    medians = [of_scheme.median for of_scheme in errors if of_scheme.median is not None]
    most = [of_scheme.p90 for of_scheme in errors if of_scheme.p90 is not None]
    worst = max(of_scheme.largest for of_scheme in errors if of_scheme.largest is not None)
    nowhere = f", nowhere further than {percent(worst)}" if largest else ""
    return (
        f"a·l² + b·l + c is within {percent(max(medians))} (median) and {percent(max(most))} "
        f"(p90) of the analytic terms in the worst scheme{nowhere}; how far those are from "
        "devices: seqplan profile validate"
    )


def describe_buffer(deployment: Deployment, scheme: Scheme) -> dict[str, float]:
    """Describe the bytes of a scheme's transfers as a field next to its coefficients."""
    transferred = count_transfer_bytes(deployment, scheme)
    return {BUFFER: transferred} if transferred else {}


def write_derived_entry(scheme: Scheme, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Write a scheme as the profile document has it, with its origin.

    ``fields``: its coefficients, or ``modes`` with those of each recomputation mode.
    """
    degrees = {axis: degree for axis, degree in scheme.as_dict().items() if degree > 1}
    return {**degrees, **fields, "origin": "derived"}


def check_schemes(
    sizes: ModelSizes, cluster: ClusterHardware, schemes: Sequence[Scheme], zero: int
) -> None:
    """Raise ``ValueError`` without schemes, or for one that model or cluster cannot run."""
    if not schemes:
        raise ValueError("no scheme to derive. Name at least one")
    for scheme in schemes:
        reason = scheme_problem(scheme, sizes.shape, gpus_per_node=cluster.gpus_per_node)
        if scheme.gpus > cluster.gpus:
            reason = f"needs {scheme.gpus} GPUs, the cluster has {cluster.gpus}"
        elif zero == 3 and (scheme.tp > 1 or scheme.pp > 1):
            reason = "under ZeRO-3 a profile's schemes have tp = pp = 1"
        if reason:
            raise ValueError(f"{scheme}: {reason}")
