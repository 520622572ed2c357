"""From samples to a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from seqplan.plans.scheme import Scheme
from seqplan.profiler.fit.latency_fit import LEAST_LENGTHS, Errors, Fit, Observed, fit_latency
from seqplan.profiler.fit.pooling import device_spread
from seqplan.profiler.fit.samples import MeasuredOn, Sample, SampleError
from seqplan.profiler.profile import PROFILE_SCHEMA

MASTER_BYTES = 12
"""fp32 master parameter and two Adam moments of a parameter, fully sharded."""

GRADIENT_BYTES = 4
"""The fp32 sum of a parameter's gradients during a step."""

_DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}

_TP_NOTE = (
    "tp was measured without Megatron's sequence parallelism: norms and residuals are on every "
    "rank, so that trainers which split them hold more tokens."
)


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Activation bytes per token by tp, before division over ranks, and the samples' distance.

    ``of_allocator``: whether they are peaks of the device's allocator; else what autograd keeps.
    """

    bytes_per_token: Mapping[int, float]
    errors: Errors
    of_allocator: bool = False


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a profile says of the devices; bytes of one."""

    gpu: str
    gpus_per_node: int
    capacity_bytes: float
    context_bytes: float = 0.0
    margin_bytes: float = 0.0


def fit_schemes(measured_on: MeasuredOn, samples: Sequence[Sample]) -> dict[Scheme, Fit]:
    """The latency of every scheme, for a model of all its layers.

    Without those that run out of memory too early to be fitted (``unfitted``). ``SampleError`` for
    a scheme whose samples cannot be fitted otherwise, and where no scheme is left.
    """
    without = unfitted(samples)
    layers = measured_on.sizes()["layers"]
    found: dict[Scheme, Fit] = {}
    for scheme in sorted({sample.scheme for sample in samples} - set(without)):
        mine = [each for each in samples if each.scheme == scheme and not each.oom]
        by_role = {
            role: [
                Observed(each.lengths, each.whole_ms(layers), each.spread)
                for each in mine
                if each.role == role
            ]
            for role in ("fit", "held-out", "packed")
        }
        try:
            found[scheme] = fit_latency(
                by_role["fit"], by_role["held-out"], by_role["packed"], device_spread(mine)
            )
        except ValueError as error:
            raise SampleError(f"scheme {scheme}: {error}") from None
    if not found:
        raise SampleError("no scheme fits into memory: " + "; ".join(without.values()))
    return found


def unfitted(samples: Sequence[Sample]) -> dict[Scheme, str]:
    """Schemes too few of whose lengths fit into memory, with one line on each."""
    found = {}
    for scheme in sorted({sample.scheme for sample in samples}):
        lengths = [each for each in samples if each.scheme == scheme and each.role == "fit"]
        fitting = sum(not each.oom for each in lengths)
        if fitting < LEAST_LENGTHS and any(each.oom for each in samples if each.scheme == scheme):
            found[scheme] = (
                f"{scheme}: {fitting} of its lengths fit into memory, {LEAST_LENGTHS} are needed"
            )
    return found


def fit_memory(measured_on: MeasuredOn, samples: Sequence[Sample]) -> MemoryFit:
    """Linear in a rank's share of the tokens, for each tp over all its schemes; relative squares.

    A tp none of whose samples fits is left out; ``SampleError`` where none is left.
    """
    layers = measured_on.sizes()["layers"]
    slopes: dict[int, float] = {}
    predicted, measured = [], []
    for tp in sorted({sample.scheme.tp for sample in samples if not sample.oom}):
        used = [each for each in samples if each.scheme.tp == tp and not each.oom]
        tokens = np.array([each.tokens / (tp * each.scheme.sp) for each in used])
        taken = np.array([each.whole_bytes(layers) for each in used])
        relative = tokens / taken
        slopes[tp] = float(relative.sum() / (relative @ relative))
        predicted.append(slopes[tp] * tokens)
        measured.append(taken)
    if not slopes:
        raise SampleError("no sample fits into memory")
    return MemoryFit(
        slopes,
        Errors.of(np.concatenate(predicted), np.concatenate(measured)),
        of_allocator=any(each.layers_peak_bytes is not None for each in samples),
    )


def profile_document(
    measured_on: MeasuredOn,
    samples: Sequence[Sample],
    hardware: Hardware,
    *,
    name: str,
    source: str,
) -> dict[str, Any]:
    """The profile (schema 1) of these samples, ZeRO-1, every scheme measured.

    ``source``: the command and the date. ``SampleError`` where a fit fails.
    """
    fits = fit_schemes(measured_on, samples)
    memory = fit_memory(measured_on, samples)
    sizes = measured_on.sizes()
    layer, embeddings = parameters(sizes)
    dtype_bytes = _DTYPE_BYTES[measured_on.dtype]
    fractions = [
        median(each.forward_ms) / median(each.layers_ms) for each in samples if not each.oom
    ]
    document = {
        "schema": PROFILE_SCHEMA,
        "name": name,
        "source": source,
        "residuals": residuals(fits, memory),
        "hardware": {"gpu": hardware.gpu, "gpus_per_node": hardware.gpus_per_node},
        "model": {each: sizes[each] for each in sorted(sizes)},
        "zero_stage": 1,
        "checkpointing": measured_on.checkpointing,
        "forward_fraction": round(median(fractions), 4),
        "memory": {
            "capacity_bytes": hardware.capacity_bytes,
            "context_bytes": hardware.context_bytes,
            "margin_bytes": hardware.margin_bytes,
            "sharded_state_bytes": [
                [None, float(MASTER_BYTES * (layer * sizes["layers"] + embeddings))]
            ],
            "resident_layer_bytes": float((dtype_bytes + GRADIENT_BYTES) * layer * sizes["layers"]),
            "resident_embedding_bytes": float((dtype_bytes + GRADIENT_BYTES) * embeddings),
            "activation_bytes_per_token": {
                str(tp): per_token for tp, per_token in memory.bytes_per_token.items()
            },
        },
        "schemes": [_scheme(scheme, fit) for scheme, fit in fits.items()],
    }
    if any(scheme.tp > 1 for scheme in fits):
        document["notes"] = [_TP_NOTE]
    return document


def parameters(sizes: dict[str, int]) -> tuple[int, int]:
    """Parameters of a decoder layer, and of embedding, last norm and head."""
    hidden, width = sizes["hidden"], sizes["hidden"] // sizes["heads"]
    attention = hidden * width * (2 * sizes["heads"] + 2 * sizes["kv_heads"])
    return (
        attention + 3 * hidden * sizes["ffn"] + 2 * hidden,
        2 * sizes["vocab"] * hidden + hidden,
    )


def residuals(fits: dict[Scheme, Fit], memory: MemoryFit) -> str:
    """One line on the errors of all schemes together, the worst of each kind."""
    parts = []
    for kind in ("in_sample", "held_out", "packed"):
        errors = [getattr(fit, kind) for fit in fits.values()]
        medians = [each.median for each in errors if each.median is not None]
        ninetieths = [each.p90 for each in errors if each.p90 is not None]
        if medians and ninetieths:
            label = kind.replace("_", "-")
            parts.append(f"{label} {max(medians):.1%} (median) {max(ninetieths):.1%} (p90)")
    largest = memory.errors.largest
    counted = "allocator's peak" if memory.of_allocator else "kept by autograd"
    parts.append(f"memory {0.0 if largest is None else largest:.1%} (largest, {counted})")
    return "measured, worst scheme: " + ", ".join(parts)


def _scheme(scheme: Scheme, fit: Fit) -> dict[str, Any]:
    degrees = {axis: degree for axis, degree in scheme.as_dict().items() if degree > 1}
    latency = fit.latency
    document: dict[str, Any] = {
        **degrees,
        "a": latency.a,
        "b": latency.b,
        "c": latency.c,
        "origin": "measured",
        "fit": fit.document(),
    }
    return document
