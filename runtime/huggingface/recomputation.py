"""A model of transformers under the recomputation mode of each micro-batch.

Its layers read a flag of theirs at every forward, and run themselves by a function that may be
replaced. Both are switched before a forward. Backward does not read them, as each layer has what it
computes again in its graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

from torch import nn

from seqplan.plans.recomputation import MODES, is_offloaded, split_mode
from seqplan.runtime.recomputation import LAYER_MODES, OFFLOAD, run_layer, run_part

FEED_FORWARDS = ("mlp", "feed_forward", "block_sparse_moe", "moe", "ffn")
"""Names of a layer's feed-forward in transformers."""

FLAG, FUNCTION = "gradient_checkpointing", "_gradient_checkpointing_func"


@cache
def _layer_function(mode: str, place: int) -> Callable[..., Any]:
    """Return the function that runs a layer, always the same, as compiled layers compare it."""
    return partial(run_layer, mode, place)


class RecomputationSwitch:
    """Switches the layers of ``model``, of transformers, to a mode and back to its settings.

    ``modes``: those that it can be switched to. ``attention_core`` is among them if the layers'
    attention applies it (``attention``).
    """

    def __init__(self, model: nn.Module, *, attention: bool = False) -> None:
        self._flagged = [module for module in model.modules() if hasattr(module, FLAG)]
        self._feed_forwards = _find_feed_forwards(model)
        compiled = any(module._compiled_call_impl is not None for module in model.modules())
        self._compiled = compiled
        known = {"none"}
        if attention:
            known.add("attention_core")
        if self._flagged and getattr(model, "supports_gradient_checkpointing", False):
            # Torch does not see the products within compiled code.
            known |= {"full"} if compiled else {*LAYER_MODES}
        if self._feed_forwards and not compiled:
            known.add("mlp")
        self.modes = tuple(mode for mode in MODES if mode in known)
        self._restore: list[Callable[[], None]] = []

    @property
    def applied(self) -> tuple[str, ...]:
        """The modes of a plan that it can be switched to, as ``check_modes`` takes them."""
        return (*self.modes, OFFLOAD) if self.offloads else self.modes

    @property
    def offloads(self) -> bool:
        """Whether layers run by a function that may offload them, which compiled ones do not."""
        return "full" in self.modes and not self._compiled

    def switch(self, mode: str | None) -> None:
        """Let the next forwards run under ``mode``, None for the model's settings.

        ``ValueError`` for a mode that is not among ``modes``, or that offloads if layers cannot.
        """
        name, share = ("", 0.0) if mode is None else split_mode(mode)
        if mode is not None and (name not in self.modes or (share and not self.offloads)):
            raise ValueError(f"mode not available: {mode}. Use one of {', '.join(self.modes)}")
        for restore in self._restore:
            restore()
        self._restore.clear()
        if mode is None:
            return
        for place, module in enumerate(self._flagged):
            replaced = name in LAYER_MODES or is_offloaded(share, place)
            self._set(module, FLAG, replaced)
            if replaced:
                self._set(module, FUNCTION, _layer_function(mode, place if share else 0))
        if name == "mlp":
            for module in self._feed_forwards:
                self._set(
                    module, "forward", partial(run_part, "feed_forward", mode, module.forward)
                )

    def remove(self, mode: str) -> None:
        """Make a mode unavailable, which the model turned out not to run under."""
        self.modes = tuple(name for name in self.modes if name != mode)

    def _set(self, module: nn.Module, name: str, value: Any) -> None:
        """Set an attribute of the module itself, to be restored or removed."""
        attributes = module.__dict__
        if name in attributes:
            self._restore.append(partial(attributes.__setitem__, name, attributes[name]))
        else:
            self._restore.append(partial(attributes.pop, name))
        attributes[name] = value


def _find_feed_forwards(model: nn.Module) -> list[nn.Module]:
    """List the feed-forward of every layer; none if a layer has no module for it."""
    feed_forwards = [_feed_forward_of(layer) for layer in _iterate_layers(model)]
    modules = [module for module in feed_forwards if module is not None]
    return modules if len(modules) == len(feed_forwards) else []


def _feed_forward_of(layer: nn.Module) -> nn.Module | None:
    return next((child for name, child in layer.named_children() if name in FEED_FORWARDS), None)


def _iterate_layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the decoder layers: the elements of the first list of so many modules."""
    config: Any = getattr(model, "config", None)
    count = getattr(config.get_text_config(), "num_hidden_layers", 0) if config else 0
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            yield from module
            return
