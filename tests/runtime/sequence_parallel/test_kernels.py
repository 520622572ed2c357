"""Kernels by name: which one a call runs on, and why others do not; FlexAttention's arithmetic."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from seqplan import runtime
from seqplan.runtime.sequence_parallel.context import local_context
from seqplan.runtime.sequence_parallel.kernels import (
    Attended,
    BlockKernel,
    Kernel,
    Piece,
    Pieces,
    Scores,
    choose_kernel,
    explain_kernels,
    find_kernel,
    flex,
)
from seqplan.runtime.sequence_parallel.kernels.cudnn import CudnnKernel
from seqplan.runtime.sequence_parallel.kernels.flex import FlexKernel

HEADS = torch.zeros(5, 4, 16)


def test_unknown_kernel_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"^kernel 'fa-2': unknown. Did you mean fa2\? There are"):
        find_kernel("fa-2")


def test_first_kernel_that_supports_a_call_is_chosen() -> None:
    assert choose_kernel(HEADS, HEADS, Scores(1.0)).name == "cpu"
    assert choose_kernel(HEADS, HEADS, Scores(1.0, softcap=20.0)).name == "blocks"


def test_reasons_name_what_is_not_supported() -> None:
    reasons = explain_kernels(HEADS, HEADS, Scores(1.0, softcap=20.0))
    assert list(reasons) == ["fa2", "fa3", "fa4", "cudnn", "flex", "magi", "cpu", "blocks"]
    assert reasons["fa2"] == reasons["cpu"] == "scores are capped"
    assert reasons["magi"] == "the device is cpu"
    assert reasons["blocks"] is None


def test_requested_kernel_that_does_not_support_a_call_is_an_error() -> None:
    context = replace(local_context([5]), kernel=find_kernel("fa3"))
    with pytest.raises(ValueError, match=r"^kernel 'fa3' does not support .*: the device is cpu\."):
        runtime.attention(HEADS, HEADS, HEADS, context)


@pytest.mark.parametrize(
    ("name", "capability", "reason"),
    [
        ("fa2", (7, 5), "the compute capability is 7.5, below 8.0"),
        ("fa2", (8, 0), None),
        ("fa3", (8, 0), "the compute capability is 8.0, not 9.x"),
        ("fa3", (9, 0), "flash_attn_interface is not installed"),
        ("fa4", (12, 0), "the compute capability is 12.0, not 9.x or 10.x"),
        ("fa4", (10, 0), "flash_attn.cute.interface is not installed"),
        ("cudnn", (9, 0), None),
        ("flex", (9, 0), "triton is not installed"),
        ("magi", (10, 0), "the compute capability is 10.0, not 9.x"),
        ("magi", (9, 0), "magi_attention is not installed"),
    ],
)
def test_devices_and_packages_are_checked(
    monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int], reason: str | None
) -> None:
    class OnDevice:
        """What kernels read of a tensor on CUDA."""

        device, dtype, shape = torch.device("cuda", 0), torch.bfloat16, (5, 4, 64)

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    heads: Any = OnDevice()
    assert find_kernel(name).find_unsupported(heads, heads, Scores(0.1)) == reason


@pytest.mark.parametrize("option", ["window", "chunk"])
def test_requested_kernel_without_windows_is_rejected_before_it_runs(option: str) -> None:
    """Also if no document of the micro-batch is longer than the window."""
    context = replace(local_context([5]), kernel=find_kernel("cudnn"))
    with pytest.raises(ValueError, match=r"^kernel 'cudnn' .*: the mask has a window or chunks\."):
        runtime.attention(HEADS, HEADS, HEADS, context, **{option: 8})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("width", "value_width", "reason"),
    [
        (68, 64, "heads have 68 elements, not a multiple of 8"),
        (136, 64, "heads have 136 elements, more than 128"),
    ],
)
def test_widths_are_checked_for_keys_and_values(width: int, value_width: int, reason: str) -> None:
    """On a CPU the device comes first, so that it is replaced."""
    requirements = replace(CudnnKernel.requirements, device="cpu", dtypes=None)
    q, v = torch.zeros(5, 4, width), torch.zeros(5, 4, value_width)
    assert requirements.find_unmet(q, v, Scores(1.0)) == reason


@pytest.fixture
def flex_on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlexKernel]:
    """FlexAttention not compiled: torch computes it densely, and its backward behind a guard."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *_: None)
    monkeypatch.setattr(flex, "compile_attention", lambda: torch_flex.flex_attention)
    yield FlexKernel()
    flex._mask.cache_clear()


def results(kernel: Kernel, pieces: Pieces, scores: Scores, merged: bool) -> list[Tensor]:
    """Output and log-sum-exp, and gradients: of these, or of one merged with other keys."""
    torch.manual_seed(3)
    q, dout = (torch.randn(300, 4, 16, dtype=torch.float64).float() for _ in range(2))
    k, v = (torch.randn(420, 2, 16) for _ in range(2))
    out, lse = torch.zeros(300, 4, 16), torch.zeros(300, 4)
    for rows, part, part_lse in kernel.forward(q, k, v, pieces, scores):
        out[rows], lse[rows] = part, part_lse.float()
    whole, whole_lse = out, lse
    if merged:
        whole, whole_lse = out + 0.1 * torch.randn_like(out), lse + torch.rand_like(lse)
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    attended = Attended(q, k, v, whole, whole_lse)
    for part in kernel.backward(dout, attended, pieces, scores):
        dq[part.q_rows] += part.dq
        dk[part.k_rows] += part.dk
        dv[part.k_rows] += part.dv
    return [out, lse, dq, dk, dv]


PACKED = (Piece(0, 5, 100, 105), Piece(5, 140, 105, 300), Piece(140, 300, 240, 420))


@pytest.mark.filterwarnings("ignore")  # of dynamo, and that this is not compiled
@pytest.mark.parametrize(
    ("pieces", "scores", "merged"),
    [
        (PACKED, Scores(0.25, causal=True), False),
        (PACKED, Scores(0.25, softcap=5.0, causal=True, window=60), True),
        ((Piece(20, 150, 0, 420), Piece(200, 290, 7, 40)), Scores(0.25), True),
    ],
)
def test_flex_attention_agrees_with_products_over_blocks(
    flex_on_cpu: FlexKernel, pieces: Pieces, scores: Scores, merged: bool
) -> None:
    found = results(flex_on_cpu, pieces, scores, merged)
    for one, other in zip(found, results(BlockKernel(), pieces, scores, merged), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)


def test_block_lists_have_every_key_that_is_seen() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        lengths = generator.integers(1, 300, size=3)
        keys = lengths + generator.integers(0, 200, size=3)
        starts, k0 = np.cumsum([0, *lengths]), generator.integers(0, 150, size=3)
        pieces = tuple(
            Piece(*map(int, (starts[at], starts[at + 1], k0[at], k0[at] + keys[at])))
            for at in range(3)
        )
        causal, window = bool(generator.integers(2)), int(generator.integers(1, 200))
        ranges = flex.find_key_ranges(pieces, causal, window)
        total = max(piece.k1 for piece in pieces)
        lists = flex.list_blocks(pieces, total, ranges)
        columns = np.arange(total)
        seen = (ranges.first[:, None] <= columns) & (columns < ranges.stop[:, None])
        size = flex.BLOCK
        for row in range(len(lists.partial)):
            partial = set(lists.partial[row, : lists.partial_counts[row]].tolist())
            whole = set(lists.whole[row, : lists.whole_counts[row]].tolist())
            assert not partial & whole
            of_row = seen[row * size : (row + 1) * size]
            for column in range(-(-total // size)):
                block = of_row[:, column * size : (column + 1) * size]
                if column in whole:
                    assert block.all()
                    assert block.shape == (size, size)
                elif column not in partial:
                    assert not block.any()
