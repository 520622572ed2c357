"""What transformers' layers attend with: its registered attention and mask functions.

``attention_refusal`` is the one place that says which kinds of attention ``runtime.attention``
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

from seqplan.runtime.errors import UnsupportedModel
from seqplan.runtime.sequence_parallel.context import AttentionContext
from seqplan.runtime.sequence_parallel.unified import attention

IMPLEMENTATION = "seqplan"
"""The attention implementation's name at transformers."""

ATTRIBUTE = "seqplan_attention"
"""Where every module of a hosted model has its ``LayerAttention``."""

NOT_CAUSAL = -1
"""The mark of a mask that is not the causal one; others are how many tokens a query sees."""

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
    """What a layer asks of attention beyond q, k and v.

    ``window``: tokens that a query sees at most, None for all before it, whether as a window that
    slides or as a chunk; ``others``: options that nothing is known of.
    """

    causal: bool
    window: int | None
    softcap: float | None
    sinks: bool
    dropout: float
    others: tuple[str, ...]


def layer_options(
    module: nn.Module, mask: Tensor | None, options: Mapping[str, Any]
) -> LayerOptions:
    """Read what a layer asks of attention, from its call and the mark in place of its mask."""
    others = [] if mask is None or mask.dim() == 0 else ["a mask of its own making"]
    mark = None if mask is None or mask.dim() else int(mask)
    limits = [] if mark is None or mark == NOT_CAUSAL else [mark]
    if options.get("sliding_window") is not None:
        limits.append(int(options["sliding_window"]))
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
        window=min(limits, default=None),
        softcap=options.get("softcap"),
        sinks=options.get("s_aux") is not None,
        dropout=float(options.get("dropout") or 0.0),
        others=tuple(sorted(others)),
    )


def attention_refusal(options: LayerOptions) -> str | None:
    """Say what of a layer's attention is not computed, with the config field; None where all is.

    Windows are not refused here: they hide nothing of shorter documents (``longest_document``).
    """
    if not options.causal:
        return "attends other than causally"
    if options.softcap is not None:
        return f"caps scores at {options.softcap} (config.attn_logit_softcapping)"
    if options.sinks:
        return "has attention sinks (the layer's sinks)"
    if options.dropout:
        return (
            f"drops {options.dropout:.0%} of the attention weights in training "
            "(config.attention_dropout: set it to 0)"
        )
    if options.others:
        return f"passes {', '.join(options.others)} to attention, of which nothing is known"
    return None


class LayerAttention:
    """What the layers of one hosted model attend with, set before a forward and for its backward.

    A variable rather than an argument of the forward, as many models do not hand arguments on, and
    as layers that are computed again in backward, in threads of autograd's own, need it too.
    """

    def __init__(self) -> None:
        self.context: AttentionContext | None = None
        self.instead: Callable[[nn.Module, Tensor, Tensor, Tensor, LayerOptions], Tensor] | None
        self.instead = None  # the probe's

    def attach(self, model: nn.Module) -> None:
        """Let every layer of ``model`` find this by itself."""
        for module in model.modules():
            setattr(module, ATTRIBUTE, self)

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

        ``UnsupportedModel`` for what ``attention_refusal`` names.
        """
        if len(query) != 1:
            raise UnsupportedModel(
                f"{type(module).__name__} attends over a batch of {len(query)}: a rank has one row"
            )
        asked = layer_options(module, mask, options)
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        if self.instead is not None:
            return self.instead(module, q, k, v, asked)[None]
        context = self.context
        if context is None:
            raise RuntimeError("a hosted model is called by its job only, or in job.evaluation()")
        longest = max(context.lengths, default=0)
        reason = attention_refusal(asked)
        if reason is None and asked.window is not None and asked.window < longest:
            reason = f"sees {asked.window} tokens of a document of {longest}"
        if reason is not None:
            raise UnsupportedModel(f"{type(module).__name__} {reason}")
        scale = options.get("scaling")
        rows, width = context.positions.shape[0], v.shape[2]
        scale = q.shape[2] ** -0.5 if scale is None else float(scale)
        widest = max(q.shape[2], width)  # of latent attention, values are narrower than keys
        q, k, v = (
            nn.functional.pad(tensor[:rows], (0, widest - tensor.shape[2])) for tensor in (q, k, v)
        )
        out = attention(q, k, v, context, scale=scale)[:, :, :width]
        # A rank without a token computes one that counts nothing, see ``HostedModel``.
        return nn.functional.pad(out, (0, 0, 0, 0, 0, query.shape[2] - rows))[None]


def hosted_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as the module's job says, for transformers' attention interface."""
    layers: LayerAttention | None = getattr(module, ATTRIBUTE, None)
    if layers is None:
        raise RuntimeError(
            f"attention {IMPLEMENTATION!r} is for models that seqplan hosts: call host(model, …)"
        )
    return layers.attend(module, query, key, value, attention_mask, options), None


def marked_mask(
    *_: Any, mask_function: Any = None, local_size: int | None = None, **sizes: Any
) -> Tensor | None:
    """Return a mark in place of a mask: None for the causal one, else how far a query sees.

    For transformers' mask interface, which is asked once for each kind of layer that a model may
    have, used or not: what is not supported is refused where a layer uses it.
    """
    length = int(sizes.get("q_length") or 0)
    if LOOKING_AT_MASKS.get() and (local_size is None or local_size >= length):
        at = torch.tensor(0)
        tokens = [torch.tensor(token) for token in range(length)]
        seen = [[bool(mask_function(at, at, q, kv)) for kv in tokens] for q in tokens]
        if seen != [[kv <= q for kv in range(length)] for q in range(length)]:
            return torch.tensor(NOT_CAUSAL)
    return None if local_size is None else torch.tensor(local_size)


LOOKING_AT_MASKS: ContextVar[bool] = ContextVar("looking at masks", default=False)
"""Whether masks are evaluated, entry by entry: in the probe, of one document in order."""

AttentionInterface.register(IMPLEMENTATION, hosted_attention)
AttentionMaskInterface.register(IMPLEMENTATION, marked_mask)
