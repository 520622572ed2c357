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


def rotate_heads(
    heads: Tensor, queries: int, keys: int, rotation: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Divide (tokens, heads, width) into queries, keys and values, the first two rotated.

    ``queries``, ``keys``: numbers of heads, as many values as keys. ``rotation``: cosine and sine,
    (tokens, 1, width / 2), by which the first half of a head is rotated against the second. The
    results are views of one tensor and share nothing with ``heads``.
    """
    q, k, v = _Rotation.apply(heads, queries, keys, *rotation)  # type: ignore[no-untyped-call]
    return q, k, v


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
    def forward(
        ctx: Any, heads: Tensor, queries: int, keys: int, cosine: Tensor, sine: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cosine, sine)
        ctx.rotated = queries + keys
        rotated, values = heads.split_with_sizes([queries + keys, keys], dim=1)
        turned = _turn(rotated, values, cosine, sine)
        return turned.split_with_sizes([queries, keys, keys], dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        cosine, sine = ctx.saved_tensors
        of_rotated = torch.cat(gradients[:2], dim=1)
        return _turn(of_rotated, gradients[2], cosine, sine, back=True), None, None, None, None


def _turn(
    heads: Tensor, others: Tensor, cosine: Tensor, sine: Tensor, *, back: bool = False
) -> Tensor:
    """Rotate ``heads`` by the angle, or back, and put ``others`` after them.

    By three kernels that write to one tensor, and a copy.
    """
    first, second = heads.chunk(2, dim=-1)
    sign = 1.0 if back else -1.0
    if torch.compiler.is_compiling():  # which fuses, and does not trace writes to views
        one = torch.addcmul(first * cosine, second, sine, value=sign)
        other = torch.addcmul(second * cosine, first, sine, value=-sign)
        return torch.cat((torch.cat((one, other), dim=-1), others), dim=1)
    tokens, number, width = heads.shape
    turned = heads.new_empty(tokens, number + others.shape[1], width)
    turned[:, number:] = others
    shape = tokens, number, 2, width // 2
    halves = turned[:, :number].view(shape)
    torch.mul(heads.view(shape), cosine.unsqueeze(-2), out=halves)
    one, other = halves.unbind(-2)
    one.addcmul_(second, sine, value=sign)
    other.addcmul_(first, sine, value=-sign)
    return turned


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
        if torch.compiler.is_compiling():
            of_gate = torch.ops.aten.silu_backward(gradient * up, gate)
            return torch.cat((of_gate, gradient * nn.functional.silu(gate)), dim=-1)
        of_both = torch.empty_like(gate_up)
        of_gate, of_up = of_both.chunk(2, dim=-1)
        torch.ops.aten.silu_backward.grad_input(gradient * up, gate, grad_input=of_gate)
        torch.mul(gradient, nn.functional.silu(gate), out=of_up)
        return of_both
