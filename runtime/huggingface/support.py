"""Settings and modules of a model that a plan's ranks would not compute exactly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from seqplan.runtime.errors import UnsupportedModel
from seqplan.runtime.huggingface.attention import IMPLEMENTATION
from seqplan.runtime.huggingface.rotary import BY_LENGTH, rope_types

ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
"""Kinds of layers, as ``config.layer_types`` names them, whose every mixing is in attention."""

FIXED_ROPES = frozenset({"default", "linear", "llama3", "yarn", "proportional"})
"""Rotary embeddings whose angles depend on a token's position alone."""

STANDARD_ATTENTION = re.compile(
    "eager|sdpa|flash_attention_[234]|flex_attention|kernels-community/(vllm-)?flash-attn[0-9]?"
)
"""Implementations that compute nothing but the attention that a layer's options describe."""

_MIXERS = re.compile("Mamba|SSM|Rwkv|DeltaNet|LinearAttention|ShortConv|Recurrent|Lightning")
"""In the names of modules that mix tokens by other means than attention."""


def causal_lm(model: nn.Module) -> PreTrainedModel:
    """Return the transformers model that ``model`` is, or is wrapped around by peft.

    ``UnsupportedModel`` if there is none, or peft puts virtual tokens before the text.
    """
    configs = getattr(model, "peft_config", None)
    if configs is not None and hasattr(model, "get_base_model"):
        for name, config in configs.items():
            if config.is_prompt_learning:
                raise UnsupportedModel(
                    f"adapter {name!r} learns a prompt ({config.peft_type.value}), whose tokens no "
                    "plan has: use adapters within layers, such as LoRA"
                )
        wrapper: Any = model
        model = wrapper.get_base_model()
    if type(model).__name__ == "OptimizedModule":
        raise UnsupportedModel("the model is compiled: attach it as it is, compile its layers")
    if not isinstance(model, PreTrainedModel) or not model.can_generate():
        raise UnsupportedModel(
            f"{type(model).__name__} is no causal language model of transformers: load it with "
            "AutoModelForCausalLM"
        )
    return model


def check_supported(model: PreTrainedModel) -> None:
    """Check configuration and modules; ``UnsupportedModel`` gives the reason in one sentence."""
    for reason in _reasons(model):
        raise UnsupportedModel(f"{type(model).__name__}: {reason}")


def _reasons(model: PreTrainedModel) -> Iterator[str]:
    config = model.config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        yield "has an encoder (config.is_encoder_decoder)"
    if getattr(model, "is_quantized", False):
        yield "is quantized, which has not been tried under plans: load it in bf16 or fp32"
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) > 1 or torch.device("meta") in devices:
        yield "is spread over several devices (device_map): load it whole on this rank's device"
    if (attention := _own_attention(model)) == IMPLEMENTATION:
        yield "is attached to a job: close that job first, or load the model again"
    elif attention is not None:
        yield (
            f"attends by {attention!r} (attn_implementation), which may add biases: load it "
            "with eager, sdpa, flash_attention_2 or flex_attention if these compute the same"
        )
    if not model._can_set_attn_implementation():
        yield "does not take registered attention functions (old modelling code)"
    for number, kind in enumerate(getattr(config, "layer_types", None) or ()):
        if kind not in ATTENTION_LAYERS:
            yield (
                f"layer {number} is of kind {kind!r} (config.layer_types), which mixes tokens "
                "outside attention"
            )
    for name, module in model.named_modules():
        if _MIXERS.search(type(module).__name__) or isinstance(module, (nn.Conv1d, nn.RNNBase)):
            yield f"{name or 'it'} ({type(module).__name__}) mixes tokens outside attention"
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            yield f"{name} ({type(module).__name__}) normalizes over all tokens of a call"
        if hasattr(module, "prepare_dynamic_mask"):
            yield f"{name} ({type(module).__name__}) makes a mask from values (dynamic mask)"
        for kind in rope_types(module):
            if kind not in FIXED_ROPES | BY_LENGTH:
                yield f"{name} has rope_type {kind!r} (config.rope_parameters), which is not known"
    if getattr(config, "layerdrop", 0.0):
        yield "drops whole layers in training, others on each rank (config.layerdrop: set it to 0)"


def _own_attention(model: PreTrainedModel) -> str | None:
    """Return the implementation that is not one of transformers; None if all are."""
    for config in (model.config, model.config.get_text_config()):
        name = config._attn_implementation
        function = AttentionInterface._global_mapping.get(name)
        replaced = function is not None and not function.__module__.startswith("transformers.")
        if name is not None and (replaced or not STANDARD_ATTENTION.fullmatch(name)):
            return str(name)
    return None
