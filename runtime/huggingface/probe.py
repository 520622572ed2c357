"""A forward of a few tokens before the first step, to see what a model computes and how.

It is computed twice: a document as it is, and a few of its tokens in another order, with what
attention gave them before. Where everything outside attention works token by token, both agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seqplan.runtime.errors import UnsupportedModel
from seqplan.runtime.huggingface.attention import (
    LOOKING_AT_MASKS,
    LayerOptions,
    attention_refusal,
)
from seqplan.runtime.huggingface.hosted import HostedModel
from seqplan.runtime.huggingface.rotary import rope_limit
from seqplan.runtime.huggingface.router_loss import RouterLoss, router_loss
from seqplan.runtime.huggingface.row_numbers import numbers_rows
from seqplan.runtime.sequence_parallel.masks import Mask

TOKENS = 12
PART = (9, 2, 10, 3, 5)
"""The tokens of the second forward, in its order."""

TOLERANCES = {torch.float64: 1e-4, torch.float32: 1e-4}
"""Relative, of a layer's q, k and v: transformers' norms and rotary embeddings are fp32."""

COARSE = 0.05
"""Of shorter dtypes, where rounding hides what is smaller."""


@dataclass(frozen=True, slots=True)
class Attends:
    """How a model attends: its layers' pairs of query and key heads, and masks.

    ``router_loss``: what its routers add to the loss, None where nothing.
    """

    heads: frozenset[tuple[int, int]]
    masks: frozenset[Mask]
    router_loss: RouterLoss | None = None


@dataclass(slots=True)
class _Record:
    """What the layers asked of attention and got, in the order of their calls."""

    modules: list[nn.Module] = field(default_factory=list)
    options: list[LayerOptions] = field(default_factory=list)
    inputs: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def __call__(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, options: LayerOptions
    ) -> Tensor:
        self.modules.append(module)
        self.options.append(options)
        self.inputs.append((q, k, v))
        self.outputs.append(_dense(q, k, v))
        return self.outputs[-1]


def probe(model: HostedModel) -> Attends:
    """See how ``model`` attends; leaves it as it was, in training or not.

    ``UnsupportedModel``, naming the layer, for attention that is not computed under plans, for
    layers that do not attend, and where something outside attention mixes tokens.
    """
    device = next(model.parameters()).device
    config = model.lm.config.get_text_config()
    tokens = torch.arange(TOKENS, device=device) % config.vocab_size
    # The last positions that the model knows: some of it changes with position in large steps.
    limits = [limit for module in model.lm.modules() if (limit := rope_limit(module)) is not None]
    last = min([int(getattr(config, "max_position_embeddings", 0) or 0), *limits])
    positions = tokens.new_tensor(range(TOKENS)) + max(last - TOKENS, 0)
    training = model.training
    looking = LOOKING_AT_MASKS.set(True)
    try:
        with torch.no_grad(), torch.random.fork_rng(_cuda(device)):
            record = _Record()
            model.layers.instead = record
            model.train()  # dropout of attention is asked for in training only
            model.hidden(tokens, positions)
            _refuse_layers(model, record)
            _refuse_numbered_rows(model, record, tokens, positions)
            model.eval()
            whole = _Record()
            model.layers.instead = whole
            hidden = model.hidden(tokens, positions)
            LOOKING_AT_MASKS.set(False)
            _refuse_mixing(model, whole, hidden, tokens, positions)
            model.layers.instead = _Record()
            routers = router_loss(model, tokens, positions)
    finally:
        LOOKING_AT_MASKS.reset(looking)
        model.layers.instead = None
        model.train(training)
    heads = frozenset((q.shape[1], k.shape[1]) for q, k, _ in whole.inputs)
    return Attends(heads, frozenset(options.mask for options in record.options), routers)


def _refuse_layers(model: HostedModel, record: _Record) -> None:
    name = type(model.lm).__name__
    for module, options in zip(record.modules, record.options, strict=True):
        reason = attention_refusal(options)
        if reason is not None:
            raise UnsupportedModel(f"{name}: layer {_number(module)} {reason}")
    layers = int(model.lm.config.get_text_config().num_hidden_layers)
    numbers = [_number(module) for module in record.modules]
    missing = sorted(set(map(str, range(layers))) - set(numbers))
    if len(numbers) != layers or missing:
        which = f"layers {', '.join(missing)} do" if missing else "not every layer does"
        raise UnsupportedModel(
            f"{name}: {which} not attend by transformers' attention interface once: {len(numbers)} "
            f"calls for {layers} layers (config.num_hidden_layers)"
        )


class _Numbering(TorchFunctionMode):
    """Notes the layers that make a number for each row of a call by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.layer: nn.Module | None = None
        self.layers: list[nn.Module] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.arange and self.layer is not None and result.numel() == TOKENS:
            self.layers.append(self.layer)
        return result


def _refuse_numbered_rows(
    model: HostedModel, record: _Record, tokens: Tensor, positions: Tensor
) -> None:
    """Refuse layers that count rows where they should read positions.

    The forwards that are compared do not show it where such numbers matter in thousands only.
    """
    numbering = _Numbering()

    def entered(module: nn.Module, _: Any) -> None:
        numbering.layer = module

    def left(module: nn.Module, _: Any, __: Any) -> None:
        numbering.layer = None

    hooks = [module.register_forward_pre_hook(entered) for module in record.modules]
    hooks += [module.register_forward_hook(left) for module in record.modules]
    try:
        with numbering:
            model.hidden(tokens, positions)
    finally:
        for hook in hooks:
            hook.remove()
    unknown = [layer for layer in numbering.layers if not numbers_rows(layer)]
    if unknown:
        raise UnsupportedModel(
            f"{type(model.lm).__name__}: layer {_number(unknown[0])} numbers the rows of "
            "a call by itself and does not take position_ids for it"
        )


def _refuse_mixing(
    model: HostedModel, whole: _Record, hidden: Tensor, tokens: Tensor, positions: Tensor
) -> None:
    part = torch.tensor(PART, device=tokens.device)
    before = iter(zip(whole.modules, whole.inputs, whole.outputs, strict=True))

    def replayed(
        module: nn.Module, q: Tensor, k: Tensor, v: Tensor, options: LayerOptions
    ) -> Tensor:
        _, inputs, output = next(before)
        for one, other in zip((q, k, v), inputs, strict=True):
            _refuse_differing(
                model, one, other[part], f"before layer {_number(module)}'s attention"
            )
        return output[part]

    model.layers.instead = replayed
    again = model.hidden(tokens[part], positions[part])
    _refuse_differing(model, again, hidden[part], "after the last layer")


def _refuse_differing(model: HostedModel, some: Tensor, same: Tensor, where: str) -> None:
    limit = TOLERANCES.get(some.dtype, COARSE)
    difference = (some.double() - same.double()).norm() / same.double().norm().clamp_min(1e-30)
    if not float(difference) <= limit:
        raise UnsupportedModel(
            f"{type(model.lm).__name__}: {where} a token depends on what else is in the call, "
            f"by {float(difference):.1e}: something outside attention mixes tokens, or does not "
            "take positions from position_ids"
        )


def _dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend causally over one short document: (tokens, heads, d), values of any width."""
    group = q.shape[1] // k.shape[1]
    keys, values = (t.repeat_interleave(group, 1).float() for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * q.shape[2] ** -0.5
    scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).to(v.dtype)


def _number(module: nn.Module) -> str:
    return str(getattr(module, "layer_idx", "?"))


def _cuda(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []
