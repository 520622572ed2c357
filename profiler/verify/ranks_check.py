"""Ring and Ulysses attention over the ranks of this job, against fp64 and one fused call.

Every rank has all inputs, and attends to its rows as in training.
"""

from __future__ import annotations

from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor

from seqplan.plans.scheme import Scheme
from seqplan.plans.views.micro_batch_view import MicroBatchView
from seqplan.plans.views.rank_view import rank_view
from seqplan.profiler.measure.bench import make_full_plan
from seqplan.profiler.verify.attention_cases import AttentionCase, attention_cases
from seqplan.profiler.verify.attention_check import (
    FLOOR,
    LEAST_SCALE,
    RING_OVER_FUSED,
    TENSORS,
    relative_error,
)
from seqplan.profiler.verify.dense_attention import AttentionTensors, dense_attention
from seqplan.profiler.verify.results import Figure
from seqplan.profiler.verify.ring_emulation import emulate_ring
from seqplan.profiler.verify.settings import VerifySettings
from seqplan.runtime.sequence_parallel.context import attention_context
from seqplan.runtime.sequence_parallel.kernels import Kernel, Scores
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.sequence_parallel.unified import attention

CASES, QUICK_CASES = 14, 6
"""Of those of one process: every kind of scores, in both dtypes; and if it is to be quick."""


def check_ranks(settings: VerifySettings) -> tuple[list[Figure], list[str]]:
    """Attend on all ranks as Ulysses, as a ring and as both; every rank calls it."""
    groups, world_size = settings.groups, settings.world_size
    assert groups is not None
    schemes = [Scheme(ulysses=world_size), Scheme(ring=world_size)]
    if world_size % 2 == 0 and world_size > 2:
        schemes.append(Scheme(ulysses=2, ring=world_size // 2))
    figures: list[Figure] = []
    for case in islice(attention_cases(settings), QUICK_CASES if settings.quick else CASES):
        figures += _figures(settings, case, schemes)
    return figures, [f"{world_size} ranks over {dist.get_backend(groups.attention)}"]


def _figures(settings: VerifySettings, case: AttentionCase, schemes: list[Scheme]) -> list[Figure]:
    assert settings.groups is not None
    tensors = case.tensors(settings.device)
    scale = case.width**-0.5
    exact = dense_attention(tensors, case.lengths, case.mask, scale, case.softcap)
    kernel = settings.choose_kernel(
        tensors.q, tensors.v, Scores(1.0, case.softcap, window=case.mask.reach)
    )
    scores = Scores(scale, case.softcap)
    fused = emulate_ring(tensors, case.lengths, 1, case.mask, scores, kernel, case.gather_below)
    figures = []
    for scheme in schemes:
        parts = _attend(settings, case, scheme, tensors, kernel)
        for name in TENSORS:
            wanted = getattr(exact, name)
            rows, of_rank = parts["rows"], parts[name]
            squares = (of_rank.double() - wanted[rows]).square().sum()[None].cpu()
            dist.all_reduce(squares, group=settings.groups.control)
            rms = float((squares / wanted.numel()).sqrt())
            fused_error = relative_error(getattr(fused, name), wanted)
            figures.append(
                Figure(
                    f"{case.dtype} on {scheme}: against twice the fused call",
                    f"{case.name}: {name}",
                    rms / max(float(wanted.square().mean().sqrt()), LEAST_SCALE),
                    most=max(RING_OVER_FUSED * fused_error, FLOOR[case.dtype]),
                )
            )
    return figures


def _attend(
    settings: VerifySettings,
    case: AttentionCase,
    scheme: Scheme,
    tensors: AttentionTensors,
    kernel: Kernel,
) -> dict[str, Tensor]:
    """Attend on this rank's rows; output and gradients of ``rows``, by name."""
    assert settings.groups is not None
    view = rank_view(make_full_plan(scheme, case.lengths, settings.world_size), settings.rank)
    (pipeline,) = view.pipelines
    (micro_batch,) = pipeline.micro_batches
    context = attention_context(
        pipeline,
        micro_batch,
        Peers(settings.groups.attention),
        device=settings.device,
        kernel=kernel,
        gather_below=case.gather_below,
    )
    rows = _find_held_rows(micro_batch).to(settings.device)
    leaves = [tensor[rows].requires_grad_() for tensor in (tensors.q, tensors.k, tensors.v)]
    q, k, v = leaves
    out = attention(
        q,
        k,
        v,
        context,
        window=case.mask.window,
        chunk=case.mask.chunk,
        softcap=case.softcap,
        sinks=tensors.sinks,
    )
    gradients = torch.autograd.grad(out, leaves, tensors.dout[rows])
    return {"rows": rows, **dict(zip(TENSORS, (out.detach(), *gradients), strict=True))}


def _find_held_rows(micro_batch: MicroBatchView) -> Tensor:
    """Return which tokens of the packed micro-batch this rank holds, int64."""
    starts = micro_batch.cu_seqlens()
    rows = [
        torch.arange(start, stop) + int(starts[at])
        for at, share in enumerate(micro_batch.sequences)
        for start, stop in share.ranges
    ]
    return torch.cat([torch.arange(0), *rows])
