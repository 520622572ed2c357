"""From samples to a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from seqplan.plans.scheme import Scheme
from seqplan.profiler.measured.fit import Errors, Fit, Observed, fit_latency
from seqplan.profiler.measured.samples import Sample, SampleError, Setting
from seqplan.profiler.profile import PROFILE_SCHEMA

MASTER_BYTES = 12
"""fp32 master parameter and two Adam moments of a parameter, fully sharded."""

GRADIENT_BYTES = 4
"""The fp32 sum of a parameter's gradients during a step."""

_DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Activation bytes per token before division over ranks, and how far samples are from it."""

    bytes_per_token: float
    errors: Errors


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a profile says of the devices; bytes of one."""

    gpu: str
    gpus_per_node: int
    capacity_bytes: float
    context_bytes: float = 0.0
    margin_bytes: float = 0.0


def fit_schemes(setting: Setting, samples: Sequence[Sample]) -> dict[Scheme, Fit]:
    """The latency of every scheme, for a model of all its layers.

    ``SampleError`` for a scheme whose samples cannot be fitted.
    """
    layers = setting.sizes()["layers"]
    found: dict[Scheme, Fit] = {}
    for scheme in sorted({sample.scheme for sample in samples}):
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
            found[scheme] = fit_latency(by_role["fit"], by_role["held-out"], by_role["packed"])
        except ValueError as error:
            raise SampleError(f"scheme {scheme}: {error}") from None
    return found


def fit_memory(setting: Setting, samples: Sequence[Sample]) -> MemoryFit:
    """Linear in the tokens a rank holds, over all schemes; relative least squares."""
    layers = setting.sizes()["layers"]
    used = [each for each in samples if not each.oom]
    if not used:
        raise SampleError("no sample fits into memory")
    tokens = np.array([each.tokens / each.scheme.sp for each in used])
    measured = np.array([each.whole_saved_bytes(layers) for each in used])
    relative = tokens / measured
    slope = float(relative.sum() / (relative @ relative))
    return MemoryFit(slope, Errors.of(slope * tokens, measured))


def profile_document(
    setting: Setting, samples: Sequence[Sample], hardware: Hardware, *, name: str, source: str
) -> dict[str, Any]:
    """The profile (schema 1) of these samples, ZeRO-1, every scheme measured.

    ``source``: the command and the date. ``SampleError`` where a fit fails.
    """
    fits = fit_schemes(setting, samples)
    memory = fit_memory(setting, samples)
    sizes = setting.sizes()
    layer, embeddings = parameters(sizes)
    dtype_bytes = _DTYPE_BYTES[setting.dtype]
    fractions = [
        median(each.forward_ms) / median(each.layers_ms) for each in samples if not each.oom
    ]
    return {
        "schema": PROFILE_SCHEMA,
        "name": name,
        "source": source,
        "residuals": residuals(fits, memory),
        "hardware": {"gpu": hardware.gpu, "gpus_per_node": hardware.gpus_per_node},
        "model": {each: sizes[each] for each in sorted(sizes)},
        "zero_stage": 1,
        "checkpointing": setting.checkpointing,
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
            "activation_bytes_per_token": {"1": memory.bytes_per_token},
        },
        "schemes": [_scheme(scheme, fit) for scheme, fit in fits.items()],
    }


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
    parts.append(f"memory {0.0 if largest is None else largest:.1%} (largest)")
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
