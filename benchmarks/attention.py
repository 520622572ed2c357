"""CPU-seconds of attention, forward and backward, summed over four ranks on this machine.

Wall time means little if ranks share cores; the CPU time of all processes shows what a
cluster would pay. Every comparison runs the same kernel, so that the difference is the algorithm's.

- *dense*: one long document on a ring: ours against torch's ring (its
  ``_templated_ring_attention``, fed the same kernel) and one process without communication.
- *short*: many short documents on a ring: ours against passing all keys and values round, and
  against gathering all of them (the way of Llama 3's context parallelism).
- *ragged*: documents of a long-tailed distribution: under a plan made with the example profile of a
  small model on four CPU ranks, against one ring and one Ulysses group for all.
- *cut*, *capped*: one document of 16K tokens on a ring under windows, chunks, soft caps and sinks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.ranks import on_ranks, plan_evenly, sum_ranks, time_together
from benchmarks.settings import CODE, Data
from benchmarks.tables import Output, Table
from seqplan import Batch, Plan, Profile, Scheme, StepPlanner, Workload, construct_plan
from seqplan.planner.proposal.make_proposal import make_proposal
from seqplan.plans.views.rank_view import rank_view
from seqplan.runtime.sequence_parallel.context import attention_context
from seqplan.runtime.sequence_parallel.peers import Peer, Peers, Transfer
from seqplan.runtime.sequence_parallel.ring_layout import GATHER_BELOW
from seqplan.runtime.sequence_parallel.unified import attention

RANKS, HEADS, KV_HEADS, HEAD_DIM = 4, 8, 4, 64
EXAMPLE = CODE.with_name("llama-small-cpu.json")
ALL = 10**9


class Way(NamedTuple):
    """How to attend: ``scheme`` (None: planned), below how many tokens a rank documents are
    gathered, and options of ``attention``, with ``sinks`` to be made."""

    name: str
    scheme: Scheme | None
    gather_below: int
    options: tuple[tuple[str, Any], ...] = ()


PRELOAD = ("torch", "benchmarks.attention")
RING, ULYSSES = Scheme(1, 1, 1, RANKS), Scheme(1, 1, RANKS, 1)


def compare_attention(
    data: Sequence[Data], cuts: Sequence[int] = (2048, 4096), longest: int = 16384
) -> Output:
    """Compare ways to attend; the ragged documents are drawn from the first of ``data``.

    ``cuts``: tokens that the ragged documents are cut to.
    """
    rng = np.random.default_rng(0)
    ragged = rng.choice(data[0].lengths, 58)
    short = rng.integers(16, 257, 96).tolist()
    ours = Way("ours", RING, GATHER_BELOW)
    torchs, alone = Way("torch", RING, 0), Way("one process", RING, 0)
    ring, gathered = Way("ring", RING, 0), Way("gathered", RING, ALL)
    plans = [Way("planned", None, GATHER_BELOW), ring, Way("ulysses", ULYSSES, 0)]
    cut, capped = list_masked()
    comparisons: list[tuple[str, list[int], str, list[Way]]] = [
        ("dense", [longest // 4], "float32", [ours, torchs, alone]),
        ("short", short, "bfloat16", [ours, ring, gathered]),
        ("short", short, "float32", [ours, ring, gathered]),
        *(("ragged", ragged.clip(1, tokens).tolist(), "float32", plans) for tokens in cuts),
        ("cut", [longest], "float32", cut),
        ("capped", [longest], "float32", capped),
    ]
    yield _compare(comparisons)


def compare_bfloat16(data: Sequence[Data]) -> Output:
    """Compare a full layer and a window of 1,024 in bf16, once after a warm-up: minutes."""
    cut, _ = list_masked()
    yield _compare([("cut", [16384], "bfloat16", cut[:2])], repeats=1)


def list_masked() -> tuple[list[Way], list[Way]]:
    """List ways with windows, chunks and sinks, and with soft caps."""

    def way(name: str, **options: Any) -> Way:
        return Way(name, RING, GATHER_BELOW, tuple(options.items()))

    cut = [
        way("full"),
        way("window 1,024", window=1024),
        way("window 128, sinks", window=128, sinks=True),
        way("chunk 2,048", chunk=2048),
    ]
    capped = [way("capped", softcap=50.0), way("capped, window 1,024", softcap=50.0, window=1024)]
    return cut, capped


def _compare(
    comparisons: Sequence[tuple[str, list[int], str, list[Way]]], repeats: int = 3
) -> Table:
    """Measure each way of a comparison, its repeats taking turns with the others'."""
    table = Table(
        "comparison | documents | dtype | way | CPU-seconds | ÷ first | MiB sent",
        "{} | {} of {:,} tokens | {} | {} | {:.3f} | {:.3f} | {}",
        title=f"Attention on {RANKS} ranks, {HEADS} heads of {HEAD_DIM}, {KV_HEADS} key heads",
    )
    for title, lengths, dtype, ways in comparisons:
        by_rank = on_ranks(RANKS, _time_ways, (lengths, dtype, ways, repeats), PRELOAD)
        first = 0.0
        for at, way in enumerate(ways):
            seconds = sum_ranks([times[at] for times, _ in by_rank])
            first = first or seconds
            sent = sum(of_ways[at] for _, of_ways in by_rank)
            mebibytes = "" if way.name == "torch" else f"{sent / 2**20:.1f}"
            cells = dtype, way.name, seconds, seconds / first, mebibytes
            table.add(title, len(lengths), sum(lengths), *cells)
    return table


def _time_ways(
    rank: int, lengths: list[int], dtype_name: str, ways: list[Way], repeats: int
) -> tuple[list[list[float]], list[int]]:
    """Time each way, its repeats in turn with the others'; and the bytes that each sent a time."""
    dtype: torch.dtype = getattr(torch, dtype_name)
    peers = [_CountingPeers() for _ in ways]
    calls = [
        _call(way, rank, lengths, dtype, way_peers)
        for way, way_peers in zip(ways, peers, strict=True)
    ]
    times = [[time_together(call) for call in calls] for _ in range(1 + repeats)]
    sent = [way_peers.sent // (1 + repeats) for way_peers in peers]
    return list(map(list, zip(*times[1:], strict=True))), sent


class _CountingPeers(Peers):
    """Peers that count the bytes that they send."""

    def __init__(self) -> None:
        super().__init__(dist.group.WORLD)
        self.sent = 0

    def transfer(self, sends: Sequence[Peer], receives: Sequence[Peer]) -> Transfer:
        self.sent += sum(tensor.numel() * tensor.element_size() for tensor, _ in sends)
        return super().transfer(sends, receives)


def _call(
    way: Way, rank: int, lengths: list[int], dtype: torch.dtype, peers: Peers
) -> Callable[[], Any]:
    """One forward and backward of all that a rank has to do."""
    name, scheme, gather_below, _ = way
    options = dict(way.options)
    if name == "torch":
        return _torch_ring(sum(lengths) // RANKS, dtype)
    if scheme is None:
        plan = _planned(lengths)
    elif name == "one process":
        places = list(range(len(lengths)))
        plan = construct_plan(lengths, {"u1": [[places]]}, world_size=RANKS)
    else:
        plan = plan_evenly(scheme, lengths, RANKS, per_batch=len(lengths))
    if options.get("sinks"):
        options["sinks"] = torch.randn(HEADS).to(dtype).requires_grad_()
    work = []
    for pipeline in rank_view(plan, rank).pipelines:
        for micro_batch in pipeline.micro_batches:
            context = attention_context(pipeline, micro_batch, peers, gather_below=gather_below)
            work.append((_tensors(micro_batch.local_tokens, dtype), context))

    def call() -> None:
        for (q, k, v, dout), context in work:
            attention(q, k, v, context, **options).backward(dout)  # type: ignore[no-untyped-call]
            q.grad = k.grad = v.grad = None

    return call


def _planned(lengths: list[int]) -> Plan:
    """The planner's choice for these documents as one batch."""
    profile = Profile.load(EXAMPLE)
    workload = Workload(RANKS, max(lengths), sum(lengths))
    proposal = make_proposal(profile, workload, np.array(lengths), sync=None)
    batch = Batch(0, tuple(range(len(lengths))), tuple(lengths))
    return StepPlanner(proposal).plan(batch)


def _tensors(tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    heads = (HEADS, KV_HEADS, KV_HEADS, HEADS)
    q, k, v, dout = (torch.randn(tokens, head_count, HEAD_DIM).to(dtype) for head_count in heads)
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), dout


def _torch_ring(tokens: int, dtype: torch.dtype) -> Callable[[], Any]:
    """torch's load-balanced ring over one document, both directions."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as template

    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    q, k, v, dout = (
        tensor.detach().transpose(0, 1).unsqueeze(0).contiguous()
        for tensor in _tensors(tokens, dtype)
    )
    group = dist.group.WORLD
    assert group is not None
    template._cp_options.enable_load_balance = True

    def forward(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        return flash(query, key, value, is_causal=options["is_causal"])

    def backward(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
        gradients: tuple[Tensor, ...] = flash_backward(
            options["grad_out"],
            query,
            key,
            value,
            options["out"],
            options["logsumexp"],
            0.0,
            options["is_causal"],
        )
        return gradients

    def call() -> None:
        out, lse, *_ = template._templated_ring_attention(
            group, 2, forward, q, k, v, is_causal=True
        )
        template._templated_ring_attention_backward(
            group, 2, backward, dout, "grad_out", q, k, v, out, lse, True
        )

    return call
