"""torch's ring attention as a second oracle, if it applies: one document, even chunks."""

import importlib.util
from typing import Any

import pytest
import torch
import torch.distributed as dist
from random_plans import one_pipeline_plan
from ranks import run_ranks
from torch import Tensor

from seqplan import Scheme, rank_view
from seqplan.runtime.sequence_parallel.context import attention_context
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.sequence_parallel.unified import attention

TEMPLATE = "torch.distributed.tensor.experimental._context_parallel._attention"

LENGTH, HEADS, HEAD_DIM = 96, 4, 16


def kernel(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, is_causal=options["is_causal"]
    )


def backward_kernel(**tensors: Any) -> Any:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        tensors["grad_out"],
        tensors["query"],
        tensors["key"],
        tensors["value"],
        tensors["out"],
        tensors["logsumexp"],
        0.0,
        tensors["is_causal"],
    )


def difference(rank: int, world_size: int) -> float:
    """Largest difference of output and gradients between torch's ring and ours, in fp64."""
    plan = one_pipeline_plan(Scheme(1, 1, 1, world_size), [LENGTH])
    (pipeline,) = rank_view(plan, rank).pipelines
    (micro_batch,) = pipeline.micro_batches
    generator = torch.Generator().manual_seed(rank)
    q, k, v, dout = (
        torch.randn(LENGTH // world_size, HEADS, HEAD_DIM, generator=generator).double()
        for _ in range(4)
    )
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    context = attention_context(pipeline, micro_batch, Peers(dist.group.WORLD), gather_below=0)
    ours = attention(*leaves, context)
    ours.backward(dout)
    # (tokens, heads, d) → (1, heads, tokens, d); both hold chunks r and 2·ring − 1 − r.
    tq, tk, tv, tdout = (
        tensor.transpose(0, 1).unsqueeze(0).contiguous() for tensor in (q, k, v, dout)
    )
    group = dist.group.WORLD
    assert group is not None
    template = importlib.import_module(TEMPLATE)
    template._cp_options.enable_load_balance = True
    out, lse, *_ = template._templated_ring_attention(group, 2, kernel, tq, tk, tv, is_causal=True)
    gradients = template._templated_ring_attention_backward(
        group,
        2,
        backward_kernel,  # type: ignore[arg-type]
        tdout,
        "grad_out",
        tq,
        tk,
        tv,
        out,
        lse,
        True,
    )[:3]
    return max(
        (theirs.squeeze(0).transpose(0, 1) - mine).abs().max().item()
        for mine, theirs in zip(
            (ours.detach(), *(leaf.grad for leaf in leaves)), (out, *gradients), strict=True
        )
        if mine is not None
    )


def test_torch_computes_the_same() -> None:
    try:
        there = importlib.util.find_spec(TEMPLATE)  # imported by the ranks alone: it takes a second
    except ModuleNotFoundError:
        there = None
    if there is None:
        pytest.skip("private to torch, and elsewhere in other releases")
    for world_size in (2, 4):
        # torch merges its partial results in fp32, whatever the dtype.
        assert max(run_ranks(difference, world_size)) < 2e-6
