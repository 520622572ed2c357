"""Forwards of a few documents before the first step, which show how a model computes.

Documents go through the model as they are, then their rows in another order, each with the
attention result that it had before. If everything outside attention works token by token, queries,
keys, values and logits agree, in training mode without dropout and in evaluation mode.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from seqplan.runtime.errors import KeptResultChanged, UnsupportedModel
from seqplan.runtime.huggingface.attached import AttachedModel
from seqplan.runtime.huggingface.attention import (
    LOOKING_AT_MASKS,
    LayerOptions,
    find_unsupported_option,
)
from seqplan.runtime.huggingface.probe_rows import (
    DeterministicForward,
    draw_rows,
    make_documents,
)
from seqplan.runtime.huggingface.rotary import rope_limit
from seqplan.runtime.huggingface.router_loss import router_loss
from seqplan.runtime.huggingface.row_numbers import numbers_rows
from seqplan.runtime.losses.router_loss import RouterLoss
from seqplan.runtime.recomputation import SELECTIVE_MODES
from seqplan.runtime.sequence_parallel.kernels import Kernel, Scores
from seqplan.runtime.sequence_parallel.masks import Mask

TOKENS = 12
"""Tokens of the document whose masks are evaluated entry by entry."""

TOLERANCES = {torch.float64: 1e-4, torch.float32: 1e-4}
"""Relative, of a layer's q, k and v: transformers' norms and rotary embeddings are fp32."""

COARSE = 0.05
"""Tolerance of 16-bit dtypes, whose rounding hides smaller differences."""


class AttentionCall(NamedTuple):
    """What kernels have to support of a layer: widths of heads, dtype, and scores."""

    width: int
    value_width: int
    dtype: torch.dtype
    scores: Scores

    def find_unsupported(self, kernel: Kernel, device: torch.device) -> str | None:
        """Return why a kernel cannot run the layer, or None."""
        q, v = (
            torch.empty(0, 1, width, dtype=self.dtype, device=device)
            for width in (self.width, self.value_width)
        )
        return kernel.find_unsupported(q, v, self.scores)


@dataclass(frozen=True, slots=True)
class Attends:
    """How a model attends: its layers' pairs of query and key heads, and masks.

    ``router_loss``: the routers' term of the loss, or None; ``calls``: of each kind of layer.
    """

    heads: frozenset[tuple[int, int]]
    masks: frozenset[Mask]
    router_loss: RouterLoss | None = None
    calls: tuple[AttentionCall, ...] = ()


@dataclass(slots=True)
class _Record:
    """Arguments and results of the layers' attention calls, in order."""

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


def probe(model: AttachedModel) -> Attends:
    """Find out how ``model`` attends; leaves it as it was, in training or not.

    ``UnsupportedModel``, naming the layer, for attention that is not computed under plans, for
    layers that do not attend, and if something outside attention mixes tokens.
    """
    device = next(model.parameters()).device
    config = model.lm.config.get_text_config()
    tokens = torch.arange(TOKENS, device=device) % config.vocab_size
    # The last positions that the model knows: some of it changes with position in large steps.
    limits = [limit for module in model.lm.modules() if (limit := rope_limit(module)) is not None]
    last = min([int(getattr(config, "max_position_embeddings", 0) or 0), *limits])
    positions = tokens.new_tensor(range(TOKENS)) + max(last - TOKENS, 0)
    training = model.training
    try:
        with torch.no_grad(), torch.random.fork_rng(_cuda(device)), _run_eagerly(model):
            record = _Record()
            model.layers.instead = record
            model.train()  # layers pass attention dropout in training only
            looking = LOOKING_AT_MASKS.set(True)
            try:
                model.hidden(tokens, positions)
            finally:
                LOOKING_AT_MASKS.reset(looking)
            _check_layers(model, record)
            documents = make_documents(int(config.vocab_size), last, device)
            for mode in (True, False):
                model.train(mode)
                _check_mixing(model, record.modules, *documents)
            model.layers.instead = _Record()
            routers = router_loss(model, tokens, positions)
            _check_modes(model, tokens, positions)
    finally:
        model.layers.instead = None
        model.train(training)
    heads = frozenset((q.shape[1], k.shape[1]) for q, k, _ in record.inputs)
    calls = dict.fromkeys(
        AttentionCall(
            q.shape[2],
            v.shape[2],
            v.dtype,
            Scores(1.0, options.softcap, causal=True, window=options.mask.reach),
        )
        for (q, _, v), options in zip(record.inputs, record.options, strict=True)
    )
    masks = frozenset(options.mask for options in record.options)
    return Attends(heads, masks, routers, tuple(calls))


def _check_modes(model: AttachedModel, tokens: Tensor, positions: Tensor) -> None:
    """Remove the selective modes whose kept tensors the model changes in place."""
    model.train()
    for mode in set(model.recomputation.modes) & set(SELECTIVE_MODES):
        model.recomputation.switch(mode)
        try:
            with torch.enable_grad():
                model.hidden(tokens, positions)
        except KeptResultChanged:
            model.recomputation.remove(mode)
    model.recomputation.switch(None)


def _check_layers(model: AttachedModel, record: _Record) -> None:
    name = type(model.lm).__name__
    for module, options in zip(record.modules, record.options, strict=True):
        reason = find_unsupported_option(options)
        if reason is not None:
            raise UnsupportedModel(f"{name}: layer {_number(module)} {reason}")
    layers = int(model.lm.config.get_text_config().num_hidden_layers)
    numbers = [_number(module) for module in record.modules]
    missing = sorted(set(map(str, range(layers))) - set(numbers))
    if len(numbers) != layers or missing:
        which = f"layers {', '.join(missing)} do not" if missing else "some layers do not"
        raise UnsupportedModel(
            f"{name}: {which} attend by transformers' attention interface once: {len(numbers)} "
            f"calls for {layers} layers (config.num_hidden_layers)"
        )


def _check_mixing(
    model: AttachedModel, layers: list[nn.Module], tokens: Tensor, positions: Tensor
) -> None:
    """Compare rows of documents with the same rows among others, in the model's present mode."""
    whole = _Record()
    model.layers.instead = whole
    with DeterministicForward(layers) as forward:
        hidden = model.hidden(tokens, positions)
        logits = model.logits(hidden)
    unknown = [layer for layer in forward.numbering if not numbers_rows(layer)]
    if unknown:
        raise UnsupportedModel(
            f"{type(model.lm).__name__}: layer {_number(unknown[0])} numbers the rows of "
            "a call by itself and does not take position_ids for it"
        )
    part = draw_rows(tokens.device)
    before = iter(zip(whole.inputs, whole.outputs, strict=True))

    def replay(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, options: LayerOptions) -> Tensor:
        inputs, output = next(before)
        for one, other in zip((q, k, v), inputs, strict=True):
            _check_alike(model, one, other[part], f"before layer {_number(module)}'s attention")
        return output[part]

    model.layers.instead = replay
    with DeterministicForward([]):
        again = model.hidden(tokens[part], positions[part])
        _check_alike(model, again, hidden[part], "after the last layer")
        _check_alike(model, model.logits(again), logits[part], "in the logits")


def _check_alike(model: AttachedModel, some: Tensor, same: Tensor, where: str) -> None:
    limit = TOLERANCES.get(some.dtype, COARSE)
    # Logits of unused words may be infinite.
    difference = torch.where(some == same, 0.0, some.float() - same.float()).norm()
    difference /= same.float().clamp(-1e4, 1e4).norm().clamp_min(1e-30)
    if not float(difference) <= limit:
        mode = "training" if model.training else "evaluation"
        raise UnsupportedModel(
            f"{type(model.lm).__name__}: {where} a token depends on what else is in the call, by "
            f"{float(difference):.1e} in {mode} mode: something outside attention mixes tokens, or "
            "does not take positions from position_ids"
        )


def _run_eagerly(model: AttachedModel) -> AbstractContextManager[None]:
    """Run compiled layers as they are, which modes and hooks can observe."""
    if any(module._compiled_call_impl is not None for module in model.modules()):
        stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
        return stance
    return nullcontext()


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
