"""How a recomputation mode is applied to the parts of a layer.

A model calls ``run_part`` for the parts that its layers have, with the mode of the micro-batch
(``AttentionContext.recompute``). Which tensors a mode keeps is decided here alone. Backward does
not read the mode: forward has fixed the parts that are computed again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, Self, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode_temporarily
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

from seqplan.plans.recomputation import MODES, is_offloaded, split_mode
from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.errors import KeptResultChanged, PlanError
from seqplan.runtime.offload import HostTensor, current_call, offload, take
from seqplan.runtime.saved_tensors import count_kept, detach_kept

Part = Literal["layer", "attention", "feed_forward"]
"""Part of a decoder layer that a mode computes again: the whole, the attention call, the MLP."""

Kind = Literal["product", "attention"]
"""Kind of an operation whose result selective modes may keep."""

SELECTIVE_MODES = ("elementwise", "half_products")
"""Modes that compute layers again without some results, which they keep."""

LAYER_MODES = (*SELECTIVE_MODES, "full")
"""Modes that compute whole layers again."""

OFFLOAD = "offload"
"""Next to the names of modes: that a model's layers run by ``run_layer``, which offloads."""

_RECOMPUTED: dict[str, Part] = {
    **dict.fromkeys(LAYER_MODES, "layer"),
    "attention_core": "attention",
    "mlp": "feed_forward",
}

_KEPT_PRODUCTS = {"elementwise": 1, "half_products": 2}
"""Selective modes: the first of every so many products is kept."""

_PRODUCTS = {"mm": 1, "bmm": 1, "_grouped_mm": 1, "_scaled_mm": 1, "addmm": 2, "baddbmm": 2}
"""torch's products, and the place of the second matrix among their operands."""

_ATTENTION = re.compile(r"attention|flash_attn")

NARROW = 16
"""A product whose inner dimension is so many times smaller than its rows' length is not kept.

Adapters of low rank: as long as the product that they are added to, and almost free to compute.
"""

Result = TypeVar("Result")


def run_part(
    part: Part, mode: str | None, function: Callable[..., Result], *arguments: Any, **named: Any
) -> Result:
    """Run ``function``, a part of a layer, and keep for backward as ``mode`` prescribes.

    With None, or a mode that computes nothing of this part again, it is the plain call.
    ``ValueError`` for an unknown mode.
    """
    name = None if mode is None else split_mode(mode)[0]
    if name is None or _RECOMPUTED.get(name) != part:
        return function(*arguments, **named)
    if named:
        function = partial(function, **named)
    result: Result
    if name in ("full", "mlp"):
        result = checkpoint(function, *arguments, use_reentrant=False)
    elif torch.compiler.is_compiling():
        result = _run_outside_graph(name, function, *arguments)
    else:
        result = _run_selectively(name, function, *arguments)
    return result


def run_layer(
    mode: str | None, place: int, function: Callable[..., Result], *arguments: Any, **named: Any
) -> Result:
    """Run ``function``, a layer, as ``run_part``; offloaded if in the mode's share.

    ``place``: of the layer on its stage, from 0.
    """
    share = 0.0 if mode is None else split_mode(mode)[1]
    if not share or not is_offloaded(share, place) or not torch.is_grad_enabled():
        return run_part("layer", mode, function, *arguments, **named)
    if torch.compiler.is_compiling():
        result: Result = _offload_outside_graph(mode, function, *arguments, **named)
        return result
    return _run_offloaded(mode, function, *arguments, **named)


def _run_offloaded(
    mode: str | None, function: Callable[..., Result], *arguments: Any, **named: Any
) -> Result:
    with offload():
        return run_part("layer", mode, function, *arguments, **named)


def _run_selectively(mode: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a part under a mode that chooses the tensors that are kept."""
    if mode == "attention_core":
        return checkpoint(function, *map(_drop_rest, arguments), use_reentrant=False)
    contexts = partial(_make_passes, _KEPT_PRODUCTS[mode])
    return checkpoint(function, *arguments, use_reentrant=False, context_fn=contexts)


_disable: Any = torch._disable_dynamo  # type: ignore[attr-defined]
_run_outside_graph = _disable(_run_selectively)
_offload_outside_graph = _disable(_run_offloaded)
"""For compiled layers: torch sees no products within compiled code."""


def _drop_rest(argument: Any) -> Any:
    """Copy a part of a tensor, as of fused q, k and v: kept, it would keep the whole."""
    if isinstance(argument, Tensor) and argument.nbytes < argument.untyped_storage().nbytes():
        return argument.clone()
    return argument


def check_modes(view: RankView, applied: Collection[str], model: str) -> None:
    """Reject a step with a mode that ``model`` does not apply. ``PlanError`` names both.

    ``applied``: names of modes, and ``OFFLOAD``.
    """
    for pipeline in view.pipelines:
        for micro_batch in pipeline.micro_batches:
            mode = micro_batch.recompute
            if mode is not None and not _applies(mode, applied):
                known = [name for name in MODES if name in applied]
                fix = f"Plan with {', '.join(known)}" if known else "Plan with one mode"
                raise PlanError(
                    f"step {view.step}, pipeline {pipeline.index}: {model} cannot apply "
                    f"recomputation mode: {mode}. {fix}"
                )


def _applies(mode: str, applied: Collection[str]) -> bool:
    """Return whether a model that applies these modes applies one of a plan."""
    name, share = split_mode(mode)
    return name in applied and (not share or OFFLOAD in applied)


def keep_result(kind: Kind, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Return ``compute()`` or, in backward of a mode that keeps it, its result in forward.

    For operations that torch does not know, such as those of several ranks: a kept result is not
    sent again.
    """
    current = _current_pass()
    if current is None:
        return compute()

    def compute_apart() -> tuple[Tensor, ...]:
        # Its parts are no operations of the layer: the pass, the innermost mode, would number them.
        with _pop_mode_temporarily():
            return compute()

    return current.run(kind, compute_apart)


def is_selective() -> bool:
    """Return whether a mode that chooses the results to keep runs here."""
    return _current_pass() is not None


def run_last(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Run the last product of a layer, whose result backward does not read: never kept."""
    current = _current_pass()
    if current is None:
        return function(*arguments)
    current.selection.paused = True
    try:
        return function(*arguments)
    finally:
        current.selection.paused = False


@dataclass(frozen=True)
class _Kept:
    """A tensor that is kept, or its form on the host, and its version."""

    tensor: Tensor | HostTensor
    version: int

    @property
    def changed(self) -> bool:
        """Whether the model has changed it in place."""
        return isinstance(self.tensor, Tensor) and self.tensor._version != self.version


class _Selection:
    """Results that one call of a selective mode keeps from forward to backward.

    ``results``: by product or attention call, None if not kept.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.paused = False
        self.products = 0
        self.results: list[Any] = []

    def keeps(self, kind: Kind) -> bool:
        """Return whether the next operation's result is kept; the same in forward and backward."""
        if kind == "attention":
            return True
        self.products += 1
        return not self.paused and (self.products - 1) % self.every == 0

    def keep(self, result: Any) -> None:
        """Keep a result until backward."""
        call = current_call()

        def keep_tensor(tensor: Tensor) -> _Kept:
            if call is None:
                count_kept(tensor)
                # Detached, as a graph that holds its results itself is never freed.
                return _Kept(detach_kept(tensor), tensor._version)
            return _Kept(call.keep(detach_kept(tensor)), tensor._version)

        self.results.append(tree_map_only(Tensor, keep_tensor, result))

    def check_unchanged(self, results: Sequence[Any]) -> None:
        """Raise ``KeptResultChanged`` if one of the results was changed in place."""
        for kept in tree_leaves(results):
            if isinstance(kept, _Kept) and kept.changed:
                assert isinstance(kept.tensor, Tensor)
                shape = tuple(kept.tensor.shape)
                raise KeptResultChanged(f"kept result changed in place: {shape}. Use another mode")


_DispatchMode: Any = TorchDispatchMode


class _Pass(_DispatchMode):  # type: ignore[misc]
    """A forward under a selective mode, or its recomputation in backward."""

    def __init__(self, selection: _Selection, *, again: bool) -> None:
        super().__init__()
        self.selection, self._again = selection, again
        self._call = 0
        self._token: Any = None

    def __enter__(self) -> Self:
        self._call = self.selection.products = 0
        self._token = _PASS.set(self)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            _PASS.reset(self._token)
        if not self._again and not any(error):
            self.selection.check_unchanged(self.selection.results)

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        kind = _kind_of(operation)
        if kind is None or _is_narrow(operation, args):
            return operation(*args, **named)
        return self.run(kind, lambda: operation(*args, **named))

    def run(self, kind: Kind, compute: Callable[[], Result]) -> Result:
        """Return the result of an operation: kept in forward, or computed."""
        selection, call = self.selection, self._call
        self._call += 1
        keeps = selection.keeps(kind)
        if not self._again:
            result = compute()
            if keeps:
                selection.keep(result)
            else:
                selection.results.append(None)
            return result
        kept = selection.results[call]
        if kept is None:
            return compute()
        selection.check_unchanged([kept])
        selection.results[call] = None
        reused: Result = tree_map_only(_Kept, lambda one: detach_kept(take(one.tensor)), kept)
        return reused


_PASS: ContextVar[_Pass | None] = ContextVar("pass under a selective mode", default=None)


def _current_pass() -> _Pass | None:
    """Return the pass that runs here; None in compiled code, which cannot read it."""
    return None if torch.compiler.is_compiling() else _PASS.get()


def _make_passes(every: int) -> tuple[_Pass, _Pass]:
    selection = _Selection(every)
    return _Pass(selection, again=False), _Pass(selection, again=True)


def _is_narrow(operation: Any, operands: Sequence[Any]) -> bool:
    """Return whether it is a product with a small inner dimension."""
    place = _PRODUCTS.get(_short_name(operation))
    if place is None or place >= len(operands):
        return False
    inner, length = operands[place].shape[-2:]
    return bool(inner * NARROW <= length)


@lru_cache(maxsize=4096)
def _kind_of(operation: Any) -> Kind | None:
    """Return the kind of one of torch's operations, or of a library's."""
    if _short_name(operation) in _PRODUCTS:
        return "product"
    return "attention" if _ATTENTION.search(str(operation.name())) else None


@lru_cache(maxsize=4096)
def _short_name(operation: Any) -> str:
    """Return the name of one of torch's operations without its overload; of others all of it."""
    namespace, _, name = str(operation.name()).partition("::")
    return name.partition(".")[0] if namespace == "aten" else f"{namespace}::{name}"
