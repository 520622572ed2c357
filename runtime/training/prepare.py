"""A rank's part of a step, ready to compute: tokens, labels and attention contexts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seqplan.plans.views.placement import pushes_overlap
from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.data.tokens import TokenData, load_share
from seqplan.runtime.errors import PlanError
from seqplan.runtime.sequence_parallel.context import AttentionContext, attention_context
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.sequence_parallel.ulysses import HeadSplit


@dataclass(frozen=True, slots=True)
class MicroBatchWork:
    """One micro-batch on this rank.

    ``tokens`` and ``labels``: int64 (local tokens,), labels shifted within each document and −100
    at its end; ``last``: the rank's last of the step, after which no gradient changes, where
    gradients may then leave during its backward (``pushes_overlap``), else never.
    """

    tokens: Tensor
    labels: Tensor
    context: AttentionContext
    last: bool


def runnable(view: RankView, heads: int, kv_heads: int) -> None:
    """Refuse what a module with whole parameters, of ``heads`` and ``kv_heads``, cannot run.

    ``PlanError`` for tp or pp above 1, and for more Ulysses ranks than heads.
    """
    for pipeline in view.pipelines:
        scheme = pipeline.scheme
        where = f"step {view.step}, pipeline {pipeline.index}"
        if scheme.tp > 1 or scheme.pp > 1:
            raise PlanError(
                f"{where}: scheme {scheme} cuts the model, and a module that computes with whole "
                "parameters runs tp = pp = 1 only: plan with sequence-parallel schemes"
            )
        try:
            HeadSplit.of(heads, kv_heads, scheme.ulysses)
        except ValueError as error:
            raise PlanError(f"{where}: {error}") from None


def preparation(
    data: TokenData,
    peers: Peers,
    *,
    heads: int,
    kv_heads: int,
    device: torch.device | str = "cpu",
) -> Callable[[RankView], tuple[MicroBatchWork, ...]]:
    """Return what a consumer does with a view ahead: check it, load its tokens, lay it out.

    The returned function raises ``PlanError`` for a plan that cannot run here and ``DataError``
    for one that the data set does not match; it communicates with no other rank.
    """

    def prepare(view: RankView) -> tuple[MicroBatchWork, ...]:
        runnable(view, heads, kv_heads)
        batches = [
            (pipeline, micro_batch)
            for pipeline in view.pipelines
            for micro_batch in pipeline.micro_batches
        ]
        overlap = pushes_overlap(view.placement)
        work = []
        for index, (pipeline, micro_batch) in enumerate(batches, start=1):
            share = load_share(data, micro_batch, step=view.step)
            work.append(
                MicroBatchWork(
                    tokens=torch.from_numpy(share.tokens).to(device),
                    labels=torch.from_numpy(share.labels).to(device),
                    context=attention_context(pipeline, micro_batch, peers, device=device),
                    last=overlap and index == len(batches),
                )
            )
        return tuple(work)

    return prepare
