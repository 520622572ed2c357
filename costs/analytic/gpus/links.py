"""Time of a transfer, by the links that a group of ranks uses.

Groups are laid out tp, ulysses, ring, dp, pp from neighboring ranks outward (USP, tip 7), so that
each axis has a stride; the stride and GPUs per node decide which links it uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqplan.costs.analytic.gpus.hardware import BRIDGE_FLOWS, LINK_EFFICIENCY, ClusterHardware
from seqplan.plans.scheme import Scheme

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Group:
    """``size`` ranks, ``stride`` apart; groups of this kind fill the cluster side by side."""

    size: int
    stride: int = 1

    def members_per_node(self, cluster: ClusterHardware) -> int:
        """Count the members of the group that share a node."""
        return max(1, min(self.size, cluster.gpus_per_node // self.stride))


def placement(scheme: Scheme, dp: int) -> dict[str, Group]:
    """Return the group of each axis: tp, ulysses, ring, dp, pp; ``replica``: all that hold the same
    parameters (ulysses·ring·dp)."""
    strides = np.cumprod([1, scheme.tp, scheme.ulysses, scheme.ring, dp]).tolist()
    sizes = (scheme.tp, scheme.ulysses, scheme.ring, dp, scheme.pp)
    groups = {
        axis: Group(size, stride)
        for axis, size, stride in zip(
            ("tp", "ulysses", "ring", "dp", "pp"), sizes, strides, strict=True
        )
    }
    groups["replica"] = Group(scheme.sp * dp, scheme.tp)
    return groups


def split_replicas(scheme: Scheme, dp: int, shards: int) -> tuple[Group, Group]:
    """Return the group that states are split over, and that of ranks with equal shards.

    ``shards``: GPUs that the states of a whole model are split over; 0 for all.
    """
    replica = placement(scheme, dp)["replica"]
    size = replica.size
    if shards:
        size = min(size, max(1, shards // (scheme.tp * scheme.pp)))
    return Group(size, replica.stride), Group(replica.size // size, replica.stride * size)


def all_to_all_ms(cluster: ClusterHardware, group: Group, payload_bytes: npt.ArrayLike) -> Floats:
    """Time an all-to-all: every rank sends each other rank its 1/size of ``payload_bytes``."""
    payload = np.asarray(payload_bytes, dtype=np.float64)
    if group.size == 1:
        return np.zeros_like(payload)
    near = group.members_per_node(cluster)
    pairs = [
        (a, b) for members in _window(cluster, group) for a in members for b in members if a != b
    ]
    within = (near - 1) / group.size / _intra(cluster)
    between = (group.size - near) / group.size / _inter(cluster)
    bridge = _bridge_seconds_per_gb(cluster, pairs) / group.size
    return _ms(payload, max(within, between, bridge)) + _latency_ms(cluster, group)


def exchange_ms(
    cluster: ClusterHardware,
    group: Group,
    within_bytes: npt.ArrayLike,
    between_bytes: npt.ArrayLike,
    rate: float,
) -> Floats:
    """Time an exchange of a rank within its node and with other nodes.

    Both go on at once. ``rate``: share of the links' rates that it reaches.
    """
    within, between = (np.asarray(b, dtype=np.float64) for b in (within_bytes, between_bytes))
    if group.size == 1:
        return np.zeros_like(within)
    slowest = np.maximum(
        _ms(within, 1 / (rate * _intra(cluster))), _ms(between, 1 / (rate * _inter(cluster)))
    )
    return np.asarray(slowest + _latency_ms(cluster, group))


def shift_ms(cluster: ClusterHardware, group: Group, payload_bytes: npt.ArrayLike) -> Floats:
    """Time a shift: every rank sends ``payload_bytes`` to the next of its group, as in a ring."""
    payload = np.asarray(payload_bytes, dtype=np.float64)
    if group.size == 1:
        return np.zeros_like(payload)
    return _ms(payload, _ring_seconds_per_gb(cluster, group, rails=1)) + _latency_ms(cluster, group)


def ring_collective_ms(
    cluster: ClusterHardware, group: Group, whole_bytes: npt.ArrayLike
) -> Floats:
    """Time an all-gather into, or reduce-scatter of, ``whole_bytes`` on every rank, by rings.

    Between nodes NCCL builds a ring for every GPU of a node that the group has, each over one
    network card, if the group has all of them. Groups that hold a part of a node lie side by
    side there, and each is given one card (USP, arXiv 2405.07719, tables 6 and 7, whose tp2 and tp4
    rows take longer by just that); clusters with separate rails do better
    (``Hardware.inter_rails``).
    """
    whole = np.asarray(whole_bytes, dtype=np.float64)
    if group.size == 1:
        return np.zeros_like(whole)
    share = (group.size - 1) / group.size
    near = group.members_per_node(cluster)
    rails = near if near == cluster.gpus_per_node else 1
    rails = min(near, cluster.hardware.inter_rails or rails)
    return _ms(whole, share * _ring_seconds_per_gb(cluster, group, rails)) + _latency_ms(
        cluster, group
    )


def _ring_seconds_per_gb(cluster: ClusterHardware, group: Group, rails: int) -> float:
    spans = group.members_per_node(cluster) < group.size
    pairs = [
        (a, b)
        for members in _window(cluster, group)
        for a, b in zip(members, members[1:] + members[:1], strict=True)
        if a != b
    ]
    within = 0.0 if group.members_per_node(cluster) == 1 else 1 / _intra(cluster)
    between = 1 / (rails * _inter(cluster)) if spans else 0.0
    return max(within, between, _bridge_seconds_per_gb(cluster, pairs))


def _window(cluster: ClusterHardware, group: Group) -> list[list[int]]:
    """Return the parts of all groups that lie in one node."""
    near = group.members_per_node(cluster)
    block = near * group.stride
    return [
        [start + offset + k * group.stride for k in range(near)]
        for start in range(0, cluster.gpus_per_node - block + 1, block)
        for offset in range(group.stride)
    ]


def _bridge_seconds_per_gb(cluster: ClusterHardware, pairs: Iterable[tuple[int, int]]) -> float:
    """Count the seconds of the busiest PCIe host bridge when each pair moves 1 GB."""
    hardware = cluster.hardware
    if not hardware.socket_gpus:
        return 0.0
    flows = Counter(
        a // hardware.socket_gpus
        for a, b in pairs
        if a // hardware.switch_gpus != b // hardware.switch_gpus
    )
    rate = _intra(cluster)
    return max((f / (rate * min(1.0, BRIDGE_FLOWS / f)) for f in flows.values()), default=0.0)


def _intra(cluster: ClusterHardware) -> float:
    return cluster.hardware.intra_gb_s * LINK_EFFICIENCY


def _inter(cluster: ClusterHardware) -> float:
    return cluster.hardware.inter_gb_s * LINK_EFFICIENCY


def rank_latency_ms(cluster: ClusterHardware, group: Group) -> float:
    """Time the start of a collective between nodes that its ranks add.

    Of replicas' collectives, which have the most ranks. No kernel hides it: delays of ranks differ.
    """
    if group.members_per_node(cluster) >= group.size:
        return 0.0
    return cluster.hardware.inter_rank_us * (group.size - 1) / 1e3


def _latency_ms(cluster: ClusterHardware, group: Group) -> float:
    spans = group.members_per_node(cluster) < group.size
    hardware = cluster.hardware
    return (hardware.inter_latency_us if spans else hardware.intra_latency_us) / 1e3


def _ms(size_bytes: Floats, seconds_per_gb: float) -> Floats:
    return size_bytes / 1e9 * seconds_per_gb * 1e3
