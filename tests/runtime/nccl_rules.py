"""Recorded communication of real ranks, replayed under the rules of NCCL.

Nothing is buffered: a transfer takes place when both sides run, a collective when all members do. A
batch runs when it is posted and everything posted before it in its queue has ended; it ends when
all its operations have taken place. After a wait a rank does nothing until the batch has ended. A
queue is a communicator's, or one for all, as where a device runs one communication kernel at a
time.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch import Tensor

from seqplan.runtime.sequence_parallel.peers import Peer, Peers, Transfer
from seqplan.runtime.states.sync import CollectiveSync
from seqplan.runtime.states.unit import Unit
from seqplan.runtime.states.unit_states import UnitStates
from seqplan.runtime.tensor_parallel.groups import CollectiveTensorGroup

Operation = tuple[str, tuple[int, ...], int]
"""What takes place: on which communicator, between which ranks, of how many elements.

Of a transfer (source, destination); of a collective all members, ascending, and −1 before them."""


@dataclass
class Trace:
    """What one rank posts and waits for: ("post", batch, operations) and ("wait", batch)."""

    rank: int
    events: list[tuple[Any, ...]] = field(default_factory=list)
    batches: int = 0

    def post(self, operations: Sequence[Operation]) -> int:
        self.batches += 1
        self.events.append(("post", self.batches, list(operations)))
        return self.batches

    def wait(self, batch: int) -> None:
        self.events.append(("wait", batch))

    def collective(self, group: dist.ProcessGroup, elements: int) -> int:
        members = sorted(dist.get_process_group_ranks(group))
        return self.post([(group.group_name, (-1, *members), elements)])


@contextmanager
def recorded(trace: Trace) -> Iterator[None]:
    """Write down what this rank communicates within."""
    transfer, waited = Peers.transfer, Transfer.wait

    def posting(peers: Peers, sends: Sequence[Peer], receives: Sequence[Peer]) -> Transfer:
        name = peers.group.group_name if peers.group is not None else ""
        operations = [
            (name, (trace.rank, peer), tensor.numel()) for tensor, peer in sends if tensor.numel()
        ]
        operations += [
            (name, (peer, trace.rank), tensor.numel())
            for tensor, peer in receives
            if tensor.numel()
        ]
        under_way = transfer(peers, sends, receives)
        batch = trace.post(operations) if operations else 0
        under_way.batch = batch  # type: ignore[attr-defined]
        return under_way

    def waiting(under_way: Transfer) -> None:
        if under_way.batch:  # type: ignore[attr-defined]
            trace.wait(under_way.batch)  # type: ignore[attr-defined]
        waited(under_way)

    def started(method: Callable[..., Callable[[], Any]]) -> Any:
        def start(self: Any, unit: Unit | Tensor, **options: Any) -> Callable[[], Any]:
            finish = method(self, unit, **options)
            elements = unit.padded if isinstance(unit, Unit) else unit.numel()
            if not elements:
                return finish
            batch = trace.collective(self._group, elements)

            def finished() -> Any:
                trace.wait(batch)
                return finish()

            return finished

        return start

    def at_once(method: Callable[..., Any]) -> Any:
        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            elements = arguments[0].numel() if hasattr(arguments[0], "numel") else 1
            if elements:
                trace.wait(trace.collective(self._group, elements))
            return method(self, *arguments, **options)

        return call

    with ExitStack() as patches:
        patches.enter_context(patch.object(Peers, "transfer", posting))
        patches.enter_context(patch.object(Transfer, "wait", waiting))
        for owner, name, recording in (
            (CollectiveSync, "all_gather", started),
            (CollectiveSync, "reduce_scatter", started),
            (CollectiveTensorGroup, "all_gather", started),
            (CollectiveTensorGroup, "reduce_scatter", started),
            (CollectiveTensorGroup, "all_reduce", at_once),
            (UnitStates, "gradient_norm_and_sum", at_once),
        ):
            patches.enter_context(patch.object(owner, name, recording(getattr(owner, name))))
        yield


def replay(traces: Sequence[Trace], *, one_queue: bool) -> str | None:
    """Return the places of deadlocked ranks, or None if all come to the end.

    ``AssertionError`` where a transfer's two sides differ in size, or a batch meets more than one
    batch of a peer.
    """
    programs = [_numbered(trace) for trace in traces]
    meets: dict[tuple[Any, ...], dict[int, tuple[int, int]]] = defaultdict(dict)
    for rank, program in enumerate(programs):
        for event in program:
            if event[0] == "post":
                for key, elements in event[2]:
                    meets[key][rank] = event[1], elements
    for key, sides in meets.items():
        assert len({elements for _, elements in sides.values()}) == 1, (key, sides)
        assert len(sides) == len(_members(key)), (key, sides)
    for rank, program in enumerate(programs):
        for event in program:
            partners = defaultdict(set)
            for key, _ in event[2] if event[0] == "post" else ():
                for other, (batch, _) in meets[key].items():
                    partners[other].add(batch)
            assert all(len(batches) == 1 for batches in partners.values()), (rank, event)

    places = [0] * len(traces)
    queues: list[dict[str, deque[tuple[int, list[Any]]]]] = [defaultdict(deque) for _ in traces]
    ended: list[set[int]] = [set() for _ in traces]
    running: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            while places[rank] < len(program):
                event = program[places[rank]]
                if event[0] == "wait" and event[1] not in ended[rank]:
                    break
                if event[0] == "post":
                    name = "all" if one_queue else event[2][0][0][0]
                    queues[rank][name].append((event[1], [key for key, _ in event[2]]))
                places[rank] += 1
                moved = True
            for queue in queues[rank].values():
                while queue:
                    batch, keys = queue[0]
                    for key in keys:
                        running[key].add(rank)
                    if any(len(running[key]) < len(_members(key)) for key in keys):
                        break
                    ended[rank].add(batch)
                    queue.popleft()
                    moved = True
    stuck = [rank for rank in range(len(traces)) if places[rank] < len(programs[rank])]
    if not stuck:
        return None
    return "; ".join(f"rank {rank} at {programs[rank][places[rank]]}" for rank in stuck[:3])


def _members(key: tuple[Any, ...]) -> tuple[int, ...]:
    ranks: tuple[int, ...] = key[1]
    return ranks[1:] if ranks[0] == -1 else ranks


def _numbered(trace: Trace) -> list[tuple[Any, ...]]:
    """Give each operation its number among those of the same ranks on the same communicator."""
    counts: dict[tuple[Any, ...], int] = defaultdict(int)
    program: list[tuple[Any, ...]] = []
    for event in trace.events:
        if event[0] == "wait":
            program.append(event)
            continue
        operations = []
        for name, ranks, elements in event[2]:
            operations.append(((name, ranks, counts[name, ranks]), elements))
            counts[name, ranks] += 1
        program.append(("post", event[1], operations))
    return program
