"""What attention needs to know of a micro-batch on a rank, made ahead of the step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from seqplan.plans.views.micro_batch_view import MicroBatchView
from seqplan.plans.views.rank_view import PipelineView
from seqplan.runtime.device_copy import copy_to_device
from seqplan.runtime.sequence_parallel.kernels import Kernel, Rows
from seqplan.runtime.sequence_parallel.masks import Mask
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.sequence_parallel.ring_layout import GATHER_BELOW, RingLayout, ring_layout
from seqplan.runtime.sequence_parallel.ulysses import UlyssesLayout


class DeviceIndices:
    """Indices of a micro-batch's rows and heads, copied to the device once."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[Hashable, torch.device], Tensor] = {}
        self._follow: dict[Hashable, bool] = {}

    def tensor(self, name: Hashable, index: npt.NDArray[np.int64], device: torch.device) -> Tensor:
        """Return ``index``, which ``name`` stands for, as an int64 tensor on ``device``."""
        key = (name, device)
        if key not in self._tensors:
            self._tensors[key] = copy_to_device(index, device)
        return self._tensors[key]

    def rows(self, name: Hashable, numbers: npt.NDArray[np.int64], device: torch.device) -> Rows:
        """Return row numbers as a range if they follow each other, else as an index."""
        if len(numbers) and numbers[-1] - numbers[0] == len(numbers) - 1:
            if name not in self._follow:
                self._follow[name] = bool((np.diff(numbers) == 1).all())
            if self._follow[name]:
                return slice(int(numbers[0]), int(numbers[-1]) + 1)
        return self.tensor(name, numbers, device)


@dataclass(frozen=True, slots=True)
class AttentionContext:
    """Everything that attention needs to know of a micro-batch on this rank.

    ``positions``: int64 (local tokens,), each token's position in its document, for RoPE;
    ``document_lengths``: int64 (local tokens,), tokens of the document that each is of;
    ``lengths``: tokens of the micro-batch's whole documents, in packed order, the same on all ranks
    of the pipeline; ``ring``: the layout of layers without mask, see ``layout``; ``kernel``: chosen
    by the tensors' device, dtype and head dimension if None; ``recompute``: recomputation mode that
    the model's layers apply (``recomputation.run_part``), the model's setting if None.
    """

    positions: Tensor
    document_lengths: Tensor
    lengths: tuple[int, ...]
    ulysses: UlyssesLayout
    ring: RingLayout
    ring_ranks: tuple[int, ...]
    peers: Peers
    kernel: Kernel | None = None
    gather_below: int = GATHER_BELOW
    recompute: str | None = None
    indices: DeviceIndices = field(default_factory=DeviceIndices, compare=False, repr=False)
    _layouts: dict[Mask, RingLayout] = field(default_factory=dict, compare=False, repr=False)
    _calls: list[int] = field(default_factory=lambda: [0], compare=False, repr=False)

    def layout(self, mask: Mask) -> RingLayout:
        """Return the ring's layout for layers with ``mask``, made once."""
        if not any(mask.cuts(length) for length in self.lengths):
            return self.ring
        if mask not in self._layouts:
            self._layouts[mask] = ring_layout(
                self.lengths,
                self.ring.ring,
                self.ring.rank,
                mask,
                gather_below=self.gather_below,
            )
        return self._layouts[mask]

    def forget_calls(self) -> None:
        """Forget calls of attention before a forward: of recomputation or of a failed step."""
        self._calls[0] = 0

    def count_call(self) -> None:
        """Note that attention was called with this context."""
        self._calls[0] += 1

    def attention_calls(self, before: int | None = None) -> int:
        """Return how often attention was called since ``forget_calls``: layers, after a forward.

        ``before``: the count of another micro-batch. ``ValueError`` if there were none though
        documents or ranks share the micro-batch, or another number than before: the model attends
        by other means than ``seqplan.runtime.attention``, and its numbers are wrong.
        """
        calls = self._calls[0]
        ranks = len(self.ulysses.ranks) * self.ring.ring
        if not calls and (len(self.lengths) > 1 or ranks > 1):
            raise ValueError(
                "the model did not call seqplan.runtime.attention with the context of a "
                f"micro-batch of {len(self.lengths)} documents on {ranks} ranks: its tokens "
                "would attend across documents and not across ranks"
            )
        if before is not None and calls and before and calls != before:
            raise ValueError(
                f"the model called seqplan.runtime.attention {calls} times for a micro-batch and "
                f"{before} times for the one before: every layer must call it for each"
            )
        return calls


def local_context(
    lengths: Sequence[int], *, device: torch.device | str = "cpu"
) -> AttentionContext:
    """Return the context of whole documents packed on this rank alone, for evaluation.

    ``lengths``: tokens of each, in packed order.
    """
    tokens = sum(lengths)
    positions = [torch.arange(length) for length in lengths]
    document_lengths = [torch.full((length,), length) for length in lengths]
    return AttentionContext(
        positions=copy_to_device(torch.cat(positions or [torch.arange(0)]), device),
        document_lengths=copy_to_device(torch.cat(document_lengths or [torch.arange(0)]), device),
        lengths=tuple(lengths),
        ulysses=UlyssesLayout.from_rank(tokens, (0,), 0),
        ring=ring_layout(lengths, 1, 0),
        ring_ranks=(0,),
        peers=Peers(None),
    )


def attention_context(
    pipeline: PipelineView,
    micro_batch: MicroBatchView,
    peers: Peers,
    *,
    device: torch.device | str = "cpu",
    copy: Callable[[npt.NDArray[Any]], Tensor] | None = None,
    kernel: Kernel | None = None,
    gather_below: int = GATHER_BELOW,
    masks: Collection[Mask] = (),
) -> AttentionContext:
    """Prepare the context of one of a rank view's micro-batches, without communication.

    ``copy``: copies to the device, at once if None; ``gather_below``: see ``ring_layout``;
    ``masks``: those of the model's layers, which are laid out here and not in the first layer that
    has one.
    """
    scheme, at = pipeline.scheme, pipeline.at
    copy = copy or partial(copy_to_device, device=device)
    layout = ring_layout(
        [share.length for share in micro_batch.sequences],
        scheme.ring,
        at.ring,
        gather_below=gather_below,
    )
    context = AttentionContext(
        positions=copy(micro_batch.positions()),
        document_lengths=copy(micro_batch.document_lengths()),
        lengths=tuple(share.length for share in micro_batch.sequences),
        ulysses=UlyssesLayout.from_rank(layout.tokens, pipeline.ulysses_group, at.ulysses),
        ring=layout,
        ring_ranks=pipeline.ring_group,
        peers=peers,
        kernel=kernel,
        gather_below=gather_below,
        recompute=micro_batch.recompute,
    )
    for mask in masks:
        context.layout(mask)
    return context
