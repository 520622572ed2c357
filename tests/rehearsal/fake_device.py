"""A CUDA device for a CPU build of torch: tensors on it have no values, all on the CPU is real.

A dispatch mode sends operations with CUDA tensors to ``FakeTensorMode``, so that plans, layouts and
indices are computed as ever, and records launches, waits of the host, copies and bytes.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from fake_streams import FakeEvent, FakeStream
from recording import Recording
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NO_KERNEL = frozenset(
    (
        *("detach", "view", "t", "transpose", "slice", "split", "split_with_sizes", "expand"),
        *("as_strided", "alias", "unsqueeze", "squeeze", "select", "_unsafe_view", "view_as"),
        *("_reshape_alias", "lift_fresh", "permute", "empty", "empty_like", "empty_strided"),
        *("new_empty", "new_empty_strided", "set_", "unbind", "is_same_size", "device", "resize_"),
        *("diagonal", "narrow", "unfold", "record_stream", "chunk"),
    )
)
"""Operations of metadata and allocation."""

KERNELS = {
    "_flash_attention_backward": 3,
    "embedding_dense_backward": 6,
    "index_put_": 2,
    "sort": 3,
}
"""Operations of several kernels, about; all others are one."""

WAITING = ("nonzero", "equal", "masked_select", "_unique2", "unique_dim")

MEMORY = 80 * 2**30
NAME, CAPABILITY = "NVIDIA H100 80GB HBM3", (9, 0)


class ThreadedFakeMode(FakeTensorMode):
    """Fake tensors of several threads: whether one runs a kernel is that thread's alone."""

    _local = threading.local()

    @property
    def in_kernel_invocation(self) -> bool:  # type: ignore[override]
        """Whether devices read as meta."""
        return getattr(self._local, "in_kernel", False)

    @in_kernel_invocation.setter
    def in_kernel_invocation(self, value: bool) -> None:
        self._local.in_kernel = value


class FakeCuda(TorchDispatchMode):
    """Routes operations; see the module."""

    _lock = threading.RLock()

    def __init__(self, recording: Recording, memory: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording, self._memory = recording, memory
        self.fake = ThreadedFakeMode(allow_non_fake_inputs=True)
        self._storages: set[int] = set()

    def share(self) -> FakeCuda:
        """Return the same device for another thread, whose mode it is."""
        other = FakeCuda(self.recording, self._memory)
        other.fake, other._storages = self.fake, self._storages
        return other

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = dict(kwargs or {})
        device = named.get("device")
        to_device = device is not None and torch.device(device).type == "cuda"
        taken = [leaf for leaf in tree_leaves((args, named)) if is_fake(leaf)]
        if not to_device and not taken:
            return self._run_on_host(function, args, named)
        space, name = function._schema.name.split("::")
        if space == "c10d":
            return None
        if name == "_local_scalar_dense":
            self.recording.wait("item")
            return known_value(args[0]).item()
        if name in WAITING:
            self.recording.wait(name)
            if name == "equal":
                return True
            if name == "nonzero":
                with self._lock, self.fake:
                    return args[0].new_empty((0, args[0].dim()), dtype=torch.int64)
        if (copied := self._copy(name, args, named, to_device)) is not None:
            return copied
        with self._lock, self.fake:
            named.pop("pin_memory", None)
            out = function(*args, **named)
        if name not in NO_KERNEL and not function.is_view:
            self.recording.launches[name] += KERNELS.get(name, 1)
        self._account(out)
        if name not in NO_KERNEL and not function.is_view:
            self._use(taken, [*tree_leaves(out), *(args[:1] if name.endswith("_") else ())])
        return out

    def _run_on_host(self, function: Any, args: Any, named: dict[str, Any]) -> Any:
        pinned = named.pop("pin_memory", None)
        out = function(*args, **named)
        if pinned:
            out.__dict__["pinned"] = True
        return out

    def _use(self, read: Sequence[Tensor], written: Sequence[Any]) -> None:
        self.recording.use(read, filter(is_fake, written))

    def _copy(self, name: str, args: Any, named: dict[str, Any], to_device: bool) -> Any:
        """Copy between host and device; None for any other operation."""
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if first is None:
            return None
        if name == "_to_copy" and to_device and not is_fake(first):
            self._record_copy(first, named.get("non_blocking", False))
            with self._lock, self.fake:
                dtype = named.get("dtype") or first.dtype
                out = torch.empty_strided(
                    first.shape, first.stride(), dtype=dtype, device=named["device"]
                )
            remember_value(out, first)
            self._account(out)
            self._use([], [out])
            return out
        if name == "copy_" and is_fake(first) and not is_fake(args[1]):
            non_blocking = (len(args) > 2 and args[2]) or named.get("non_blocking")
            self._record_copy(args[1], non_blocking)
            remember_value(first, args[1])
            self._use([], [first])
            return first
        if name == "copy_" and not is_fake(first):
            waits = not ((len(args) > 2 and args[2]) or named.get("non_blocking"))
            if waits or not first.__dict__.get("pinned"):
                self.recording.wait("copy to the CPU")
            return first
        to_host = named.get("device") is not None and torch.device(named["device"]).type == "cpu"
        if to_host and name in ("_to_copy", "empty_like", "zeros_like"):
            if name == "_to_copy":
                self.recording.wait("copy to the CPU")
            host = torch.zeros(first.shape, dtype=named.get("dtype") or first.dtype)
            host.__dict__["pinned"] = bool(named.get("pin_memory"))
            return host
        return None

    def _record_copy(self, source: Tensor, non_blocking: Any) -> None:
        base = source if source._base is None else source._base
        pinned = bool(source.__dict__.get("pinned") or base.__dict__.get("pinned"))
        self.recording.copy(pinned=bool(pinned and non_blocking))

    def _account(self, out: Any) -> None:
        """Count the bytes of new storages until they are gone."""
        for leaf in tree_leaves(out):
            if not is_fake(leaf) or leaf.device.type != "cuda":
                continue
            storage = leaf.untyped_storage()
            key = storage._cdata
            if key not in self._storages:
                if self.recording.bytes_now + storage.nbytes() > self._memory:
                    raise torch.OutOfMemoryError("CUDA out of memory: the fake device is full")
                self._storages.add(key)
                blocks = self.recording.allocate(storage.nbytes())
                weakref.finalize(storage, self._forget, key, blocks)

    def _forget(self, key: int, blocks: int) -> None:
        if key in self._storages:
            self._storages.discard(key)
            self.recording.order.forget(key)
            self.recording.free(blocks)


def is_fake(value: Any) -> bool:
    """Whether a value is a tensor without values."""
    return isinstance(value, FakeTensor)


def remember_value(there: Tensor, source: Tensor) -> None:
    """Keep small values that the host copied, for it to read back."""
    if source.numel() <= 64:
        there.__dict__["known"] = source.clone()


def known_value(tensor: Tensor) -> Tensor:
    """The value that the host copied there; ones if it computed something."""
    known = tensor.__dict__.get("known")
    if known is not None:
        return known  # type: ignore[no-any-return]
    return torch.zeros(tensor.shape, dtype=tensor.dtype) + (tensor.dtype != torch.bool)


class FusedNorm(torch.autograd.Function):
    """``rms_norm`` as a build with CUDA has it: one kernel forward, two backward."""

    recording: Recording

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        scale = hidden.new_empty((*hidden.shape[:-1], 1), dtype=torch.float32)
        ctx.save_for_backward(hidden, weight, scale)
        FusedNorm.recording.launches["_fused_rms_norm"] += 1
        return torch.empty_like(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        hidden, weight, _ = ctx.saved_tensors
        FusedNorm.recording.launches["_fused_rms_norm_backward"] += 2
        return torch.empty_like(hidden), torch.empty_like(weight)


def move_module(
    module: nn.Module, convert: Callable[[Tensor], Tensor], _: bool = True
) -> nn.Module:
    """``Module._apply`` with new parameters: torch cannot swap fake ones in."""
    moved: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is None:
                continue
            if id(parameter) not in moved:
                new = nn.Parameter(convert(parameter.detach()), parameter.requires_grad)
                moved[id(parameter)] = new
            part._parameters[name] = moved[id(parameter)]
        for name, buffer in list(part._buffers.items()):
            if buffer is not None:
                part._buffers[name] = convert(buffer)
    return module


def _pin(tensor: Tensor, *_: Any) -> Tensor:
    copy = tensor.clone()
    copy.__dict__["pinned"] = True
    return copy


def _list_values(tensor: Tensor) -> Any:
    FusedNorm.recording.wait("tolist")
    return known_value(tensor).tolist()


@contextmanager
def fake_device(recording: Recording, ranks: int, memory: int) -> Iterator[FakeCuda]:
    """Let torch have ``ranks`` CUDA devices of ``memory`` bytes; this process uses the first."""
    # It binds functions of torch.distributed, which are replaced by now.
    from seqplan.runtime.losses.token_losses import LossDivisor

    FusedNorm.recording = recording
    FakeEvent.waited = recording.wait
    properties = SimpleNamespace(
        name=NAME,
        total_memory=memory,
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        multi_processor_count=132,
    )

    def reset_peak(*_: Any) -> None:
        recording.bytes_peak = recording.bytes_now

    plain_norm = nn.functional.rms_norm

    def rms_norm(hidden: Tensor, shape: Any, weight: Any = None, eps: Any = None) -> Tensor:
        if is_fake(hidden) and weight is not None:
            fused: Tensor = FusedNorm.apply(hidden, weight)  # type: ignore[no-untyped-call]
            return fused
        return plain_norm(hidden, shape, weight, eps)

    device = FakeCuda(recording, memory)
    run_thread = threading.Thread.run

    def run_with_device(thread: threading.Thread) -> None:
        with device.share():  # modes are per thread
            run_thread(thread)

    replaced: list[tuple[Any, str, Any]] = [
        *(
            (torch.cuda, name, value)
            for name, value in {
                "is_available": lambda: True,
                "device_count": lambda: ranks,
                "current_device": lambda: 0,
                "set_device": lambda *_: None,
                "get_device_capability": lambda *_: CAPABILITY,
                "get_device_name": lambda *_: NAME,
                "get_device_properties": lambda *_: properties,
                "current_stream": FakeStream.current,
                "default_stream": FakeStream.default,
                "Stream": FakeStream,
                "Event": FakeEvent,
                "stream": lambda stream: stream,
                "synchronize": lambda *_: recording.wait("cuda.synchronize"),
                "empty_cache": lambda: recording.wait("cuda.empty_cache"),
                "memory_allocated": lambda *_: recording.bytes_now,
                "memory_reserved": lambda *_: recording.bytes_now,
                "max_memory_allocated": lambda *_: recording.bytes_peak,
                "max_memory_reserved": lambda *_: recording.bytes_peak,
                "reset_peak_memory_stats": reset_peak,
                "mem_get_info": lambda *_: (memory - recording.bytes_now, memory),
                "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
                "set_rng_state": lambda *_: None,
                "is_current_stream_capturing": lambda: False,
                "set_sync_debug_mode": lambda *_: None,
                "manual_seed": lambda *_: None,
                "manual_seed_all": lambda *_: None,
                "is_bf16_supported": lambda *_: True,
                "init": lambda: None,
                "_lazy_init": lambda: None,
                "is_initialized": lambda: True,
            }.items()
        ),
        (threading.Thread, "run", run_with_device),
        (Tensor, "pin_memory", _pin),
        (Tensor, "record_stream", lambda *_: None),
        (nn.functional, "rms_norm", rms_norm),
        (nn.Module, "_apply", move_module),
        (FakeTensor, "tolist", _list_values),
        (LossDivisor, "check_labels", lambda *_: None),  # sums are ones
        (FakeTensor, "data_ptr", lambda t: t.untyped_storage()._cdata + t.storage_offset()),
    ]
    before = [(owner, name, vars(owner).get(name)) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    lift = torch._C._set_only_lift_cpu_tensors
    lift(True)
    try:
        with device:
            yield device
    finally:
        lift(False)
        for owner, name, value in reversed(before):
            if value is None:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
