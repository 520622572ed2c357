"""Whether the ranks' logs agree: collectives in one order and size, sends with receives."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

Event = tuple[Any, ...]


def find_mismatches(logs: Sequence[Sequence[Event]]) -> list[str]:
    """One line for each disagreement of the ranks, whose events are in ``logs``.

    An event: kind, group's members, shapes or transfers, line.
    """
    return [*_collectives(logs), *_transfers(logs)]


def _collectives(logs: Sequence[Sequence[Event]]) -> list[str]:
    by_group: dict[Any, dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for rank, log in enumerate(logs):
        for event in log:
            if event[0] != "p2p":
                by_group[event[1]][rank].append(event)
    lines = []
    for (name, members), by_rank in by_group.items():
        first = by_rank[members[0]]
        for rank in members[1:]:
            for place, (one, other) in enumerate(zip(first, by_rank[rank], strict=False)):
                if (one[0], one[2]) != (other[0], other[2]):
                    lines.append(
                        f"{name}, collective {place}: {one[0]} {one[2]} at {one[3]} on rank "
                        f"{members[0]}, {other[0]} {other[2]} at {other[3]} on rank {rank}"
                    )
                    break
            if len(first) != len(by_rank[rank]):
                lines.append(
                    f"{name}: {len(first)} collectives on rank {members[0]}, "
                    f"{len(by_rank[rank])} on rank {rank}"
                )
    return lines


def _transfers(logs: Sequence[Sequence[Event]]) -> list[str]:
    sent: dict[Any, list[int]] = defaultdict(list)
    received: dict[Any, list[int]] = defaultdict(list)
    for rank, log in enumerate(logs):
        for event in log:
            if event[0] != "p2p":
                continue
            for kind, size, peer in event[2]:
                if kind == "send":
                    sent[event[1], rank, peer].append(size)
                else:
                    received[event[1], peer, rank].append(size)
    return [
        f"{key[0][0]}: rank {key[1]} sends {sent[key]} bytes to rank {key[2]}, "
        f"which receives {received[key]}"
        for key in sorted({*sent, *received}, key=str)
        if sent[key] != received[key]
    ]
