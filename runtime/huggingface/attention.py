"""What transformers' layers attend with: its registered attention and mask functions.

``find_unsupported_option`` alone lists which kinds of attention ``runtime.attention``
computes here; a kernel that learns another is named there and in ``LayerAttention.attend``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from seqplan.plans.percent import percent
from seqplan.runtime.errors import UnsupportedModel
from seqplan.runtime.huggingface.row_numbers import numbers_rows, scale_by_position
from seqplan.runtime.recomputation import run_part
from seqplan.runtime.sequence_parallel.context import AttentionContext
from seqplan.runtime.sequence_parallel.masks import Mask
from seqplan.runtime.sequence_parallel.unified import attention

IMPLEMENTATION = "seqplan"
"""The attention implementation's name at transformers."""

ATTRIBUTE = "seqplan_attention"
"""Where every module of an attached model has its ``LayerAttention``."""

NOT_CAUSAL = 0
"""The mark of a mask of no known kind; windows of n tokens are marked n, chunks −n."""

_WITHOUT_EFFECT = frozenset(
    {
        *("cache_position", "position_embeddings", "position_ids", "use_cache", "past_key_values"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict"),
        *("is_causal", "scaling", "dropout", "sliding_window", "softcap", "s_aux", "deterministic"),
        *("layer_idx", "num_items_in_batch", "target_dtype", "logits_to_keep"),
    }
)
"""Options of an attention call that change nothing here, or that are read by name."""


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """Attention options of a layer in addition to q, k and v.

    ``scale``, ``softcap`` and ``sinks`` as ``attention`` takes them; ``others``: options that
    nothing is known of.
    """

    causal: bool
    mask: Mask
    scale: float | None
    softcap: float | None
    sinks: Tensor | None
    dropout: float
    others: tuple[str, ...]


def layer_options(
    module: nn.Module, mask: Tensor | None, options: Mapping[str, Any]
) -> LayerOptions:
    """Read a layer's attention options from its call and its mask's mark."""
    others = [] if mask is None or mask.dim() == 0 else ["a custom mask"]
    mark = None if mask is None or mask.dim() else int(mask)
    window = mark if mark is not None and mark > 0 else None
    chunk = -mark if mark is not None and mark < 0 else None
    asked_window = options.get("sliding_window")
    if asked_window is not None and asked_window != window:
        others.append(f"a window of {asked_window} but a mask with another")
    sinks = options.get("s_aux")
    if sinks is not None and sinks.dim() != 1:
        others.append(f"sinks of shape {tuple(sinks.shape)}")
    causal = (
        mark != NOT_CAUSAL
        and bool(getattr(module, "is_causal", True))
        and options.get("is_causal") is not False
    )
    others += [
        name
        for name, value in options.items()
        if name not in _WITHOUT_EFFECT and value is not None and value is not False
    ]
    return LayerOptions(
        causal=causal,
        mask=Mask.from_sizes(window, chunk),
        scale=options.get("scaling"),
        softcap=options.get("softcap"),
        sinks=sinks,
        dropout=float(options.get("dropout") or 0.0),
        others=tuple(sorted(others)),
    )


def find_unsupported_option(options: LayerOptions) -> str | None:
    """Return why a layer's attention is not supported, with the config field, or None."""
    if not options.causal:
        return "attends other than causally"
    if options.dropout:
        return (
            f"drops {percent(options.dropout, 0)} of the attention weights in training "
            "(config.attention_dropout: set it to 0)"
        )
    if options.others:
        return f"passes {', '.join(options.others)} to attention, of which nothing is known"
    return None


class LayerAttention:
    """Attention of one attached model's layers, set before a forward and for its backward.

    A variable rather than an argument of the forward, as many models do not hand arguments on, and
    as layers that are computed again in backward, in autograd's threads, need it too.
    """

    def __init__(self) -> None:
        self.context: AttentionContext | None = None
        self.positions: Tensor | None = None  # of the call's rows
        self.lengths: Tensor | None = None  # of the documents of the call's rows
        self.instead: Callable[[nn.Module, Tensor, Tensor, Tensor, LayerOptions], Tensor] | None
        self.instead = None  # the probe's

    def attach(self, model: nn.Module) -> None:
        """Let every layer of ``model`` find this by itself.

        Layers that are compiled leave their graph for attention, whose ranks wait for each other.
        """
        for module in model.modules():
            setattr(module, ATTRIBUTE, self)
        if any(module._compiled_call_impl is not None for module in model.modules()):
            outside: Any = torch.compiler.disable
            self.attend = outside(self.attend)  # type: ignore[method-assign]

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        options: Mapping[str, Any],
    ) -> Tensor:
        """Compute a layer's attention: (1, heads, tokens, d) in, (1, tokens, heads, d) out.

        ``UnsupportedModel`` for what ``find_unsupported_option`` names.
        """
        if len(query) != 1:
            raise UnsupportedModel(
                f"{type(module).__name__} attends over a batch of {len(query)}: a rank has one row"
            )
        layer = layer_options(module, mask, options)
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        if numbers_rows(module) and self.positions is not None:
            q = scale_by_position(module, q, self.positions)
        if self.instead is not None:
            return self.instead(module, q, k, v, layer)[None].contiguous()
        context = self.context
        if context is None:
            raise RuntimeError(
                "an attached model is called by its job only, or in job.evaluation()"
            )
        reason = find_unsupported_option(layer)
        if reason is not None:
            raise UnsupportedModel(f"{type(module).__name__} {reason}")
        rows = context.positions.shape[0]
        # As attention does: a mode that keeps its inputs keeps them in fewer bytes.
        q, k = q.to(v.dtype), k.to(v.dtype)
        out = run_part(
            "attention",
            context.recompute,
            attention,
            q[:rows],
            k[:rows],
            v[:rows],
            context,
            scale=None if layer.scale is None else float(layer.scale),
            window=layer.mask.window,
            chunk=layer.mask.chunk,
            softcap=layer.softcap,
            sinks=layer.sinks,
        )
        # A rank without a token computes one that counts nothing, see ``AttachedModel``.
        out = nn.functional.pad(out, (0, 0, 0, 0, 0, query.shape[2] - rows))
        return out[None].contiguous()  # as transformers does: layers call view on it


def attend_attached(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as the module's job requires, for transformers' attention interface."""
    layers: LayerAttention | None = getattr(module, ATTRIBUTE, None)
    if layers is None:
        raise RuntimeError(
            f"attention {IMPLEMENTATION!r} works in attached models only: call "
            "seqplan.huggingface.attach(model, …)"
        )
    return layers.attend(module, query, key, value, attention_mask, options), None


def mark_mask(
    *_: Any,
    mask_function: Any = None,
    local_size: int | None = None,
    config: Any = None,
    **sizes: Any,
) -> Tensor | None:
    """Return a mark in place of a mask: None for the causal one, else its window or its chunk.

    For transformers' mask interface, which is called once for each kind of layer that a model may
    have, used or not: unsupported masks are rejected when a layer uses them.
    """
    chunks = local_size is not None and local_size == getattr(config, "attention_chunk_size", None)
    mask = Mask(chunk=local_size) if chunks else Mask(window=local_size)
    if LOOKING_AT_MASKS.get():
        queries = [*range(int(sizes.get("q_length") or 0))]
        if local_size is not None:  # where masks of a kind end
            queries += [local_size - 1, local_size, 2 * local_size]
        if not all(_sees(mask_function, mask, query) for query in queries):
            return torch.tensor(NOT_CAUSAL)
    return None if local_size is None else torch.tensor(-local_size if chunks else local_size)


def _sees(mask_function: Any, mask: Mask, query: int) -> bool:
    """Return whether a mask function lets a query see exactly the keys visible under ``mask``."""
    first = mask.first_seen(query)
    keys = [key for key in {*range(12), first - 1, first, query, query + 1} if key >= 0]
    at, row = torch.tensor(0), torch.tensor(query)
    return all(
        bool(mask_function(at, at, row, torch.tensor(key))) == (first <= key <= query)
        for key in keys
    )


LOOKING_AT_MASKS: ContextVar[bool] = ContextVar("looking at masks", default=False)
"""Whether masks are evaluated, entry by entry: in the probe, of one document in order."""

AttentionInterface.register(IMPLEMENTATION, attend_attached)
AttentionMaskInterface.register(IMPLEMENTATION, mark_mask)
