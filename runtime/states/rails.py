"""Groups between nodes, over which parameters and gradients come to each node once."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import torch.distributed as dist

from seqplan.plans.views.relays import can_relay
from seqplan.runtime.communicators import Communicators, gather_objects
from seqplan.runtime.tensor_parallel.process_groups import group_maker_for


def make_rail(groups: Communicators) -> dist.ProcessGroup | None:
    """Return the group of the ranks of this one's place in their nodes; collective.

    None unless there are several nodes of equally many ranks, by the names of their hosts.
    """
    names = gather_objects(socket.gethostname(), groups.control, "comparing the names of nodes")
    per_node = count_ranks_per_node(names)
    if not can_relay(len(names), per_node):
        return None
    rails = [tuple(range(place, len(names), per_node)) for place in range(per_node)]
    made = group_maker_for(groups.states, groups.timeout_s).make(rails)
    return made[rails[dist.get_rank(groups.states) % per_node]]


def count_ranks_per_node(names: Sequence[str]) -> int:
    """Count the ranks of a node by the names of all ranks' nodes.

    1 unless the ranks of a node follow each other, equally many on each.
    """
    count = names.count(names[0])
    firsts = names[::count]
    equal = [name for name in firsts for _ in range(count)] == list(names)
    return count if equal and len(set(firsts)) == len(firsts) else 1
