"""Windows, chunks, soft caps and sinks on real ranks, against whole documents in fp64."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from random_plans import one_pipeline_plan, random_plan
from ranks import run_ranks
from torch import Tensor
from whole_attention import computed_once, dense_attention, local_rows

from seqplan import Plan, Scheme, rank_view
from seqplan.runtime.sequence_parallel.context import attention_context, local_context
from seqplan.runtime.sequence_parallel.kernels import BlockKernel, CpuKernel, Kernel
from seqplan.runtime.sequence_parallel.masks import Mask
from seqplan.runtime.sequence_parallel.peers import Peers, Transfer
from seqplan.runtime.sequence_parallel.unified import attention

GATES = {torch.float64: 1e-12, torch.float32: 2e-5}
"""Relative to the largest compared value, or to 1: a query that sees one key alone has a
gradient of 0."""

HEADS = [(8, 8), (8, 2), (4, 1), (6, 2), (5, 5)]
KINDS = ["window", "chunk", "softcap", "sinks", "narrow values", "scale", "all", "chunked, all"]

Errors = dict[tuple[torch.dtype, str], tuple[float, float]]
"""Relative, by dtype and tensor: on the ranks and, without a gate, in one process."""


def options(kind: str, rng: np.random.Generator) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    if kind in ("window", "all") or (kind == "sinks" and rng.random() < 0.5):
        wanted["window"] = int(rng.choice([1, 2, 13, 40, 64, 100]))
    if kind.startswith("chunk"):
        wanted["chunk"] = int(rng.choice([1, 5, 37, 64]))
    if kind == "softcap" or kind.endswith("all"):
        wanted["softcap"] = float(rng.choice([0.7, 2.0, 20.0]))
    if kind == "scale" or kind.endswith("all"):
        wanted["scale"] = 0.37
    return wanted


def errors_of_plan(plan: Plan, rank: int, number: int, kind: str, dtype: torch.dtype) -> Errors:
    """A rank's worst errors, with random heads and options, equal on all ranks."""
    rng = np.random.default_rng(number)
    heads, kv_heads = HEADS[number % len(HEADS)]
    masking = options(kind, rng)
    width = 16
    value_width = 24 if number % 16 == 4 else 8 if kind == "narrow values" or "all" in kind else 16
    sinks = None
    if kind == "sinks" or kind.endswith("all"):
        sinks = torch.from_numpy(rng.standard_normal(heads)).to(dtype).requires_grad_()
    kernel: Kernel | None = BlockKernel() if number % 4 == 3 else None
    gather_below = int(rng.choice([0, 10, 1024]))
    worst: Errors = {}
    sink_sums = torch.zeros(3, heads, dtype=torch.float64)  # on the ranks, exact, of one process
    for pipeline in rank_view(plan, rank).pipelines:
        for micro_batch in pipeline.micro_batches:
            lengths = [share.length for share in micro_batch.sequences]
            generator = torch.Generator().manual_seed(micro_batch.sequences[0].id)
            whole = [
                torch.randn(sum(lengths), *shape, generator=generator).to(dtype)
                for shape in (
                    (heads, width),
                    (kv_heads, width),
                    (kv_heads, value_width),
                    (heads, value_width),
                )
            ]
            rows = local_rows(micro_batch)
            leaves = [tensor[rows].requires_grad_() for tensor in whole[:3]]
            context = attention_context(
                pipeline,
                micro_batch,
                Peers(dist.group.WORLD),
                kernel=kernel,
                gather_below=gather_below,
                masks=[Mask.from_sizes(masking.get("window"), masking.get("chunk"))],
            )
            q, k, v = leaves
            out = attention(q, k, v, context, sinks=sinks, **masking)
            out.backward(whole[3][rows])
            mine = [out.detach(), *(leaf.grad for leaf in leaves)]
            dtypes = (torch.float64,) if dtype in GATES else (torch.float64, dtype)
            shapes = [*(whole[at].shape for at in (3, 0, 1, 2)), torch.Size([heads])]
            right = computed_once(
                plan.pipelines[pipeline.index].ranks,
                partial(gradients_in_turn, dtypes, whole, sinks, lengths, masking),
                shapes * len(dtypes),
            )
            (*exact, exact_sinks), (*single, single_sinks) = right[:5], right[-5:]
            names = ("out", "dq", "dk", "dv")
            for name, some, expected, plain in zip(names, mine, exact, single, strict=True):
                assert some.dtype == dtype
                largest = max(expected.abs().max().item(), 1.0)
                error = (some.double() - expected[rows]).abs()
                of_one = (plain - expected).abs().max().item() / largest
                note(worst, dtype, name, error.max().item() / largest if len(rows) else 0.0, of_one)
            share = pipeline.scheme.gpus  # as many ranks compute the same here
            sink_sums[1:] += torch.stack((exact_sinks, single_sinks)) / share
    if sinks is not None:
        if sinks.grad is not None:
            sink_sums[0] = sinks.grad.double()
        dist.all_reduce(sink_sums)
        ours, right, plain = sink_sums
        largest = right.abs().max().item()
        sink_errors = [(some - right).abs().max().item() / largest for some in (ours, plain)]
        note(worst, dtype, "dsinks", *sink_errors)
    return worst


def note(worst: Errors, dtype: torch.dtype, name: str, ours: float, plain: float) -> None:
    before = worst.get((dtype, name), (0.0, 0.0))
    worst[dtype, name] = max(before[0], ours), max(before[1], plain)


def gradients(
    whole: list[Tensor],
    sinks: Tensor | None,
    lengths: list[int],
    masking: dict[str, Any],
    dtype: torch.dtype,
) -> list[Tensor]:
    """Output and gradients of q, k, v and sinks of whole documents; zeros without sinks."""
    q, k, v = (tensor.to(dtype).requires_grad_() for tensor in whole[:3])
    leaf = None if sinks is None else sinks.detach().to(dtype).requires_grad_()
    leaves = [q, k, v] if leaf is None else [q, k, v, leaf]
    out = dense_attention(q, k, v, lengths, sinks=leaf, **masking)
    of_leaves = torch.autograd.grad(out, leaves, whole[3].to(dtype))
    of_sinks = [] if leaf is not None else [torch.zeros(q.shape[1], dtype=dtype)]
    return [out.detach(), *of_leaves, *of_sinks]


def gradients_in_turn(dtypes: tuple[torch.dtype, ...], *request: Any) -> list[Tensor]:
    return [part for dtype in dtypes for part in gradients(*request, dtype)]


def exactness(rank: int, world_size: int) -> Errors:
    """Every kind under every split of the ranks, and under random plans with idle ranks."""
    worst: Errors = {}
    splits = [u for u in (1, 2, 4) if world_size % u == 0]
    dtypes = [torch.float64, torch.float64, torch.float32, torch.float64, torch.bfloat16]
    for number in range(len(KINDS) * (len(splits) + 2)):
        rng = np.random.default_rng(number)
        way, kind = number // len(KINDS), KINDS[number % len(KINDS)]
        if way < len(splits):
            scheme = Scheme(1, 1, splits[way], world_size // splits[way])
            lengths = [1, 7, *(int(length) for length in rng.integers(1, 120, 4)), 203]
            plan = one_pipeline_plan(scheme, [int(length) for length in rng.permutation(lengths)])
        else:
            plan = random_plan(rng, world_size, heads=4, longest=150, sequences=6)
        errors = errors_of_plan(plan, rank, number, kind, dtypes[number % len(dtypes)])
        for key, error in errors.items():
            note(worst, *key, *error)
    return worst


def test_output_and_gradients_are_those_of_whole_documents() -> None:
    ranks = run_ranks(exactness, 4, timeout_s=120)
    worst: Errors = {}
    for errors in ranks:
        for key, error in errors.items():
            note(worst, *key, *error)
    names = {"out", "dq", "dk", "dv", "dsinks"}
    assert {name for dtype, name in worst if dtype == torch.float64} == names
    for (dtype, name), (ours, plain) in worst.items():
        assert ours <= GATES.get(dtype, 2 * plain), (dtype, name, ours, plain)


class CountedPeers(Peers):
    """Peers that count what they send, as numbers of elements by transfer."""

    def __init__(self) -> None:
        super().__init__(dist.group.WORLD)
        self.sent: list[int] = []

    def transfer(self, sends: Any, receives: Any) -> Transfer:
        self.sent.append(sum(tensor.numel() for tensor, _ in sends))
        return super().transfer(sends, receives)


def sent_rows(rank: int, world_size: int) -> dict[str, list[int]]:
    """Rows of keys and values that a rank sends for a document of 800 tokens."""
    return {name: _sent_rows(rank, world_size, masking) for name, masking in WINDOWS.items()}


def _sent_rows(rank: int, world_size: int, masking: dict[str, Any]) -> list[int]:
    (pipeline,) = rank_view(one_pipeline_plan(Scheme(ring=world_size), [800]), rank).pipelines
    peers = CountedPeers()
    context = attention_context(pipeline, pipeline.micro_batches[0], peers, gather_below=0)
    q = torch.randn(200, 2, 8)
    k = v = torch.randn(200, 1, 8)
    attention(q, k, v, context, **masking)
    return [elements // 16 for elements in peers.sent]


def test_keys_go_only_where_a_window_reaches() -> None:
    """Each chunk of 100 tokens but the first needs 19 of the one before."""
    ranks = run_ranks(sent_rows, 4)
    four = {name: [by_name[name] for by_name in ranks] for name in WINDOWS}
    assert [sum(rows) for rows in four["none"]] == [600] * 4
    # Chunk 4 is on the rank that holds chunk 3.
    assert [len(rows) for rows in four["window of 20"]] == [1] * 4
    assert sum(sum(rows) for rows in four["window of 20"]) == 6 * 19
    assert sum(sum(rows) for rows in four["chunk of 100"]) == 0
    assert sum(sum(rows) for rows in four["chunk of 200"]) == 4 * 100


WINDOWS: dict[str, dict[str, Any]] = {
    "none": {},
    "window of 20": {"window": 20},
    "chunk of 100": {"chunk": 100},
    "chunk of 200": {"chunk": 200},
}


def test_long_windows_cross_the_blocks_of_a_kernel() -> None:
    """Blocks of 64 and 128 rows and of 1,024 keys, and documents that no window cuts, too."""
    lengths = [700, 1300, 1]
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2001, heads, 8, generator=generator, dtype=torch.float64) for heads in (4, 2, 2)
    )
    context = local_context(lengths)
    for request in (
        {"window": 300},
        {"window": 1200, "softcap": 3.0},
        {"softcap": 3.0},
        {"chunk": 1025},
        {"chunk": 200, "softcap": 3.0},
    ):
        out = attention(q, k, v, context, **request)  # type: ignore[arg-type]
        right = dense_attention(q, k, v, lengths, **request)  # type: ignore[arg-type]
        assert (out - right).abs().max() < 1e-12, request


def test_masks_that_hide_nothing_change_no_bit() -> None:
    q, k, v = torch.randn(3, 12, 2, 4)
    context = local_context([7, 5])
    whole = attention(q, k, v, context)
    assert torch.equal(attention(q, k, v, context, window=7), whole)
    assert torch.equal(attention(q, k, v, context, chunk=7), whole)
    nothing = torch.full((2,), -1000.0)
    assert torch.allclose(attention(q, k, v, context, sinks=nothing), whole)
    assert torch.equal(attention(q, k, v, context, sinks=-nothing), torch.zeros(12, 2, 4))


@pytest.mark.parametrize(
    ("masking", "message"),
    [
        ({"window": 0}, "window is 0"),
        ({"chunk": -3}, "chunk is -3"),
        ({"window": 4, "chunk": 4}, r"a window \(4\) and a chunk \(4\)"),
        ({"softcap": 0.0}, "softcap is 0.0"),
        ({"softcap": -1.0}, "softcap is -1.0"),
        ({"softcap": float("nan")}, "softcap is nan"),
        ({"sinks": torch.zeros(3)}, r"sinks are of shape \(3,\).* each of the 2 query heads"),
        ({"sinks": torch.zeros(1, 2)}, r"sinks are of shape \(1, 2\)"),
    ],
)
def test_invalid_options_are_rejected(masking: dict[str, Any], message: str) -> None:
    q = torch.randn(8, 2, 4)
    with pytest.raises(ValueError, match=message):
        attention(q, q, q, local_context([8]), **masking)


def test_a_fused_kernel_rejects_soft_caps() -> None:
    context = local_context([8])
    object.__setattr__(context, "kernel", CpuKernel())
    q = torch.randn(8, 2, 4)
    with pytest.raises(ValueError, match=r"kernel 'cpu' does not support .*: scores are capped"):
        attention(q, q, q, context, softcap=2.0)
