"""Norm, rotation and SwiGLU against torch's operations, with their gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seqplan.runtime.models.fused import rms_norm, rotate_heads, swiglu

EPS = 1e-5


def rotate_plainly(heads: Tensor, angles: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    turned = torch.view_as_complex(torch.stack((first, second), dim=-1)) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.cat((turned.real, turned.imag), dim=-1)


ANGLES = torch.rand(7, 1, 4, dtype=torch.float64)
PAIRS: dict[str, tuple[tuple[tuple[int, ...], ...], Callable[..., Any], Callable[..., Any]]] = {
    "norm": (
        ((7, 8), (8,)),
        lambda hidden, weight: rms_norm(hidden, weight, EPS),
        lambda hidden, weight: nn.functional.rms_norm(hidden, (8,), weight, EPS),
    ),
    "rotation": (
        ((7, 5, 8),),
        lambda heads: torch.cat(rotate_heads(heads, 3, 1, (ANGLES.cos(), ANGLES.sin())), 1),
        lambda heads: torch.cat((rotate_plainly(heads[:, :4], ANGLES), heads[:, 4:]), 1),
    ),
    "swiglu": (
        ((7, 8),),
        swiglu,
        lambda gate_up: nn.functional.silu(gate_up[:, :4]) * gate_up[:, 4:],
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_results_and_gradients_are_those_of_torch(name: str) -> None:
    shapes, ours, plain = PAIRS[name]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    result, expected = ours(*inputs), plain(*inputs)
    torch.testing.assert_close(result, expected, rtol=1e-14, atol=1e-14)
    upstream = torch.randn_like(result)
    found = torch.autograd.grad(result, inputs, upstream)
    wanted = torch.autograd.grad(expected, inputs, upstream)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)
    assert torch.autograd.gradcheck(ours, inputs)


@pytest.mark.parametrize("name", ["norm", "swiglu"])
def test_half_precision_errs_as_torch_does(name: str) -> None:
    shapes, ours, plain = PAIRS[name]
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    halves = [tensor.detach().bfloat16().requires_grad_() for tensor in inputs]
    exact = plain(*(tensor.detach().double() for tensor in halves))
    errors = [float((f(*halves).double() - exact).detach().abs().max()) for f in (ours, plain)]
    assert errors[0] <= 2 * errors[1] + 1e-3
    for tensor in torch.autograd.grad(ours(*halves).float().sum(), halves):
        assert tensor.dtype == torch.bfloat16
