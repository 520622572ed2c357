"""``torch.distributed`` of one rank without peers: a log of communication, with NCCL's rules.

Logs of all ranks of a step are compared by ``matching``.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from fake_device import is_fake
from fake_streams import FakeEvent, FakeStream
from recording import Recording, find_line
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore


class FakeGroup:
    """A process group: its members, and this process's place among them."""

    def __init__(self, name: str, members: tuple[int, ...], backend: str, rank: int) -> None:
        self.name, self.members, self.backend = name, members, backend
        self.bound_device_id: torch.device | None = None
        self._rank = members.index(rank) if rank in members else -1
        self.stream = FakeStream()

    def size(self) -> int:
        return len(self.members)

    def rank(self) -> int:
        return self._rank


class FakeWork:
    """A communication, whose end a stream waits for."""

    def __init__(self, end: FakeEvent) -> None:
        self._end = end

    def wait(self, timeout: Any = None) -> bool:
        FakeStream.current().wait_event(self._end)
        return True

    def is_completed(self) -> bool:
        return True


class FakeP2POp:
    """A transfer of a batch."""

    def __init__(self, op: str, tensor: Tensor, peer: int, group: Any = None) -> None:
        self.op, self.tensor, self.peer, self.group = op, tensor, peer, group


class FakeDistributed:
    """The functions of ``torch.distributed`` that the runtime calls, for one of ``world`` ranks."""

    def __init__(self, recording: Recording, rank: int, world: int) -> None:
        self._recording, self._rank, self._world = recording, rank, world
        self._groups = 0
        self.made = 0
        """Calls that made process groups."""
        self.initialized = True
        self.world = self._make(tuple(range(world)), "nccl")
        self.world.bound_device_id = torch.device("cuda", 0)

    def _make(self, members: tuple[int, ...], backend: str) -> FakeGroup:
        self._groups += 1
        return FakeGroup(f"group {self._groups}", members, backend, self._rank)

    def _of(self, group: Any) -> FakeGroup:
        return group if isinstance(group, FakeGroup) else self.world

    def init_process_group(self, backend: str = "nccl", *, device_id: Any = None, **_: Any) -> None:
        self.initialized = True
        if device_id is None:
            self._recording.fault("NCCL without device_id")

    def new_group(
        self, ranks: Sequence[int] | None = None, *_: Any, backend: str | None = None, **__: Any
    ) -> FakeGroup:
        members = tuple(range(self._world)) if ranks is None else tuple(ranks)
        self.made += 1
        return self._make(members, backend or "nccl")

    def split_group(
        self, parent_pg: FakeGroup, split_ranks: Sequence[Sequence[int]], **_: Any
    ) -> FakeGroup | None:
        """Split as NCCL does: parts that share no rank, each in ascending order."""
        every = [rank for part in split_ranks for rank in part]
        if len(every) != len(set(every)):
            self._recording.fault("a split whose parts share a rank")
        if parent_pg.backend != "nccl":
            self._recording.fault("a split of a group that is not NCCL's")
        self.made += 1
        mine = [part for part in split_ranks if self._rank in part]
        self._log("split_group", parent_pg, ())
        return self._make(tuple(sorted(mine[0])), "nccl") if mine else None

    def get_backend(self, group: Any = None) -> str:
        return self._of(group).backend

    def get_rank(self, group: Any = None) -> int:
        return self._of(group).rank()

    def get_world_size(self, group: Any = None) -> int:
        return self._of(group).size()

    def get_global_rank(self, group: Any, rank: int) -> int:
        return self._of(group).members[rank]

    def get_process_group_ranks(self, group: Any) -> list[int]:
        return list(self._of(group).members)

    def is_initialized(self) -> bool:
        return self.initialized

    def destroy_process_group(self, group: Any = None) -> None:
        self.initialized = False

    def barrier(self, group: Any = None, **_: Any) -> None:
        self._log("barrier", group, ())

    def all_gather_object(self, objects: list[Any], one: Any, group: Any = None) -> None:
        self._log("all_gather_object", group, ())
        objects[:] = [one] * len(objects)

    def broadcast_object_list(
        self, objects: list[Any], src: int = 0, group: Any = None, **_: Any
    ) -> None:
        self._log("broadcast_object_list", group, ())

    def collective(self, kind: str, tensors: Callable[..., Sequence[Tensor]]) -> Callable[..., Any]:
        """A collective whose tensors ``tensors`` picks from its arguments."""

        def call(*args: Any, group: Any = None, async_op: bool = False, **named: Any) -> Any:
            picked = tensors(*args, **named)
            self._log(kind, group, picked)
            if kind.startswith("all_gather"):
                _gather_own(picked)
            *outs, one = picked
            work = self._run(group, [one], outs or [one])
            return work if async_op else work.wait() and None

        return call

    def send(self, tensor: Tensor, dst: int, group: Any = None, **_: Any) -> FakeWork:
        return self._transfer_alone("send", tensor, dst, group)

    def recv(self, tensor: Tensor, src: int, group: Any = None, **_: Any) -> FakeWork:
        return self._transfer_alone("recv", tensor, src, group)

    def _transfer_alone(self, kind: str, tensor: Tensor, peer: int, group: Any) -> FakeWork:
        if self._of(group).backend == "nccl":
            self._recording.fault("a transfer outside a batch makes a communicator for its pair")
        return self._transfer([(kind, tensor, peer)], group)

    def batch_isend_irecv(self, operations: Sequence[FakeP2POp]) -> list[FakeWork]:
        transfers = [(one.op, one.tensor, one.peer) for one in operations]
        return [self._transfer(transfers, operations[0].group)]

    def all_to_all_single(
        self,
        out: Tensor,
        source: Tensor,
        out_sizes: Sequence[int],
        source_sizes: Sequence[int],
        group: Any = None,
    ) -> None:
        """What torch makes of it on NCCL: transfers of the sizes that are not 0."""
        if [sum(out_sizes), sum(source_sizes)] != [out.numel(), source.numel()]:
            self._recording.fault("sizes of an all-to-all do not add up to its tensors")
        self._check([out, source], group)
        for sizes in (out_sizes, source_sizes):
            if len(sizes) != self._of(group).size():
                self._recording.fault("an all-to-all lacks sizes of ranks")
        events = [
            (kind, size * out.element_size(), peer)
            for kind, sizes in (("send", source_sizes), ("recv", out_sizes))
            for peer, size in enumerate(sizes)
            if size and peer != self._rank
        ]
        self._recording.events.append(("p2p", self._of(group), tuple(events), find_line()))
        self._recording.launches["nccl"] += 1
        self._run(group, [source], [out]).wait()

    def _transfer(self, transfers: Sequence[tuple[str, Tensor, int]], group: Any) -> FakeWork:
        self._check([tensor for _, tensor, _ in transfers], group)
        sizes = tuple((kind, tensor.nbytes, peer) for kind, tensor, peer in transfers)
        self._recording.events.append(("p2p", self._of(group), sizes, find_line()))
        self._recording.launches["nccl"] += 1
        sent, received = (
            [tensor for kind, tensor, _ in transfers if kind == of] for of in ("send", "recv")
        )
        return self._run(group, sent, received)

    def _run(self, group: Any, read: Sequence[Tensor], written: Sequence[Tensor]) -> FakeWork:
        """Run a communication on its group's stream, after the current one."""
        stream = self._of(group).stream
        stream.wait_stream(FakeStream.current())
        with stream:
            self._recording.use(filter(is_fake, read), filter(is_fake, written))
        return FakeWork(stream.record_event())

    def _log(self, kind: str, group: Any, tensors: Sequence[Tensor]) -> None:
        self._check(tensors, group)
        shapes = tuple((tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors)
        self._recording.events.append((kind, self._of(group), shapes, find_line()))
        if tensors and self._of(group).backend == "nccl":
            self._recording.launches["nccl"] += 1

    def _check(self, tensors: Sequence[Tensor], group: Any) -> None:
        wanted = "cuda" if self._of(group).backend == "nccl" else "cpu"
        for tensor in tensors:
            if tensor.device.type != wanted:
                self._recording.fault(f"tensor on {tensor.device.type}, group takes {wanted}")
            if not tensor.is_contiguous():
                self._recording.fault("tensor is not contiguous")


def _gather_own(tensors: Sequence[Tensor]) -> None:
    """Give every member's part the values of this rank, as far as they are known."""
    *outs, one = tensors
    known = one.__dict__.get("known") if one.device.type == "cuda" else one
    for out in outs:
        if known is None or (out.device.type == "cuda" and known.numel() > 64):
            continue
        whole = known.flatten().repeat(out.numel() // max(known.numel(), 1)).view(out.shape)
        if out.device.type == "cuda":
            out.__dict__["known"] = whole
        else:
            out.copy_(whole)


FUNCTIONS = (
    *("init_process_group", "new_group", "split_group", "get_backend", "get_rank"),
    *("get_world_size", "get_global_rank", "get_process_group_ranks", "destroy_process_group"),
    *("barrier", "all_gather_object", "broadcast_object_list", "send", "recv"),
    *("is_initialized", "batch_isend_irecv", "all_to_all_single"),
)

COLLECTIVES: dict[str, tuple[str, Callable[..., Sequence[Tensor]]]] = {
    "all_reduce": ("all_reduce", lambda tensor, *_, **__: [tensor]),
    "broadcast": ("broadcast", lambda tensor, *_, **__: [tensor]),
    "reduce": ("reduce", lambda tensor, *_, **__: [tensor]),
    "all_gather": ("all_gather", lambda outs, tensor, *_, **__: [*outs, tensor]),
    "all_gather_into_tensor": ("all_gather_single", lambda out, tensor, *_, **__: [out, tensor]),
    "all_gather_single": ("all_gather_single", lambda out, tensor, *_, **__: [out, tensor]),
    "reduce_scatter_tensor": ("reduce_scatter", lambda out, tensor, *_, **__: [out, tensor]),
    "reduce_scatter_single": ("reduce_scatter", lambda out, tensor, *_, **__: [out, tensor]),
}

_current: list[FakeDistributed] = []


class CurrentWorld:
    """Stands for ``torch.distributed.group``."""

    @property
    def WORLD(self) -> FakeGroup | None:
        """The group of all ranks; None outside a rehearsal."""
        return _current[-1].world if _current else None


def install() -> None:
    """Replace the functions of ``torch.distributed``, before a module keeps one of them."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)

    def delegate(name: str) -> Callable[..., Any]:
        return lambda *args, **named: getattr(_current[-1], name)(*args, **named)

    def collect(kind: str, pick: Callable[..., Sequence[Tensor]]) -> Callable[..., Any]:
        return lambda *args, **named: _current[-1].collective(kind, pick)(*args, **named)

    for name in FUNCTIONS:
        setattr(dist, name, delegate(name))
    for name, (kind, pick) in COLLECTIVES.items():
        setattr(dist, name, collect(kind, pick))
    replaced: dict[str, Any] = {
        "P2POp": FakeP2POp,
        "isend": "send",
        "irecv": "recv",
        "group": CurrentWorld(),
    }
    for name, value in replaced.items():
        setattr(dist, name, value)


@contextmanager
def fake_distributed(recording: Recording, rank: int, world: int) -> Iterator[FakeDistributed]:
    """Be one rank of ``world``, on NCCL."""
    _current.append(FakeDistributed(recording, rank, world))
    try:
        yield _current[-1]
    finally:
        _current.pop()
