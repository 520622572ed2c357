"""Errors that a rehearsal has to find, planted one at a time into what a case runs."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from seqplan.profiler.measure import sync
from seqplan.profiler.verify.results import Figure
from seqplan.runtime.checkpoint import stored_slices
from seqplan.runtime.device_copy import PackedCopy, copy_to_device
from seqplan.runtime.experts.blocks import ExpertBlocks
from seqplan.runtime.models import llama
from seqplan.runtime.sequence_parallel.kernels import flash
from seqplan.runtime.sequence_parallel.peers import Peers, Transfer
from seqplan.runtime.sources import iterate_steps
from seqplan.runtime.states.sync import Rail
from seqplan.runtime.states.unit import Unit
from seqplan.runtime.tensor_parallel import groups
from seqplan.runtime.tensor_parallel.process_groups import NewGroups

KEPT: list[Tensor] = []


def wait_in_a_kernel() -> None:
    """Read a number from the device in every attention call."""
    plain = flash.take_rows

    def read(tensor: Tensor, rows: Any) -> Tensor:
        tensor.float().sum().item()
        return plain(tensor, rows)

    flash.take_rows = read


def copy_from_pageable_memory() -> None:
    """Copy tokens and labels as they are."""

    def add(self: PackedCopy, values: Any) -> Tensor:
        tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
        return tensor.to(self._device)

    PackedCopy.add = add  # type: ignore[method-assign]


def copy_each_array() -> None:
    """Copy tokens and labels from pinned memory, array by array."""
    PackedCopy.add = lambda self, values: copy_to_device(values, self._device)  # type: ignore[method-assign]


def compute_before_the_copy() -> None:
    """Let no stream wait for a step's copy."""
    PackedCopy.wait = lambda self: None  # type: ignore[method-assign]


def relay_through_a_buffer_in_use() -> None:
    """Let a unit not wait for the one before in its buffer."""
    relay = Rail.relay

    def relay_at_once(self: Rail, *args: Any) -> Any:
        self._buffers = [(buffer, None) for buffer, _ in self._buffers]
        return relay(self, *args)

    Rail.relay = relay_at_once  # type: ignore[method-assign]


def wait_in_preparation() -> None:
    """Wait for the device after a step's copy."""
    start = PackedCopy.start

    def start_and_wait(self: PackedCopy) -> None:
        start(self)
        torch.cuda.synchronize()

    PackedCopy.start = start_and_wait  # type: ignore[method-assign]


def send_from_the_host() -> None:
    """Send tensors that are on the CPU."""
    plain = Peers.transfer

    def transfer(self: Peers, sends: Any, receives: Any) -> Any:
        return plain(self, [(tensor.cpu(), rank) for tensor, rank in sends], receives)

    Peers.transfer = transfer  # type: ignore[method-assign]


def send_transposed() -> None:
    """Send views that are not contiguous."""
    plain = Peers.transfer

    def transfer(self: Peers, sends: Any, receives: Any) -> Any:
        return plain(self, [(tensor.transpose(0, 1), rank) for tensor, rank in sends], receives)

    Peers.transfer = transfer  # type: ignore[method-assign]


def keep_a_tensor() -> None:
    """Keep the output of every layer."""
    plain = llama.swiglu

    def keep(gate_up: Tensor) -> Tensor:
        out = plain(gate_up)
        KEPT.append(out.detach())
        return out

    llama.swiglu = keep


def keep_more_for_backward() -> None:
    """Let autograd keep a copy of every feed-forward's result."""
    plain = llama.swiglu

    def keep(gate_up: Tensor) -> Tensor:
        out = plain(gate_up)
        return out * out.detach().clone()

    llama.swiglu = keep


def keep_summed_gradients() -> None:
    """Let owners keep summed gradients from step to step."""
    Unit.forget_reduced = lambda self: None  # type: ignore[method-assign]


def launch_more() -> None:
    """Launch ten more kernels in every layer."""
    plain = llama.swiglu

    def launch(gate_up: Tensor) -> Tensor:
        for _ in range(10):
            gate_up = gate_up * 1.0
        return plain(gate_up)

    llama.swiglu = launch


def receive_less_on_one_rank() -> None:
    """Let rank 1 receive half of what it is sent."""
    transfer = Peers.transfer

    def half(self: Peers, sends: Any, receives: Any) -> Any:
        if dist.get_rank() == 1:
            receives = [(tensor[: len(tensor) // 2], rank) for tensor, rank in receives]
        return transfer(self, sends, receives)

    Peers.transfer = half  # type: ignore[method-assign]


def make_groups_one_by_one() -> None:
    """Make each tp group by a separate call."""
    groups.group_maker_for = lambda parent, timeout_s: NewGroups(timedelta(seconds=timeout_s))


def send_alone() -> None:
    """Send and receive outside batches."""

    def transfer(self: Peers, sends: Any, receives: Any) -> Transfer:
        for tensor, rank in sends:
            dist.send(tensor, rank, group=self.group)
        for tensor, rank in receives:
            dist.recv(tensor, rank, group=self.group)
        return Transfer([], [], "sending alone")

    Peers.transfer = transfer  # type: ignore[method-assign]


def count_steps_on_the_host() -> None:
    """Restore an optimizer's counts of steps to the host, whatever it needs."""
    stored_slices._count_device = lambda part, optimizer: torch.device("cpu")


def state_no_value() -> None:
    """Leave the value out of a verification's figures."""
    plain = Figure.document

    def document(self: Figure) -> dict[str, Any]:
        return {key: value for key, value in plain(self).items() if key != "value"}

    Figure.document = document  # type: ignore[method-assign]


def lose_a_sequence() -> None:
    """Gather the values of all sequences but the first."""
    plain = dist.all_gather_object

    def gather(objects: list[Any], one: Any, group: Any = None) -> None:
        plain(objects, one[1:] if isinstance(one, list) else one, group=group)

    dist.all_gather_object = gather


def measure_less() -> None:
    """Time the sync once less."""
    sync.REPEATS -= 1


def stop_early() -> None:
    """End the plans before the first step."""
    iterate_steps.Steps.__next__ = lambda self: next(iter(()))  # type: ignore[method-assign]


def keep_counts_on_one_rank() -> None:
    """Let one rank of a block send no counts of its tokens."""
    exchange = ExpertBlocks.exchange

    def exchange_rows(self: ExpertBlocks, rows: Tensor, sent: Any, received: Any) -> Tensor:
        if self.index == 1 and rows.dtype == torch.int64:
            return rows
        return exchange(self, rows, sent, received)

    ExpertBlocks.exchange = exchange_rows  # type: ignore[method-assign]


MUTATIONS: dict[str, Callable[[], None]] = {
    "wait": wait_in_a_kernel,
    "pageable": copy_from_pageable_memory,
    "copies": copy_each_array,
    "stream": compute_before_the_copy,
    "relays": relay_through_a_buffer_in_use,
    "preparation": wait_in_preparation,
    "host": send_from_the_host,
    "transposed": send_transposed,
    "leak": keep_a_tensor,
    "launches": launch_more,
    "activations": keep_more_for_backward,
    "states": keep_summed_gradients,
    "groups": make_groups_one_by_one,
    "alone": send_alone,
    "counts": count_steps_on_the_host,
    "figures": state_no_value,
    "values": lose_a_sequence,
    "sync": measure_less,
    "example": stop_early,
    "sizes": receive_less_on_one_rank,
    "tokens": keep_counts_on_one_rank,
}
