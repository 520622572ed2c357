"""Whether a model of transformers adds its routers' loss, and which one."""

from __future__ import annotations

import sys

from torch import Tensor
from transformers import PreTrainedModel

from seqplan.runtime.errors import UnsupportedModel
from seqplan.runtime.huggingface.attached import AttachedModel
from seqplan.runtime.losses.router_loss import RouterLoss

ATTRIBUTES = ("router_aux_loss_coef", "num_experts", "num_experts_per_tok")
"""Of a model of transformers that adds this loss."""

FUNCTION = "load_balancing_loss_func"
"""By which such a model's module computes it."""

TOLERANCE = 1e-3
"""Relative, between the model's loss of a few tokens and this one: routers round in bf16."""


def router_loss(model: AttachedModel, tokens: Tensor, positions: Tensor) -> RouterLoss | None:
    """Return the routers' loss if the configuration enables it, checked on a few tokens.

    ``UnsupportedModel`` if the model computes another one.
    """
    lm = model.lm
    if not getattr(lm.config.get_text_config(), "output_router_logits", False):
        return None
    name = type(lm).__name__
    if not (all(hasattr(lm, attribute) for attribute in ATTRIBUTES) and _has_function(lm)):
        raise UnsupportedModel(
            f"{name}: adds an auxiliary loss of its routers (config.output_router_logits) in a way "
            "that is not known: set it to False"
        )
    coefficient, experts, top_k = (getattr(lm, attribute) for attribute in ATTRIBUTES)
    loss = RouterLoss(int(experts), int(top_k), float(coefficient))
    model.with_routers = True
    model.hidden(tokens, positions)
    reference = lm(
        input_ids=tokens[None],
        position_ids=positions[None],
        use_cache=False,
        output_router_logits=True,
    ).aux_loss
    logits = model.router_logits
    if logits and all(layer_logits.shape == (len(tokens), loss.experts) for layer_logits in logits):
        weights = loss.weights(loss.counts(logits), len(logits) * len(tokens))
        ours = float((weights * loss.probabilities(logits)).sum())
        if abs(ours - loss.coefficient * float(reference)) <= TOLERANCE * abs(ours):
            return loss
    raise UnsupportedModel(
        f"{name}: its routers' auxiliary loss (config.output_router_logits) is not that of Switch "
        "Transformers: set it to False"
    )


def _has_function(lm: PreTrainedModel) -> bool:
    return hasattr(sys.modules[type(lm).__module__], FUNCTION)
