"""A causal language model as a step calls it: a rank's tokens in, their hidden states out."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from seqplan.runtime.huggingface.attention import LayerAttention
from seqplan.runtime.huggingface.recomputation import RecomputationSwitch
from seqplan.runtime.huggingface.support import causal_lm
from seqplan.runtime.sequence_parallel.context import AttentionContext


class AttachedModel(nn.Module):
    """``model``, of transformers or wrapped by peft, called with packed tokens and a context.

    It gives hidden states; ``logits`` makes logits of them, a part of the rows at a time where
    those of all would not fit. ``with_routers``: whether a forward leaves
    ``router_logits``, of each layer with a router (local tokens, experts).
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._lm = [causal_lm(model)]  # in a list, so that it is not registered as a submodule
        self.own_attention: str = self.lm.config._attn_implementation
        self.layers = LayerAttention()
        self.recomputation = RecomputationSwitch(self.lm, attention=True)
        self.autocast: torch.dtype | None = None
        self.with_routers = False
        self.router_logits: tuple[Tensor, ...] = ()

    @property
    def lm(self) -> PreTrainedModel:
        """The model of transformers."""
        return self._lm[0]

    @property
    def decoder(self) -> nn.Module:
        """What of it makes hidden states."""
        decoder: nn.Module = self.lm.get_decoder()
        if decoder is self.lm:  # not by a name that transformers looks for
            decoder = next(
                child for child in self.lm.children() if isinstance(child, PreTrainedModel)
            )
        return decoder

    def forward(self, tokens: Tensor, context: AttentionContext) -> Tensor:
        """Compute hidden states (local tokens, hidden) of int64 tokens (local tokens,).

        A rank without a token computes one that counts nothing, as many models cannot do with
        none, and takes part in attention all the same. Layers run under the context's recomputation
        mode until the next call, as their backward reads the same context.
        """
        self.recomputation.switch(context.recompute)
        self.layers.context, self.layers.lengths = context, context.document_lengths
        return self.hidden(tokens, context.positions)

    def forget_call(self) -> None:
        """Clear the context of the last forward, and its recomputation mode."""
        self.recomputation.switch(None)
        self.layers.context = self.layers.lengths = None
        self.router_logits = ()

    def hidden(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Compute hidden states of tokens at positions, with whatever the layers attend with."""
        rows = len(tokens)
        if not rows:
            tokens, positions = tokens.new_zeros(1), positions.new_zeros(1)
        self.layers.positions = positions
        options = {"output_router_logits": True} if self.with_routers else {}
        with self._casting(tokens.device):
            output = self.decoder(
                input_ids=tokens[None], position_ids=positions[None], use_cache=False, **options
            )
        if self.with_routers:
            routers = getattr(output, "router_logits", None) or ()
            self.router_logits = tuple(
                logits.reshape(-1, logits.shape[-1])[:rows] for logits in routers
            )
        hidden: Tensor = output.last_hidden_state
        return hidden[0, :rows]

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits (tokens, vocabulary) by the model's head, with its scaling and capping."""
        with self._casting(hidden.device), _answering(self.decoder, hidden[None]):
            logits: Tensor = self.lm(inputs_embeds=hidden[None], use_cache=False).logits
        return logits[0]

    @contextmanager
    def _casting(self, device: torch.device) -> Iterator[None]:
        if self.autocast is None:
            yield
            return
        with torch.autocast(device.type, self.autocast):
            yield


class _HiddenOnly:
    """Decoder output with hidden states, and None for any other attribute."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, at: int) -> Tensor | None:
        return self.last_hidden_state if at == 0 else None

    def __getattr__(self, name: str) -> None:
        return None


@contextmanager
def _answering(decoder: nn.Module, hidden: Tensor) -> Iterator[None]:
    """Let ``decoder`` give ``hidden`` whatever it is called with: only the head is computed."""

    def answer(*_: Any, **__: Any) -> _HiddenOnly:
        return _HiddenOnly(hidden)

    original = decoder.__dict__.get("forward")
    decoder.forward = answer
    try:
        yield
    finally:
        if original is None:
            del decoder.__dict__["forward"]
        else:
            decoder.forward = original


def copy_state(model: nn.Module, left_out: Collection[str] = ()) -> dict[str, Tensor]:
    """Copy a model's tensors to the CPU: parameters are parts of buffers, which files cannot have.

    Tied ones stay tied. ``left_out``: names of tensors that are not copied.
    """
    copies: dict[tuple[int, torch.Size, torch.dtype], Tensor] = {}
    named = {}
    for name, tensor in model.state_dict().items():
        if name in left_out:
            continue
        key = (tensor.data_ptr(), tensor.shape, tensor.dtype)
        if key not in copies or not tensor.numel():
            copies[key] = tensor.detach().to("cpu", copy=True)
        named[name] = copies[key]
    return named
