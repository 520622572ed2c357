"""Attention kernels on request: those of torch, and those of packages by stand-ins without values.

A stand-in has the package's interface. Torch's code activates FlashAttention-3 and 4.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from cases import Result, run
from fake_device import FusedNorm
from torch import Tensor

from seqplan.runtime.sequence_parallel.kernels import flash, flex, magi, requirements


@contextmanager
def stand_ins(modules: dict[str, ModuleType]) -> Iterator[None]:
    """Let modules be installed."""
    plain = requirements.has_module
    sys.modules.update(modules)
    requirements.has_module = lambda name: True
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
        requirements.has_module = plain


def flash_attention_3() -> dict[str, ModuleType]:
    """The package that torch imports, whose operators are not called."""
    library = torch.library.Library("flash_attn_3", "FRAGMENT")
    for name in ("fwd", "bwd"):
        if not hasattr(torch.ops.flash_attn_3, name):
            library.define(f"{name}(Tensor q) -> Tensor")
    module = ModuleType("flash_attn_interface")
    module.library = library  # type: ignore[attr-defined]
    return {module.__name__: module}


def flash_attention_4() -> dict[str, ModuleType]:
    """The package that torch imports, whose functions are not called."""
    names = ("flash_attn", "flash_attn.cute", "flash_attn.cute.interface")
    modules = {name: ModuleType(name) for name in names}
    modules[names[-1]].__dict__.update(_flash_attn_fwd=None, _flash_attn_bwd=None)
    return modules


class CompiledFlex(torch.autograd.Function):
    """Shapes of FlexAttention's results: one kernel forward, three backward."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(q, k, v)
        FusedNorm.recording.launches["flex_attention"] += 1
        out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)
        return out, q.new_empty(q.shape[:3], dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        FusedNorm.recording.launches["flex_attention_backward"] += 3
        return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors)


def attend_flexibly(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Any]:
    """FlexAttention as it is called: its mask has the sizes of the call."""
    mask = options["block_mask"]
    assert mask.seq_lengths == (q.shape[2], k.shape[2])
    assert mask.kv_indices.device == q.device
    out, lse = CompiledFlex.apply(q, k, v)  # type: ignore[no-untyped-call]
    return out, SimpleNamespace(lse=lse)


def magi_attention() -> dict[str, ModuleType]:
    """MagiAttention 1.1: the functions that are called, with their arguments."""

    def check(q: Tensor, q_ranges: Tensor, k_ranges: Tensor, kinds: Tensor) -> None:
        assert q.shape[0] >= 0
        assert q_ranges.shape == k_ranges.shape == (len(kinds), 2)
        assert {q_ranges.dtype, k_ranges.dtype, kinds.dtype} == {torch.int32}

    def flex_flash_attn_func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q_ranges: Tensor,
        k_ranges: Tensor,
        attn_type_map: Tensor,
        *,
        softmax_scale: float | None = None,
        softcap: float = 0.0,
        deterministic: bool = False,
        disable_fwd_atomic_reduction: bool = False,
        return_max_logits: bool = False,
    ) -> tuple[Tensor, Any]:
        check(q, q_ranges, k_ranges, attn_type_map)
        FusedNorm.recording.launches["flex_flash_attention"] += 1
        lse = q.new_empty(q.shape[:2], dtype=torch.float32)
        return torch.empty_like(q), SimpleNamespace(lse=lse, max_logits=None)

    def _flex_flash_attn_backward(
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sink: Tensor | None,
        sink_layout: str,
        out: Tensor,
        lse: Tensor,
        dq: Tensor | None,
        dk: Tensor | None,
        dv: Tensor | None,
        dsink: Tensor | None,
        q_ranges: Tensor,
        k_ranges: Tensor,
        attn_type_map: Tensor,
        softmax_scale: float,
        softcap: float,
        dq_type: torch.dtype,
        dk_type: torch.dtype,
        dv_type: torch.dtype,
        disable_bwd_dkv_atomic_reduction: bool,
        deterministic: bool,
        sm_margin: int,
        auto_range_merge: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        check(q, q_ranges, k_ranges, attn_type_map)
        assert lse.shape == q.shape[:2]
        assert lse.is_contiguous()
        FusedNorm.recording.launches["flex_flash_attention_backward"] += 3
        of_q, of_k, of_v = (torch.zeros_like(t, dtype=torch.float32) for t in (q, k, v))
        return of_q, of_k, of_v, None

    modules = {}
    for name in ("magi_attention", "magi_attention.functional", magi.MODULE):
        modules[name] = ModuleType(name)
    modules[magi.MODULE].__dict__.update(
        flex_flash_attn_func=flex_flash_attn_func,
        _flex_flash_attn_backward=_flex_flash_attn_backward,
    )
    return modules


def run_kernel(name: str, scheme: str = "u2.r2") -> Result:
    """Steps of a staged model whose attention runs on one kernel."""
    packages = {"fa3": flash_attention_3, "fa4": flash_attention_4, "magi": magi_attention}
    modules = packages.get(name, dict)()
    plain = flex.compile_attention
    flex.compile_attention = lambda: attend_flexibly
    try:
        with stand_ins(modules):
            result = run(scheme, world=4, staged=True, layers=2, kernel=name)
            result["implementation"] = flash.active_implementation()
        return result
    finally:
        flex.compile_attention = plain
        if flash.active_implementation() is not None:
            torch.nn.attention.restore_flash_attention_impl()


KERNEL_CASES: dict[str, Callable[[], Result]] = {
    f"staged by {name}": partial(run_kernel, name)
    for name in ("fa3", "fa4", "cudnn", "flex", "magi")
}
