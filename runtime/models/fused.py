"""Norm, rotation and SwiGLU that keep for backward no more than fused kernels keep.

Each keeps its input, or less, in place of the intermediate results of every operation in it. They
are differentiable once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalize rows by their root mean square, and scale them by ``weight``.

    By torch's kernel on an accelerator, which keeps as much.
    """
    if hidden.device.type != "cpu":
        return nn.functional.rms_norm(hidden, weight.shape, weight, eps)
    result: Tensor = _RmsNorm.apply(hidden, weight, eps)  # type: ignore[no-untyped-call]
    return result


def rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate (tokens, heads, head_dim), the first half of each head against the second."""
    result: Tensor = _Rotation.apply(heads, *rotation)  # type: ignore[no-untyped-call]
    return result


def swiglu(gate_up: Tensor) -> Tensor:
    """Compute silu(gate) · up of (tokens, 2 · features), the gate first → (tokens, features)."""
    result: Tensor = _SwiGlu.apply(gate_up)  # type: ignore[no-untyped-call]
    return result


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        exact = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        scale = torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(hidden, weight, scale)
        return (exact * scale * weight).to(hidden.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden, weight, scale = ctx.saved_tensors
        gradient = gradients[0].to(scale.dtype)
        normed = hidden.to(scale.dtype) * scale
        of_normed = gradient * weight
        shared = (of_normed * normed).mean(-1, keepdim=True)
        of_hidden = scale * (of_normed - normed * shared)
        of_weight = (gradient * normed).reshape(-1, weight.shape[-1]).sum(0)
        return of_hidden.to(hidden.dtype), of_weight.to(weight.dtype), None


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return _turn(heads, cosine, sine)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        return _turn(gradients[0], cosine, -sine), None, None


def _turn(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return nn.functional.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        (gradient,) = gradients
        of_gate = torch.ops.aten.silu_backward(gradient * up, gate)
        return torch.cat((of_gate, gradient * nn.functional.silu(gate)), dim=-1)
