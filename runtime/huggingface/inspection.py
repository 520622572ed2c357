"""Whether every rank's model can be attached, and preparation of its steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.communicators import Communicators, gather_objects
from seqplan.runtime.data.comparison import DataPreparer
from seqplan.runtime.data.micro_batch import MicroBatchWork
from seqplan.runtime.data.prepared_step import PreparedStep
from seqplan.runtime.data.tokens import TokenData
from seqplan.runtime.errors import UnsupportedModel
from seqplan.runtime.experts.blocks import ExpertBlocks
from seqplan.runtime.huggingface.attached import AttachedModel
from seqplan.runtime.huggingface.attention import IMPLEMENTATION
from seqplan.runtime.huggingface.probe import Attends, probe
from seqplan.runtime.huggingface.rotary import rotate_by_document
from seqplan.runtime.huggingface.support import check_supported
from seqplan.runtime.sequence_parallel.kernels import Kernel
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.training.prepare import check_sequence_parallel, make_preparer


def inspect_on_all_ranks(
    model: nn.Module,
    autocast: torch.dtype | None,
    groups: Communicators,
    kernel: Kernel | None = None,
) -> tuple[AttachedModel, Attends]:
    """Attach the model if every rank's can be; ``UnsupportedModel`` on all of them or on none.

    ``kernel``: which has to support the attention of all layers.
    """
    reason: str | None = None
    attached: AttachedModel | None = None
    try:
        attached = AttachedModel(model)
        check_supported(attached.lm)
        attached.autocast = autocast
        attached.lm.set_attn_implementation(IMPLEMENTATION)
        attached.layers.attach(model)
        rotate_by_document(model, attached.layers)
        attends = probe(attached)
        if kernel is not None:
            _check_kernel(kernel, attends, next(model.parameters()).device)
    except UnsupportedModel as error:
        reason = str(error)
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        reason = f"{type(model).__name__}: a forward of a few tokens fails: {text}"
    doing = "comparing what the ranks' models can do"
    for rank, message in enumerate(gather_objects(reason, groups.control, doing)):
        if message is not None:
            if attached is not None:  # as it was
                attached.lm.set_attn_implementation(attached.own_attention)
            raise UnsupportedModel(message if rank == 0 else f"rank {rank}: {message}")
    assert attached is not None
    return attached, attends


def _check_kernel(kernel: Kernel, attends: Attends, device: torch.device) -> None:
    for call in attends.calls:
        reason = call.find_unsupported(kernel, device)
        if reason is not None:
            raise UnsupportedModel(
                f"kernel {kernel.name!r} does not support the model's attention: {reason}. "
                "Choose another, or none for the first that does"
            )


def make_attached_preparer(
    attached: AttachedModel,
    attends: Attends,
    data: TokenData,
    groups: Communicators,
    device: torch.device,
    kernel: Kernel | None = None,
    blocks: ExpertBlocks | None = None,
) -> Callable[[RankView], PreparedStep[MicroBatchWork]]:
    """Return the function that prepares an attached model's steps, see ``make_preparer``."""
    (heads, kv_heads), *others = sorted(attends.heads)
    prepare = make_preparer(
        data,
        Peers(groups.attention),
        heads=heads,
        kv_heads=kv_heads,
        vocab=int(attached.lm.config.get_text_config().vocab_size),
        device=device,
        masks=attends.masks,
        modes=attached.recomputation.applied,
        model=type(attached.lm).__name__,
        kernel=kernel,
        blocks=blocks,
    )

    def prepare_checked(view: RankView) -> PreparedStep[MicroBatchWork]:
        for more in others:
            check_sequence_parallel(view, *more)
        return prepare(view)

    return DataPreparer(data, prepare_checked)
