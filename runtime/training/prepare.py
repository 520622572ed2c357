"""A rank's part of a step, ready to compute: tokens, labels and attention contexts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
import torch

from seqplan.plans.views.micro_batch_view import MicroBatchView
from seqplan.plans.views.placement import can_overlap_reduction
from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.data.comparison import DataPreparer
from seqplan.runtime.data.micro_batch import MicroBatchWork
from seqplan.runtime.data.prepared_step import PreparedStep
from seqplan.runtime.data.targets import Extras, TargetData, load_targets
from seqplan.runtime.data.tokens import NO_LABEL, TokenData, Tokens, load_share
from seqplan.runtime.device_copy import TOKEN_BYTES, PackedCopy, index_device
from seqplan.runtime.errors import DataError, PlanError
from seqplan.runtime.experts.blocks import ExpertBlocks, check_expert_parallel
from seqplan.runtime.experts.micro_steps import check_repeated_modes, fill_micro_steps
from seqplan.runtime.recomputation import check_modes
from seqplan.runtime.sequence_parallel.context import attention_context, local_context
from seqplan.runtime.sequence_parallel.kernels import Kernel, find_kernel
from seqplan.runtime.sequence_parallel.masks import Mask
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.sequence_parallel.ulysses import HeadSplit


def check_sequence_parallel(view: RankView, heads: int, kv_heads: int) -> None:
    """Reject views that a module with ``heads`` and ``kv_heads`` and whole parameters cannot run.

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
            HeadSplit.from_heads(heads, kv_heads, scheme.ulysses)
        except ValueError as error:
            raise PlanError(f"{where}: {error}") from None


def make_preparer(
    data: TokenData,
    peers: Peers,
    *,
    heads: int,
    kv_heads: int,
    vocab: int | None = None,
    device: torch.device | str = "cpu",
    masks: Collection[Mask] = (),
    modes: Collection[str] = (),
    model: str = "the model",
    kernel: Kernel | str | None = None,
    blocks: ExpertBlocks | None = None,
) -> Callable[[RankView], PreparedStep[MicroBatchWork]]:
    """Return what a consumer does with a view ahead: check it, load its tokens, lay it out.

    ``data`` may have labels and weights (``TargetData``); ``vocab``: tokens and labels must be
    below it, unchecked if None; ``masks``: of the model's layers, see ``attention_context``;
    ``modes``: recomputation modes that ``model``, by its name, applies to its layers, and
    ``OFFLOAD`` if it offloads them; ``kernel``: attention's, or its name, which supports all
    layers, or the first that supports a layer if None; ``blocks``: of the model's experts, None if
    every rank has all. ``ValueError`` for an unknown name. The returned function raises
    ``PlanError`` for a plan that cannot run here and ``DataError`` for one that the data set does
    not match; it communicates with no other rank.
    """

    has_targets, device = isinstance(data, TargetData), index_device(device)
    columns: Extras = {}
    chosen = find_kernel(kernel) if isinstance(kernel, str) else kernel

    def prepare(view: RankView) -> PreparedStep[MicroBatchWork]:
        nonlocal columns
        check_sequence_parallel(view, heads, kv_heads)
        check_modes(view, modes, model)
        check_expert_parallel(view, blocks)
        check_repeated_modes(view, modes, model)
        batches = [
            (pipeline, micro_batch)
            for pipeline in view.pipelines
            for micro_batch in pipeline.micro_batches
        ]
        overlap = can_overlap_reduction(view.placement)
        work: list[MicroBatchWork] = []
        copy = PackedCopy(device, TOKEN_BYTES * sum(batch.local_tokens for _, batch in batches))
        for pipeline, micro_batch in batches:
            share = load_share(data, micro_batch, step=view.step)
            labels, targets = share.labels, None
            if isinstance(data, TargetData):
                targets = load_targets(data, micro_batch, step=view.step)
                labels, columns = targets.labels, targets.extras
            if vocab is not None:
                _check_known_tokens(share.tokens, labels, vocab, micro_batch, view.step)
            counts = labels != NO_LABEL
            weights = None if targets is None else copy.add(targets.weights)
            extras = {} if targets is None else targets.extras
            work.append(
                MicroBatchWork(
                    tokens=copy.add(share.tokens),
                    labels=copy.add(labels),
                    context=attention_context(
                        pipeline,
                        micro_batch,
                        peers,
                        device=device,
                        copy=copy.add,
                        kernel=chosen,
                        masks=masks,
                    ),
                    last=False,
                    weights=weights,
                    extras={name: copy.add(values) for name, values in extras.items()},
                    shares=micro_batch.sequences,
                    labeled=int(counts.sum()),
                    weight=float(counts.sum() if targets is None else targets.weights.sum()),
                )
            )

        def make_empty() -> MicroBatchWork:
            nonlocal columns
            columns = columns or _learn_columns(data)
            return _make_empty(columns, has_targets, device)

        work = fill_micro_steps(view, work, make_empty)
        if work and overlap:
            work[-1] = replace(work[-1], last=True)
        copy.start()
        return PreparedStep(work, copy, has_targets=has_targets)

    return DataPreparer(data, prepare)


def _learn_columns(data: TokenData) -> Extras:
    """Return per-token columns of the data, for a rank that has had no tokens yet."""
    if not isinstance(data, TargetData):
        return {}
    try:
        return data.targets(0, 0, 0).extras
    except Exception:  # the data has no sample 0, and raises errors of any type
        return {}


def _make_empty(columns: Extras, has_targets: bool, device: torch.device) -> MicroBatchWork:
    """Make a micro-step without tokens, with per-token columns without rows."""
    nothing = torch.empty(0, dtype=torch.int64, device=device)
    weights = torch.empty(0, dtype=torch.float64, device=device) if has_targets else None
    return MicroBatchWork(
        tokens=nothing,
        labels=nothing,
        context=local_context([], device=device),
        last=False,
        weights=weights,
        extras={
            name: torch.from_numpy(values[:0].copy()).to(device) for name, values in columns.items()
        },
    )


def _check_known_tokens(
    tokens: Tokens, labels: Tokens, vocab: int, view: MicroBatchView, step: int
) -> None:
    for name, ids in (("token", tokens), ("label", np.where(labels == NO_LABEL, 0, labels))):
        wrong = np.flatnonzero((ids < 0) | (ids >= vocab))
        if len(wrong):
            ends = np.cumsum([sum(b - a for a, b in share.ranges) for share in view.sequences])
            share = view.sequences[int(np.searchsorted(ends, wrong[0], side="right"))]
            raise DataError(
                f"sample {share.id} of step {step}: {name} {ids[wrong[0]]} is outside the model's "
                f"vocabulary of {vocab}"
            )
