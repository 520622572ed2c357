"""From samples to a profile: latency and memory are fitted once, then written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from seqplan.costs.fit.latency_fit import (
    LEAST_LENGTHS,
    Errors,
    Fit,
    LaunchBound,
    Observed,
    fit_latency,
)
from seqplan.costs.fit.pooling import device_spread
from seqplan.costs.fit.samples import (
    DTYPE_BYTES,
    PLAIN_TENSOR_PARALLEL,
    MeasuredOn,
    Sample,
    SampleError,
)
from seqplan.costs.fit.sync_samples import SyncSample, fit_sync
from seqplan.costs.memory_reader import HOST_MEMORY
from seqplan.costs.model_sizes import ModelSizes
from seqplan.costs.profile_reader import HOST_BYTES
from seqplan.costs.profiled_scheme import PROFILE_SCHEMA
from seqplan.plans.percent import percent
from seqplan.plans.recomputation import count_offloaded, split_mode
from seqplan.plans.scheme import Scheme

MASTER_BYTES = 12
"""fp32 master parameter and two Adam moments of a parameter, fully sharded."""

GRADIENT_BYTES = 4
"""The fp32 sum of a parameter's gradients during a step."""

LEAST_MARGIN = 0.05
"""Share of a device's memory that its allocator's fragmentation is given at least."""

FRAGMENTED_FROM = 2**30
"""Bytes in use from which fragmentation counts: of less it is the size of the first segments."""

MEMORY_FROM = 0.5
"""Share of the longest micro-batch's tokens from which memory is fitted."""

_TP_NOTE = (
    "tp was measured without Megatron's sequence parallelism: norms and residuals are on every "
    "rank, so that trainers which split them hold more tokens."
)


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Activation bytes per token by tp, before division over ranks, and the samples' distance.

    ``host_bytes_per_token``: in host memory, likewise; empty if nothing is offloaded.
    ``of_allocator``: whether they are peaks of the device's allocator; else what autograd keeps.
    ``fragmentation``: share of what the allocator had taken that was not in use at the highest of
    these peaks; None if it was not read, or of too little memory.
    """

    bytes_per_token: Mapping[int, float]
    errors: Errors
    of_allocator: bool = False
    fragmentation: float | None = None
    host_bytes_per_token: Mapping[int, float] = field(default_factory=dict)

    @property
    def margin(self) -> float:
        """Share of the memory to leave free for fragmentation: none if nothing is allocated."""
        return max(LEAST_MARGIN, self.fragmentation or 0.0) if self.of_allocator else 0.0


@dataclass(frozen=True, slots=True)
class ProfiledDevices:
    """A profile's facts of the devices; bytes of one, and of host memory for its activations."""

    gpu: str
    gpus_per_node: int
    capacity_bytes: float
    context_bytes: float = 0.0
    host_memory_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class MeasuredFit:
    """All that is fitted to samples of one device and model.

    ``latencies``: of every scheme that could be fitted; ``forward_fraction``: of forward and
    backward of the layers; ``shared``: ms per token of experts and their exchanges, by scheme.
    """

    measured_on: MeasuredOn
    latencies: dict[Scheme, Fit]
    memory: MemoryFit
    forward_fraction: float
    shared: Mapping[Scheme, float] = field(default_factory=dict)


def fit_all(measured_on: MeasuredOn, samples: Sequence[Sample]) -> MeasuredFit:
    """Fit latency and memory to the samples; ``SampleError`` where a fit fails."""
    latencies = fit_schemes(measured_on, samples)
    memory = fit_memory(measured_on, samples)
    fractions = [
        median(sample.forward_ms) / median(sample.layers_ms) for sample in samples if not sample.oom
    ]
    shared = fit_shared(measured_on, samples) if measured_on.expert_parallel > 1 else {}
    return MeasuredFit(measured_on, latencies, memory, median(fractions), shared)


def fit_shared(measured_on: MeasuredOn, samples: Sequence[Sample]) -> dict[Scheme, float]:
    """Fit the time per token of experts and their exchanges, by scheme (ms).

    The slope of a line through the medians of their times over tokens, at least 0.
    """
    layers = measured_on.sizes()["layers"]
    shared = {}
    for scheme in {sample.scheme for sample in samples}:
        mine = [s for s in samples if s.scheme == scheme and s.experts_ms and not s.oom]
        if len({sample.tokens for sample in mine}) < 2:
            continue
        times = [
            median(sample.experts_ms) * layers / (sample.layers * scheme.pp) for sample in mine
        ]
        slope, _ = np.polyfit([sample.tokens for sample in mine], times, 1)
        shared[scheme] = max(0.0, float(slope))
    return shared


def fit_schemes(measured_on: MeasuredOn, samples: Sequence[Sample]) -> dict[Scheme, Fit]:
    """Fit the latency of every scheme, for a model of all its layers.

    Without those that run out of memory too early to be fitted (``find_unfitted``). ``SampleError``
    for a scheme whose samples cannot be fitted otherwise, and if no scheme is left.
    """
    without = find_unfitted(samples)
    layers = measured_on.sizes()["layers"]
    latencies: dict[Scheme, Fit] = {}
    for scheme in sorted({sample.scheme for sample in samples} - set(without)):
        mine = [sample for sample in samples if sample.scheme == scheme and not sample.oom]
        used, launch_bound = _leave_out_launch_bound(mine, layers)
        by_role = {
            role: [
                Observed(sample.lengths, sample.whole_ms(layers), sample.spread)
                for sample in used
                if sample.role == role
            ]
            for role in ("fit", "held-out", "packed")
        }
        try:
            fit = fit_latency(
                by_role["fit"], by_role["held-out"], by_role["packed"], device_spread(mine)
            )
        except ValueError as error:
            raise SampleError(f"scheme {scheme}: {error}") from None
        latencies[scheme] = replace(fit, launch_bound=launch_bound)
    if not latencies:
        reasons = "; ".join(without.values())
        raise SampleError(f"no scheme fits into memory: {reasons}. Measure shorter lengths")
    return latencies


def _leave_out_launch_bound(
    samples: Sequence[Sample], layers: int
) -> tuple[list[Sample], LaunchBound | None]:
    """Return samples whose time is the device's, or all if these are too few.

    The host's time is about the same for all micro-batches, and no part of a curve through those
    that keep the device busy.
    """
    bound = [sample for sample in samples if sample.launch_bound]
    used = [sample for sample in samples if not sample.launch_bound]
    if not bound or sum(sample.role == "fit" for sample in used) < LEAST_LENGTHS:
        return list(samples), None
    least_ms = min(sample.whole_ms(layers) for sample in bound)
    return used, LaunchBound(max(sample.tokens for sample in bound), least_ms)


def find_unfitted(samples: Sequence[Sample]) -> dict[Scheme, str]:
    """Return the schemes with too few lengths that fit into memory, with reasons."""
    reasons = {}
    for scheme in sorted({sample.scheme for sample in samples}):
        mine = [sample for sample in samples if sample.scheme == scheme]
        fitting = sum(sample.role == "fit" and not sample.oom for sample in mine)
        if fitting < LEAST_LENGTHS and any(sample.oom for sample in mine):
            reasons[scheme] = (
                f"{scheme}: {fitting} of its lengths fit into memory, {LEAST_LENGTHS} are needed"
            )
    return reasons


def fit_memory(measured_on: MeasuredOn, samples: Sequence[Sample]) -> MemoryFit:
    """Fit memory linear in a rank's share of the tokens, for each tp; relative squares.

    An allocator's peaks from ``MEMORY_FROM`` of the longest micro-batch on: in shorter ones the
    gradients of weights take more than the activations. A tp none of whose samples fits is left
    out; ``SampleError`` if none is left.
    """
    layers = measured_on.sizes()["layers"]
    of_allocator = any(sample.layers_peak_bytes is not None for sample in samples)
    slopes: dict[int, float] = {}
    predicted, measured = [], []
    for tp in sorted({sample.scheme.tp for sample in samples if not sample.oom}):
        used = [sample for sample in samples if sample.scheme.tp == tp and not sample.oom]
        if of_allocator:
            longest = max(_count_share(sample) for sample in used)
            used = [sample for sample in used if _count_share(sample) >= MEMORY_FROM * longest]
        tokens = np.array([_count_share(sample) for sample in used])
        measured_bytes = np.array([sample.whole_bytes(layers) for sample in used])
        relative = tokens / measured_bytes
        slopes[tp] = float(relative.sum() / (relative @ relative))
        predicted.append(slopes[tp] * tokens)
        measured.append(measured_bytes)
    if not slopes:
        raise SampleError("no sample fits into memory. Measure shorter lengths")
    return MemoryFit(
        slopes,
        Errors.from_times(np.concatenate(predicted), np.concatenate(measured)),
        of_allocator=of_allocator,
        fragmentation=_fragmentation(samples),
        host_bytes_per_token=_fit_host(measured_on, samples),
    )


def _count_share(sample: Sample) -> float:
    """Count the tokens of a micro-batch that are on each rank."""
    return sample.tokens / (sample.scheme.tp * sample.scheme.sp)


def _fit_host(measured_on: MeasuredOn, samples: Sequence[Sample]) -> dict[int, float]:
    """Return the most bytes per token in host memory by tp, before division over ranks."""
    offloaded = partial(count_offloaded, split_mode(measured_on.recompute)[1])
    layers = offloaded(measured_on.sizes()["layers"])
    slopes: dict[int, float] = {}
    for sample in samples:
        if sample.host_bytes and layers:
            of_layer = sample.host_bytes / offloaded(sample.layers)
            per_token = layers * of_layer / _count_share(sample)
            slopes[sample.scheme.tp] = max(slopes.get(sample.scheme.tp, 0.0), per_token)
    return slopes


def _fragmentation(samples: Sequence[Sample]) -> float | None:
    """Return the share that was reserved and not in use where most was in use."""
    in_use, reserved = max(
        ((sample.allocated_bytes or 0, sample.reserved_bytes or 0) for sample in samples),
        default=(0, 0),
    )
    return 1 - in_use / reserved if reserved >= in_use >= FRAGMENTED_FROM else None


def profile_document(
    fit: MeasuredFit,
    devices: ProfiledDevices,
    *,
    name: str,
    source: str,
    syncs: Sequence[SyncSample] = (),
) -> dict[str, Any]:
    """Return the profile of the fits: ZeRO-1, every scheme measured.

    ``source``: the command and the date; ``syncs``: measured between several ranks.
    """
    sizes = fit.measured_on.sizes()
    model = ModelSizes.from_mapping(sizes)
    dtype_bytes = DTYPE_BYTES[fit.measured_on.dtype]
    experts = model.expert_parameters
    document = {
        "schema": PROFILE_SCHEMA,
        "name": name,
        "source": source,
        "residuals": residuals(fit.latencies, fit.memory),
        "hardware": {"gpu": devices.gpu, "gpus_per_node": devices.gpus_per_node},
        "model": {size: sizes[size] for size in sorted(sizes)},
        "zero_stage": 1,
        "recompute": fit.measured_on.recompute,
        "kernel": fit.measured_on.kernel,
        "forward_fraction": round(fit.forward_fraction, 4),
        "memory": {
            "capacity_bytes": devices.capacity_bytes,
            "context_bytes": devices.context_bytes,
            "margin_bytes": fit.memory.margin * devices.capacity_bytes,
            "sharded_state_bytes": [[None, float(MASTER_BYTES * model.parameters)]],
            "resident_layer_bytes": float(
                (dtype_bytes + GRADIENT_BYTES) * (model.layers_parameters - experts)
            ),
            **(
                {"resident_expert_bytes": float((dtype_bytes + GRADIENT_BYTES) * experts)}
                if experts
                else {}
            ),
            "resident_embedding_bytes": float(
                (dtype_bytes + GRADIENT_BYTES) * model.embedding_parameters
            ),
            "activation_bytes_per_token": {
                str(tp): per_token for tp, per_token in fit.memory.bytes_per_token.items()
            },
            **_describe_host(fit.memory, devices),
        },
        "schemes": [_scheme(scheme, fit) for scheme in fit.latencies],
    }
    if syncs:
        document["sync"] = fit_sync(syncs, model.layers)
    notes = []
    if any(scheme.tp > 1 for scheme in fit.latencies):
        document["tensor_parallel"] = fit.measured_on.tensor_parallel
        if fit.measured_on.tensor_parallel == PLAIN_TENSOR_PARALLEL:
            notes.append(_TP_NOTE)
    if fit.memory.of_allocator:
        notes.append(_margin_note(fit.memory))
    if notes:
        document["notes"] = notes
    return document


def _describe_host(memory: MemoryFit, devices: ProfiledDevices) -> dict[str, Any]:
    """Return host bytes per token and host memory, of a mode that offloads."""
    if not memory.host_bytes_per_token:
        return {}
    per_token = {str(tp): of_tp for tp, of_tp in memory.host_bytes_per_token.items()}
    return {HOST_BYTES: per_token, HOST_MEMORY: devices.host_memory_bytes}


def _margin_note(memory: MemoryFit) -> str:
    measured = "not measured with enough memory in use"
    if memory.fragmentation is not None:
        measured = f"measured {percent(memory.fragmentation)}"
    return (
        f"margin_bytes: {percent(memory.margin)} of the memory, for what the allocator takes and "
        f"cannot use ({measured}; at least {percent(LEAST_MARGIN, 0)})."
    )


def residuals(latencies: dict[Scheme, Fit], memory: MemoryFit) -> str:
    """Describe in one line the errors of all schemes together, the worst of each kind."""
    parts = []
    for kind in ("in_sample", "held_out", "packed"):
        errors = [getattr(fit, kind) for fit in latencies.values()]
        medians = [of_scheme.median for of_scheme in errors if of_scheme.median is not None]
        ninetieths = [of_scheme.p90 for of_scheme in errors if of_scheme.p90 is not None]
        if medians and ninetieths:
            label = kind.replace("_", "-")
            parts.append(
                f"{label} {percent(max(medians))} (median) {percent(max(ninetieths))} (p90)"
            )
    largest = memory.errors.largest
    counted = "allocator's peak" if memory.of_allocator else "kept by autograd"
    parts.append(f"memory {percent(0.0 if largest is None else largest)} (largest, {counted})")
    return "measured, worst scheme: " + ", ".join(parts)


def _scheme(scheme: Scheme, measured: MeasuredFit) -> dict[str, Any]:
    degrees = {axis: degree for axis, degree in scheme.as_dict().items() if degree > 1}
    if (experts := measured.measured_on.expert_parallel) > 1:
        degrees["expert_parallel"] = experts
    fit = measured.latencies[scheme]
    shared = min(measured.shared.get(scheme, 0.0), fit.latency.b)
    return {
        **degrees,
        **replace(fit.latency, b_shared=shared).as_dict(),
        "origin": "measured",
        "fit": fit.document(),
    }
