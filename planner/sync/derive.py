"""The sync derived: bytes over the cluster's links, by layout.

If a profile has measured syncs, they correct the derived times.

Every rank owns an even part of each unit (a layer, an embedding, the head). A step all-gathers the
rest of a pipeline's shard in bf16, and reduce-scatters its gradients to their owners in fp32.

Of collectives between equal replicas, each unit takes what a ring does (``ring_collective_ms``),
and the start of its ranks. This runtime uses them for ranks that hold whole units, other trainers
for any layout. Else the runtime sends messages between owners and holders; the rank whose tp·pp is
smallest moves most:

    bytes · (share from other nodes / inter-node link  or  share of the node / intra-node link)
    + units · latency + messages · (what a further rank of a collective adds)

as the messages of a unit start together. Over several nodes, a rank that holds more of the model
than an even part of its node's relays it (``plans.views.relays``): each rank gathers such a part of
every unit from the ranks of its place on other nodes, as a ring does, and then sends messages
within the node, while the next unit's part comes. So the slower of both steps counts whole, and of
the faster one the largest unit alone, as it may be the first or the last.

Profiles of published latencies are of Hydraulis (arXiv 2412.07894), whose Table 1 has two totals of
LLaMA-32B on 64 A800: 1,110 ms between equal replicas, which were 4×tp16 (Table 3), and 1,710 ms
between different ones, of which the paper does not identify; tp·pp = 8 at the smallest is assumed,
as with 4 the bytes alone would take longer than that. Bytes at the links' rates, and the latency of
each message, are 560 and 1,100 ms of them. The rest of both is about the same, and is taken as
fixed (``FIXED_MS_PER_UNIT``). Other systems show no such part: without it the iterations of
``costs.analytic.validation.published_runs`` are predicted best.

With experts on E ranks a rank holds the E-th part of them, whatever its tp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import mean
from typing import NamedTuple

from seqplan.costs.analytic.estimate import OPTIMIZER_MOVED_BYTES
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import LINK_EFFICIENCY, ClusterHardware, Hardware
from seqplan.costs.analytic.gpus.kernels import memory_ms
from seqplan.costs.analytic.gpus.links import Group, rank_latency_ms, ring_collective_ms
from seqplan.costs.analytic.gpus.profiled_device import hardware_of
from seqplan.costs.model_sizes import ModelShape
from seqplan.costs.profile import Profile
from seqplan.planner.sync.times import Layout, LayoutSyncTimes, layout_text, layouts_of
from seqplan.plans.percent import percent
from seqplan.plans.views.relays import can_relay

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
"""Whose links and memory are taken where the profile's hardware is not listed."""

WHOLE = (1, 1)
"""The layout whose ranks hold whole units, which the runtime syncs by collectives."""


@dataclass(frozen=True, kw_only=True)
class ParameterTraffic:
    """Parameters of a model, and the links that they take in a step.

    ``published``: with the fixed part and the latency of each message that were fitted to
    Hydraulis.
    """

    shape: ModelShape
    gpus: int
    gpus_per_node: int
    links: Hardware
    expert_parallel: int = 1
    published: bool = False

    @classmethod
    def of_profile(cls, profile: Profile, gpus: int) -> ParameterTraffic:
        """Return the traffic of a profile's model."""
        return cls(
            shape=profile.shape,
            gpus=gpus,
            gpus_per_node=profile.gpus_per_node,
            links=hardware_of(profile) or DEVICES[ASSUMED],
            expert_parallel=profile.expert_degrees[0],
            published=_is_published(profile),
        )

    def alone_ms(self, layout: Layout, *, collectives: bool) -> float:
        """Time the sync between equal pipelines (ms).

        ``collectives``: of any layout, as other trainers; the runtime uses them for ``WHOLE`` only.
        """
        if collectives or layout == WHOLE:
            return self._collectives_ms(layout)
        return self.together_ms(layout)

    def together_ms(self, layout: Layout) -> float:
        """Time the sync next to pipelines of other layouts, by relays or messages (ms)."""
        return self._relays_ms(layout) if self.relays(layout) else self.messages_ms(layout)

    def messages_ms(self, layout: Layout) -> float:
        """Time messages between owners and holders, without relays (ms)."""
        return self._messages_ms(layout, _list_held(self.shape, layout, self.expert_parallel))

    def relays(self, layout: Layout) -> bool:
        """Whether ranks of a layout relay what others of their node hold."""
        tp, pp = layout
        per_node = self.gpus_per_node
        return not self.published and can_relay(self.gpus, per_node) and tp * pp < per_node

    def _collectives_ms(self, layout: Layout) -> float:
        """Time an all-gather and a reduce-scatter of each unit over its replicas (ms)."""
        if self.gpus == 1:
            return 0.0
        ms = self._fixed_ms
        for held in _list_held(self.shape, layout, self.expert_parallel):
            group = Group(max(1, self.gpus // (held.parts * layout[1])), held.parts)
            ms += self._rings_ms(held, group)
        return ms

    def _rings_ms(self, held: _HeldUnits, group: Group) -> float:
        """Time an all-gather and a reduce-scatter of each unit over a group (ms)."""
        nodes = -(-self.gpus // self.gpus_per_node)
        cluster = ClusterHardware(self.links, nodes, min(self.gpus, self.gpus_per_node))
        sizes = [s * held.parameters / held.units for s in (GATHERED_BYTES, REDUCED_BYTES)]
        one = float(ring_collective_ms(cluster, group, sizes).sum())
        return held.units * (one + 2 * rank_latency_ms(cluster, group))

    def _relays_ms(self, layout: Layout) -> float:
        """Time relays: even parts of all units between nodes, next to messages in the node (ms).

        Experts that are split take neither, but travel between the ranks with the same ones.
        """
        near = self.gpus_per_node
        whole, *_ = _list_held(self.shape, WHOLE, self.expert_parallel)
        of_rail = whole._replace(parameters=whole.parameters / near)
        shared, *experts = _list_held(self.shape, layout, self.expert_parallel)
        between = self._rings_ms(of_rail, Group(self.gpus // near, near))
        within = replace(self, gpus=near)._messages_ms(layout, [shared])
        embedding = (self.shape.vocab or 0) * self.shape.hidden
        of_layers = whole.parameters - embedding * (whole.units - self.shape.layers)
        largest = max(embedding, of_layers / self.shape.layers) / whole.parameters
        return (
            max(between, within)
            + min(between, within) * largest
            + sum(
                self._rings_ms(part, Group(max(1, self.gpus // part.parts), part.parts))
                for part in experts
            )
        )

    def _messages_ms(self, layout: Layout, held_units: Sequence[_HeldUnits]) -> float:
        """Time messages between owners and the layout's fullest rank, both ways (ms)."""
        gpus, links = self.gpus, self.links
        if gpus == 1:
            return 0.0
        held = sum(part.parameters for part in held_units)
        units = sum(part.units for part in held_units)
        near = min(gpus, self.gpus_per_node)
        gigabytes = held * (GATHERED_BYTES + REDUCED_BYTES) / 1e9
        across = gigabytes * (1 - near / gpus) / (links.inter_gb_s * LINK_EFFICIENCY)
        within = gigabytes * (near - 1) / gpus / (links.intra_gb_s * LINK_EFFICIENCY)
        messages = min(gpus - 1, gpus / layout[0] + MATRICES)
        start_us = links.inter_latency_us if self._spans else links.intra_latency_us
        if self.published:
            start_us *= messages
        elif self._spans:
            start_us += messages * links.inter_rank_us
        return 1e3 * max(across, within) + 2 * units * start_us / 1e3 + self._fixed_ms

    @property
    def _spans(self) -> bool:
        return self.gpus > self.gpus_per_node

    @property
    def _fixed_ms(self) -> float:
        if not self.published:
            return 0.0
        fixed = FIXED_MS_PER_UNIT * (self.shape.layers + (1 if self.shape.tied else 2))
        return fixed if self._spans else fixed * self.links.inter_gb_s / self.links.intra_gb_s

    def optimizer_ms(self) -> float:
        """Time the optimizer's step on states split over all GPUs, by the memory's rate (ms)."""
        parameters, _ = count_parameters(self.shape, WHOLE)
        return float(memory_ms(self.links, OPTIMIZER_MOVED_BYTES * parameters / self.gpus))


def derive_sync(
    profile: Profile,
    gpus: int,
    *,
    overlap: float = 0.0,
    optimizer_ms: float | None = None,
    collectives: bool = False,
) -> LayoutSyncTimes:
    """Derive the sync of every layout of the profile on ``gpus`` GPUs (ms).

    The links are those of the profile's hardware if its data sheet is known, else ``ASSUMED``.
    ``collectives``: as trainers whose replicas are equal; else as this runtime. If the profile has
    measured syncs, a measurement on as many GPUs is taken as it is, and every other time is
    multiplied by measured over derived: of the same layout on the nearest number of GPUs, of a
    layout that was not measured by all of them.
    """
    traffic = ParameterTraffic.of_profile(profile, gpus)
    layouts = sorted(layouts_of(entry.scheme for entry in profile.schemes))
    alone = {layout: traffic.alone_ms(layout, collectives=collectives) for layout in layouts}
    together = dict(alone)
    if WHOLE in alone and not collectives:
        together[WHOLE] = max(alone[WHOLE], traffic.together_ms(WHOLE))
    if profile.sync and gpus > 1:
        factors, source = _scale_measured(profile, alone, gpus, collectives)
        alone, together = (
            {layout: ms * factors[layout] for layout, ms in times.items()}
            for times in (alone, together)
        )
        source += f"; {percent(overlap, 0)} of it hidden"
    else:
        source = f"{_describe(profile, traffic, collectives)}; {percent(overlap, 0)} of it hidden"
        source += "; nothing was measured"
    return LayoutSyncTimes(
        overlap,
        optimizer_of(profile, gpus) if optimizer_ms is None else optimizer_ms,
        source,
        tuple((layout, round(together[layout], 3)) for layout in layouts),
        tuple(
            (layout, round(alone[layout], 3))
            for layout in layouts
            if round(alone[layout], 3) < round(together[layout], 3)
        ),
        collectives,
    )


def _describe(profile: Profile, traffic: ParameterTraffic, collectives: bool) -> str:
    links = traffic.links
    within = traffic.gpus <= traffic.gpus_per_node
    near = "in one node" if within else "across nodes"
    speed = links.intra_gb_s if within else links.inter_gb_s
    listed = hardware_of(profile) is not None
    assumed = "" if listed else f" (those of {links.name}, as the profile's GPU is not listed)"
    layouts = layouts_of(entry.scheme for entry in profile.schemes)
    relayed = {traffic.relays(layout) for layout in layouts}
    by = " and ".join(["relays"] * (True in relayed) + ["messages"] * (False in relayed))
    if WHOLE in layouts:
        by += " (tp1 alone: collectives)"
    if collectives or layouts == {WHOLE}:
        by = "collectives"
    fixed = ", the fixed part from Hydraulis Table 1" if traffic.published else ""
    return (
        f"derived for each layout, by {by}: {GATHERED_BYTES + REDUCED_BYTES} bytes a parameter of "
        f"the fullest rank, links {near} of {speed:g} GB/s a GPU{assumed}{fixed}"
    )


def _scale_measured(
    profile: Profile, alone: Mapping[Layout, float], gpus: int, collectives: bool
) -> tuple[dict[Layout, float], str]:
    """Return each layout's factor by the measurements, and describe how."""
    factors: dict[Layout, float] = {}
    for layout in sorted({(entry.tp, entry.pp) for entry in profile.sync}):
        entry = min(
            (entry for entry in profile.sync if (entry.tp, entry.pp) == layout),
            key=lambda entry: (abs(log(entry.gpus / gpus)), entry.gpus),
        )
        derived = ParameterTraffic.of_profile(profile, entry.gpus)
        factors[layout] = entry.ms / derived.alone_ms(layout, collectives=False)
    others = exp(mean(log(factor) for factor in factors.values()))
    low, high = min(factors.values()), max(factors.values())
    as_measured = {
        layout: entry.ms / alone[layout]
        for entry in profile.sync
        for layout in [(entry.tp, entry.pp)]
        if entry.gpus == gpus and layout in alone and (layout == WHOLE or not collectives)
    }
    there = sorted(as_measured)
    parts = []
    if there:
        parts.append(f"measured on {gpus} GPUs for {', '.join(map(layout_text, there))}")
    if len(there) < len(alone):
        counts = " or ".join(str(gpus) for gpus in sorted({e.gpus for e in profile.sync}))
        parts.append(
            f"{'others ' if there else ''}derived and multiplied by {low:.3g} to {high:.3g}, "
            f"as measured on {counts} GPUs"
        )
    scale = {layout: as_measured.get(layout, factors.get(layout, others)) for layout in alone}
    return scale, "; ".join(parts)


def _is_published(profile: Profile) -> bool:
    """Whether schemes are published, or derived to be like some that were left out."""
    if any(entry.origin == "published" for entry in profile.schemes):
        return True
    return not profile.residuals.startswith(("derived", "measured"))


def optimizer_of(profile: Profile, gpus: int) -> float:
    """Return the optimizer's step (ms).

    Measured on the nearest number of GPUs, shared by ``gpus``; as published; or derived.
    """
    if profile.sync:
        entry = min(
            profile.sync, key=lambda entry: (abs(log(entry.gpus / gpus)), entry.gpus, entry.tp)
        )
        return round(entry.optimizer_ms * entry.gpus / gpus, 3)
    if _is_published(profile):
        return OPTIMIZER_MS
    return round(ParameterTraffic.of_profile(profile, gpus).optimizer_ms(), 3)


def count_parameters(shape: ModelShape, layout: Layout) -> tuple[float, int]:
    """Count parameters and their units on the fullest rank of a layout, with all experts."""
    held = _list_held(shape, layout, 1)
    return sum(part.parameters for part in held), sum(part.units for part in held)


class _HeldUnits(NamedTuple):
    """Units on a rank: their parameters there, and the parts that each unit is split into."""

    parameters: float
    units: int
    parts: int


def _list_held(shape: ModelShape, layout: Layout, expert_parallel: int) -> list[_HeldUnits]:
    """List what the fullest rank holds: all of it, or experts apart if they are split."""
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
        return [_HeldUnits((of_layers + in_embeddings) / tp, units, tp)]
    in_experts = layers * sizes.expert_parameters / shape.layers
    return [
        _HeldUnits((of_layers - in_experts + in_embeddings) / tp, units, tp),
        _HeldUnits(in_experts / expert_parallel, layers, expert_parallel),
    ]
