"""Unified attention on real ranks against dense fp64 attention of whole documents."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from random_plans import one_pipeline_plan, random_lengths, random_plan
from ranks import run_ranks, run_ranks_expecting_failure
from torch import Tensor
from whole_attention import computed_once, local_rows

from seqplan import Plan, Scheme, rank_view
from seqplan.runtime.sequence_parallel.context import (
    AttentionContext,
    attention_context,
    local_context,
)
from seqplan.runtime.sequence_parallel.kernels import BlockKernel, Kernel
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.sequence_parallel.unified import attention

GATES = {torch.float64: 1e-12, torch.float32: 2e-5}
HEAD_DIM = 16


class Case(NamedTuple):
    """One plan to attend under: its seed, heads and dtype, and which documents are gathered."""

    seed: int
    heads: int
    kv_heads: int
    dtype: torch.dtype
    gather_below: int


def cases(seed: int, count: int) -> list[Case]:
    rng = np.random.default_rng(seed)
    heads = [(8, 8), (8, 2), (8, 1), (6, 2), (12, 4), (5, 5)]
    dtypes = [torch.float64, torch.float32, torch.bfloat16]
    return [
        Case(
            int(rng.integers(2**31)),
            *heads[int(rng.integers(len(heads)))],
            dtypes[index % 3],
            int(rng.choice([0, 10, 1024])),
        )
        for index in range(count)
    ]


def dense(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, lengths: list[int]) -> tuple[Tensor, ...]:
    """Output and gradients of causal attention within each document, in q's dtype."""
    q, k, v = (tensor.detach().clone().requires_grad_() for tensor in (q, k, v))
    group = q.shape[1] // k.shape[1]
    parts = []
    for document in zip(*(tensor.split(lengths) for tensor in (q, k, v)), strict=True):
        queries, keys, values = (tensor.transpose(0, 1).unsqueeze(0) for tensor in document)
        out = torch.nn.functional.scaled_dot_product_attention(
            queries,
            keys.repeat_interleave(group, 1),
            values.repeat_interleave(group, 1),
            is_causal=True,
        )
        parts.append(out.squeeze(0).transpose(0, 1))
    result = torch.cat(parts)
    result.backward(dout)
    assert q.grad is not None
    assert k.grad is not None
    assert v.grad is not None
    return result.detach(), q.grad, k.grad, v.grad


def dense_in_turn(wholes: list[list[Tensor]], lengths: list[int]) -> list[Tensor]:
    return [part for whole in wholes for part in dense(*whole, lengths)]


class Error(NamedTuple):
    """Worst absolute errors against dense fp64: on these ranks and, without a gate, in one
    process."""

    ranks: float
    single: float

    def worse(self, other: Error) -> Error:
        return Error(max(self.ranks, other.ranks), max(self.single, other.single))


Errors = dict[tuple[torch.dtype, str], Error]
"""By dtype and tensor: out, dq, dk, dv."""


def add(worst: Errors, more: Errors) -> None:
    for key, error in more.items():
        worst[key] = worst.get(key, Error(0.0, 0.0)).worse(error)


def check(worst: Errors) -> None:
    """Hold errors to the gates; bf16 is allowed twice the error of one process."""
    for (dtype, name), error in worst.items():
        assert error.ranks <= GATES.get(dtype, 2 * error.single), (dtype, name, error)


def attend(plan: Plan, rank: int, case: Case, kernel: Kernel | None = None) -> Errors:
    """The errors of a rank's part of a plan."""
    peers = Peers(dist.group.WORLD)
    worst: Errors = {}
    for pipeline in rank_view(plan, rank).pipelines:
        for micro_batch in pipeline.micro_batches:
            lengths = [share.length for share in micro_batch.sequences]
            generator = torch.Generator().manual_seed(micro_batch.sequences[0].id)
            whole = [
                torch.randn(sum(lengths), heads, HEAD_DIM, generator=generator).to(case.dtype)
                for heads in (case.heads, case.kv_heads, case.kv_heads, case.heads)
            ]
            rows = local_rows(micro_batch)
            q, k, v = (tensor[rows].requires_grad_() for tensor in whole[:3])
            context = attention_context(
                pipeline, micro_batch, peers, kernel=kernel, gather_below=case.gather_below
            )
            out = attention(q, k, v, context)
            out.backward(whole[3][rows])
            wholes = [[tensor.double() for tensor in whole]]
            if case.dtype not in GATES:  # then one process' error is the reference
                wholes.append(whole)
            shapes = [whole[at].shape for at in (3, 0, 1, 2)]
            right = computed_once(
                plan.pipelines[pipeline.index].ranks,
                partial(dense_in_turn, wholes, lengths),
                shapes * len(wholes),
            )
            exact, single = right[:4], right[-4:]
            for name, mine, expected, plain in zip(
                ("out", "dq", "dk", "dv"),
                (out.detach(), q.grad, k.grad, v.grad),
                exact,
                single,
                strict=True,
            ):
                assert mine.dtype == case.dtype
                if mine.numel():
                    error = Error(
                        (mine.double() - expected[rows]).abs().max().item(),
                        (plain - expected).abs().max().item(),
                    )
                    add(worst, {(case.dtype, name): error})
    return worst


def random_cases(rank: int, world_size: int, count: int) -> Errors:
    worst: Errors = {}
    for case in cases(world_size, count):
        rng = np.random.default_rng(case.seed)
        plan = random_plan(rng, world_size, heads=case.heads, longest=150, sequences=10)
        add(worst, attend(plan, rank, case))
    return worst


def every_split(rank: int, world_size: int) -> Errors:
    """Every split of the world into Ulysses and ring, with documents shorter than 2·ring."""
    worst: Errors = {}
    dtypes = itertools.cycle((torch.float64, torch.bfloat16, torch.float32))
    for ulysses in (degree for degree in range(1, 7) if world_size % degree == 0):
        scheme = Scheme(1, 1, ulysses, world_size // ulysses)
        rng = np.random.default_rng(ulysses)
        lengths = [1, 7, 5, 2 * world_size, *random_lengths(rng, 6, 200)]
        plan = one_pipeline_plan(scheme, lengths)
        add(worst, attend(plan, rank, Case(0, 6, 2, next(dtypes), 0)))
    return worst


def block_kernel(rank: int, world_size: int) -> Errors:
    """The kernel of matrix products in the place of the fused one."""
    worst: Errors = {}
    rng = np.random.default_rng(3)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        plan = random_plan(rng, world_size, heads=4, longest=60)
        add(worst, attend(plan, rank, Case(0, 4, 2, dtype, 0), BlockKernel()))
    return worst


def comparisons(rank: int, world_size: int, count: int) -> tuple[Errors, Errors, Errors]:
    return (
        random_cases(rank, world_size, count),
        every_split(rank, world_size),
        block_kernel(rank, world_size),
    )


@pytest.mark.parametrize(("world_size", "count"), [(1, 15), (2, 9), (3, 9), (4, 9), (6, 3), (8, 3)])
def test_random_packings_and_every_split(world_size: int, count: int) -> None:
    for part in zip(*run_ranks(comparisons, world_size, count, timeout_s=120), strict=True):
        worst: Errors = {}
        for errors in part:
            add(worst, errors)
        assert worst
        check(worst)


def repeated(rank: int, world_size: int) -> bool:
    """Whether the same micro-batch gives bitwise the same output and gradients ten times."""
    plan = one_pipeline_plan(Scheme(1, 1, 1, world_size), [301, 64, 9, 1])
    (pipeline,) = rank_view(plan, rank).pipelines
    (micro_batch,) = pipeline.micro_batches
    context = attention_context(pipeline, micro_batch, Peers(dist.group.WORLD))
    generator = torch.Generator().manual_seed(rank)
    q, k, v = (torch.randn(micro_batch.local_tokens, 4, 8, generator=generator) for _ in range(3))
    masked: dict[str, Any] = {"window": 40, "softcap": 2.0}
    sinks = torch.randn(4, generator=generator)
    for masking in ({}, masked):
        results = []
        for _ in range(10):
            leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v, sinks)]
            out = attention(*leaves[:3], context, sinks=leaves[3] if masking else None, **masking)
            out.square().sum().backward()
            results.append([out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)])
        for result in results:
            if not all(itertools.starmap(torch.equal, zip(results[0], result, strict=True))):
                return False
    return True


def test_bitwise_repeatable() -> None:
    assert all(run_ranks(repeated, 2))


def one_rank_context(tokens: int = 8) -> AttentionContext:
    (pipeline,) = rank_view(one_pipeline_plan(Scheme(1, 1), [tokens]), 0).pipelines
    return attention_context(pipeline, pipeline.micro_batches[0], Peers(None))


def test_dropout_is_rejected_by_name() -> None:
    q = torch.randn(8, 2, 4)
    with pytest.raises(NotImplementedError, match="dropout"):
        attention(q, q, q, one_rank_context(), dropout=0.1)


def test_rotated_queries_of_autocast_are_computed_in_the_values_dtype() -> None:
    q, k, v = torch.randn(3, 12, 2, 8)
    q.requires_grad_()
    context = local_context([7, 5])
    out = attention(q, k, v.bfloat16(), context)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), context))
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32


def test_calls_are_counted_and_missing_ones_rejected() -> None:
    q = torch.randn(12, 2, 4)
    context = local_context([7, 5])
    with pytest.raises(ValueError, match=r"did not call seqplan.runtime.attention .* 2 documents"):
        context.attention_calls()
    assert local_context([12]).attention_calls() == 0  # any causal attention is right there
    attention(q, q, q, context)
    assert context.attention_calls() == 1
    with pytest.raises(ValueError, match=r"1 times for a micro-batch and 2 times for the one"):
        context.attention_calls(2)


def test_wrong_rows_and_heads_are_rejected() -> None:
    q = torch.randn(7, 2, 4)
    with pytest.raises(ValueError, match="holds 8 tokens"):
        attention(q, q, q, one_rank_context())
    q, k = torch.randn(8, 3, 4), torch.randn(8, 2, 4)
    with pytest.raises(ValueError, match="3 query heads cannot share 2"):
        attention(q, k, k, one_rank_context())
    with pytest.raises(ValueError, match=r"q and k need the same width"):
        attention(torch.randn(8, 2, 8), k, k, one_rank_context())


def too_many_ulysses(rank: int, world_size: int) -> None:
    attend(one_pipeline_plan(Scheme(1, 1, 2, 1), [40]), rank, Case(0, 1, 1, torch.float32, 0))


def test_more_ulysses_than_heads_is_rejected_on_every_rank() -> None:
    for text in run_ranks_expecting_failure(too_many_ulysses, 2):
        assert "Ulysses degree 2 exceeds the model's 1 attention heads" in text


def test_strided_inputs_on_one_rank() -> None:
    """A stride other than 1 would be read as garbage by the fused kernel."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(8, 4, 2, generator=generator).transpose(1, 2) for _ in range(3))
    out = attention(q, k, v, one_rank_context())
    assert torch.allclose(out, dense(q, k, v, torch.zeros(8, 2, 4), [8])[0], atol=2e-5)
