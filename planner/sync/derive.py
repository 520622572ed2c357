"""The sync derived: bytes of the fullest rank over the cluster's links, by layout.

If a profile has measured syncs, they correct the derived times.

Every rank owns an even part of each unit (a layer, an embedding, the head). A step all-gathers the
rest of a pipeline's shard in bf16, and reduce-scatters its gradients to their owners in fp32; the
rank whose tp·pp is smallest moves most. Per direction and unit:

    bytes · (share from other nodes / inter-node link  or  share of the node / intra-node link)
    + messages · latency

Two totals are published (Hydraulis, arXiv 2412.07894, Table 1; LLaMA-32B on 64 A800): 1,110 ms
between equal replicas, which were 4×tp16 (Table 3), and 1,710 ms between different ones, of which
the paper does not identify; tp·pp = 8 at the smallest is assumed, as with 4 the bytes alone would
take longer than that. Bytes at the links' rates and latencies are 560 and 1,100 ms of them. The
rest of both is about the same, and is taken as fixed (``FIXED_MS_PER_UNIT``).

With experts on E ranks a rank holds the E-th part of them, whatever its tp.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log
from statistics import mean

from seqplan.costs.analytic.devices import DEVICES
from seqplan.costs.analytic.hardware import LINK_EFFICIENCY, Hardware
from seqplan.costs.analytic.profiled_device import hardware_of
from seqplan.costs.model_sizes import ModelShape
from seqplan.costs.profile import Profile
from seqplan.planner.sync.times import Layout, LayoutSyncTimes, layout_text, layouts_of
from seqplan.plans.percent import percent

OPTIMIZER_MS = 20.0
"""Published (Hydraulis, Table 1): the optimizer's step on shards over 64 ranks."""

GATHERED_BYTES, REDUCED_BYTES = 2, 4
"""Of a parameter in bf16, and of its gradient's sum in fp32, as in this runtime."""

FIXED_MS_PER_UNIT = 9.35
"""Rest of both published totals, per layer or embedding. Fitted on these two; that it goes
with the number of units, and within a node falls with the speed of the links, is assumed."""

MATRICES = 7
"""Of a layer. A shard's part of each begins with another owner than the part before ended with."""

ASSUMED = "a800-80gb"
"""Whose links are taken where the profile's hardware is not listed."""


def derive_sync(
    profile: Profile, gpus: int, *, overlap: float = 0.0, optimizer_ms: float | None = None
) -> LayoutSyncTimes:
    """Derive the sync of every layout of the profile on ``gpus`` GPUs (ms).

    The links are those of the profile's hardware if its data sheet is known, else ``ASSUMED``.
    If the profile has measured syncs, a measurement on as many GPUs is taken as it is, and every
    other time is multiplied by measured over derived: of the same layout on the nearest number of
    GPUs, of a layout that was not measured by all of them.
    """
    hardware = hardware_of(profile)
    links = hardware or DEVICES[ASSUMED]
    layouts = sorted(layouts_of(entry.scheme for entry in profile.schemes))
    derived = {layout: _derive_ms(profile, layout, gpus, links) for layout in layouts}
    near = "in one node" if gpus <= profile.gpus_per_node else "across nodes"
    speed = links.intra_gb_s if gpus <= profile.gpus_per_node else links.inter_gb_s
    assumed = "" if hardware else f" (those of {links.name}, as the profile's GPU is not listed)"
    source = (
        f"derived for each layout: {GATHERED_BYTES + REDUCED_BYTES} bytes a parameter of the "
        f"fullest rank, links {near} of {speed:g} GB/s a GPU{assumed}, the fixed part from "
        "Hydraulis Table 1"
    )
    if profile.sync and gpus > 1:
        times, source = _scale_measured(profile, derived, gpus, links)
        source += f"; {percent(overlap, 0)} of it hidden"
    else:
        times = derived
        source += f"; {percent(overlap, 0)} of it hidden; nothing was measured"
    return LayoutSyncTimes(
        overlap,
        optimizer_of(profile, gpus) if optimizer_ms is None else optimizer_ms,
        source,
        tuple((layout, round(times[layout], 3)) for layout in layouts),
    )


def _scale_measured(
    profile: Profile, derived: Mapping[Layout, float], gpus: int, links: Hardware
) -> tuple[dict[Layout, float], str]:
    """Return each layout's time by the measurements, and describe how."""
    factors: dict[Layout, float] = {}
    for layout in sorted({(entry.tp, entry.pp) for entry in profile.sync}):
        entry = min(
            (entry for entry in profile.sync if (entry.tp, entry.pp) == layout),
            key=lambda entry: (abs(log(entry.gpus / gpus)), entry.gpus),
        )
        factors[layout] = entry.ms / _derive_ms(profile, layout, entry.gpus, links)
    others = exp(mean(log(factor) for factor in factors.values()))
    as_measured = {(entry.tp, entry.pp): entry.ms for entry in profile.sync if entry.gpus == gpus}
    times = {
        layout: as_measured.get(layout, ms * factors.get(layout, others))
        for layout, ms in derived.items()
    }
    there = sorted(as_measured.keys() & derived.keys())
    parts = []
    if there:
        parts.append(f"measured on {gpus} GPUs for {', '.join(map(layout_text, there))}")
    if len(there) < len(derived):
        counts = " or ".join(str(gpus) for gpus in sorted({e.gpus for e in profile.sync}))
        low, high = min(factors.values()), max(factors.values())
        parts.append(
            f"{'others ' if there else ''}derived and multiplied by {low:.3g} to {high:.3g}, "
            f"as measured on {counts} GPUs"
        )
    return times, "; ".join(parts)


def _derive_ms(profile: Profile, layout: Layout, gpus: int, links: Hardware) -> float:
    degree = profile.expert_degrees[0]
    return layout_sync_ms(profile.shape, layout, gpus, profile.gpus_per_node, links, degree)


def optimizer_of(profile: Profile, gpus: int) -> float:
    """Return the optimizer's step (ms).

    Measured on the nearest number of GPUs, shared by ``gpus``; or as published.
    """
    if not profile.sync:
        return OPTIMIZER_MS
    entry = min(profile.sync, key=lambda entry: (abs(log(entry.gpus / gpus)), entry.gpus, entry.tp))
    return round(entry.optimizer_ms * entry.gpus / gpus, 3)


def count_parameters(
    shape: ModelShape, layout: Layout, expert_parallel: int = 1
) -> tuple[float, int]:
    """Count parameters and their units on the fullest rank of a layout."""
    tp, pp = layout
    layers = -(-shape.layers // pp)
    if not shape.architecture.dense and (sizes := shape.sizes) is not None:
        of_layers = layers * sizes.layers_parameters / shape.layers
    else:
        of_layers = layers * shape.layer_weights
    embeddings = 1 if shape.tied or pp > 1 else 2
    in_embeddings = embeddings * (shape.vocab or 0) * shape.hidden
    units = layers + embeddings
    if expert_parallel == 1 or (sizes := shape.sizes) is None:
        return (of_layers + in_embeddings) / tp, units
    in_experts = layers * sizes.expert_parameters / shape.layers
    held = (of_layers - in_experts + in_embeddings) / tp + in_experts / expert_parallel
    return held, units + layers


def layout_sync_ms(
    shape: ModelShape,
    layout: Layout,
    gpus: int,
    gpus_per_node: int,
    links: Hardware,
    expert_parallel: int = 1,
) -> float:
    """Time all-gather and reduce-scatter of a layout's fullest rank, none of it hidden (ms)."""
    if gpus == 1:
        return 0.0
    held, units = count_parameters(shape, layout, expert_parallel)
    near = min(gpus, gpus_per_node)
    gigabytes = held * (GATHERED_BYTES + REDUCED_BYTES) / 1e9
    across = gigabytes * (1 - near / gpus) / (links.inter_gb_s * LINK_EFFICIENCY)
    within = gigabytes * (near - 1) / gpus / (links.intra_gb_s * LINK_EFFICIENCY)
    messages = 2 * units * min(gpus - 1, gpus / layout[0] + MATRICES)
    spans = gpus > gpus_per_node
    latency_us = links.inter_latency_us if spans else links.intra_latency_us
    fixed = FIXED_MS_PER_UNIT * (shape.layers + (1 if shape.tied else 2))
    if not spans:
        fixed *= links.inter_gb_s / links.intra_gb_s
    return 1e3 * max(across, within) + messages * latency_us / 1e3 + fixed
