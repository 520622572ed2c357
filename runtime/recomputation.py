"""How a recomputation mode is applied to the parts of a layer.

A model calls ``run_part`` for the parts that its layers have, with the mode of the micro-batch
(``AttentionContext.recompute``). Which tensors a mode keeps is decided here alone. Backward does
not read the mode: forward has fixed the parts that are computed again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _pop_mode_temporarily
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from seqplan.plans.recomputation import MODES
from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.errors import PlanError
from seqplan.runtime.saved_tensors import count_kept

Part = Literal["layer", "attention", "feed_forward"]
"""Part of a decoder layer that a mode computes again: the whole, the attention call, the MLP."""

Kind = Literal["product", "attention"]
"""Kind of an operation whose result selective modes may keep."""

SELECTIVE_MODES = ("elementwise", "half_products")
"""Modes that compute layers again without some results, which they keep."""

LAYER_MODES = (*SELECTIVE_MODES, "full")
"""Modes that compute whole layers again."""

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


class KeptResultChanged(RuntimeError):
    """A model changed a tensor in place that a selective mode keeps."""


def run_part(
    part: Part, mode: str | None, function: Callable[..., Result], *arguments: Any, **named: Any
) -> Result:
    """Run ``function``, a part of a layer, and keep for backward as ``mode`` prescribes.

    With None, or a mode that computes nothing of this part again, it is the plain call.
    ``ValueError`` for an unknown mode.
    """
    if mode is not None and mode not in MODES:
        raise ValueError(f"unknown recomputation mode: {mode!r}. Give one of {', '.join(MODES)}")
    if mode is None or _RECOMPUTED.get(mode) != part:
        return function(*arguments, **named)
    if named:
        function = partial(function, **named)
    result: Result
    if mode in ("full", "mlp"):
        result = checkpoint(function, *arguments, use_reentrant=False)
    elif torch.compiler.is_compiling():
        result = _run_outside_graph(mode, function, *arguments)
    else:
        result = _run_selectively(mode, function, *arguments)
    return result


def _run_selectively(mode: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a part under a mode that chooses the tensors that are kept."""
    if mode == "attention_core":
        return checkpoint(function, *map(_drop_rest, arguments), use_reentrant=False)
    contexts = partial(_make_contexts, _KEPT_PRODUCTS[mode])
    return checkpoint(function, *arguments, use_reentrant=False, context_fn=contexts)


_disable: Any = torch._disable_dynamo  # type: ignore[attr-defined]
_run_outside_graph = _disable(_run_selectively)
"""For compiled layers: torch sees no products within compiled code."""


def _drop_rest(argument: Any) -> Any:
    """Copy a part of a tensor, as of fused q, k and v: kept, it would keep the whole."""
    if isinstance(argument, Tensor) and argument.nbytes < argument.untyped_storage().nbytes():
        return argument.clone()
    return argument


def check_modes(view: RankView, applied: Collection[str], model: str) -> None:
    """Reject a step with a mode that ``model`` does not apply. ``PlanError`` names both."""
    for pipeline in view.pipelines:
        for micro_batch in pipeline.micro_batches:
            mode = micro_batch.recompute
            if mode is not None and mode not in applied:
                known = [name for name in MODES if name in applied]
                fix = f"Plan with {', '.join(known)}" if known else "Plan with one mode"
                raise PlanError(
                    f"step {view.step}, pipeline {pipeline.index}: {model} cannot apply "
                    f"recomputation mode: {mode}. {fix}"
                )


def keep_result(kind: Kind, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Return ``compute()`` or, in backward of a mode that keeps it, its result in forward.

    For operations that torch's selective checkpointing does not know, such as those of several
    ranks: a kept result is not sent again.
    """
    current = _current_pass()
    return compute() if current is None else current.run(kind, compute)


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


class _Selection:
    """Results that one call of a selective mode keeps from forward to backward.

    ``results``: by call of ``keep_result``, None if not kept; ``by_torch``: those that torch keeps,
    until the forward ends. Each tensor with its version.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.paused = False
        self.products = 0
        self.results: list[tuple[tuple[Tensor, int], ...] | None] = []
        self.by_torch: list[tuple[Tensor, int]] = []

    def keeps(self, kind: Kind) -> bool:
        """Return whether the next operation's result is kept; the same in forward and backward."""
        if kind == "attention":
            return True
        self.products += 1
        return not self.paused and (self.products - 1) % self.every == 0

    def choose(
        self, context: SelectiveCheckpointContext, operation: Any, *operands: Any, **_: Any
    ) -> CheckpointPolicy:
        """Choose for torch whether an operation's result is kept."""
        kind = _kind_of(operation)
        if kind is None or _is_narrow(operation, operands) or not self.keeps(kind):
            return CheckpointPolicy.PREFER_RECOMPUTE
        output = getattr(context, "op_output", None)  # not in older releases
        count_kept(output)
        if isinstance(output, Tensor):
            self.by_torch.append((output, output._version))
        return CheckpointPolicy.MUST_SAVE

    def finish_forward(self, *, raising: bool) -> None:
        """Forget the results that torch keeps. ``KeptResultChanged`` if one was changed."""
        changed = _find_changed(self.by_torch)
        self.by_torch.clear()
        if changed is not None and raising:
            shape = tuple(changed.shape)
            raise KeptResultChanged(f"kept product changed in place: {shape}. Use another mode")


class _Pass:
    """A forward under a selective mode, or its recomputation in backward."""

    def __init__(self, selection: _Selection, torchs: Any, *, again: bool) -> None:
        self.selection = selection
        self._torchs, self._again = torchs, again
        self._call = 0
        self._token: Any = None

    def __enter__(self) -> None:
        self._call = self.selection.products = 0
        self._token = _PASS.set(self)
        self._torchs.__enter__()

    def __exit__(self, *error: Any) -> None:
        try:
            self._torchs.__exit__(*error)
        finally:
            _PASS.reset(self._token)
        self.selection.finish_forward(raising=not any(error))

    def run(self, kind: Kind, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """See ``keep_result``."""
        results, call = self.selection.results, self._call
        self._call += 1
        keeps = self.selection.keeps(kind)
        if self._again and (kept := results[call]) is not None:
            if _find_changed(kept) is not None:
                raise KeptResultChanged(f"kept result changed in place: {kind}. Use another mode")
            results[call] = None  # torch frees what it keeps, too
            return tuple(tensor.detach() for tensor, _ in kept)
        # Its parts are no operations of the layer: torch's mode, the innermost, would number them.
        with _pop_mode_temporarily():
            result = compute()
        if not self._again:
            results.append(None)
            if keeps:
                count_kept(result)
                # Detached, as a graph that holds its results itself is never freed.
                results[call] = tuple((tensor.detach(), tensor._version) for tensor in result)
        return result


_PASS: ContextVar[_Pass | None] = ContextVar("pass under a selective mode", default=None)


def _current_pass() -> _Pass | None:
    """Return the pass that runs here; None in compiled code, which cannot read it."""
    return None if torch.compiler.is_compiling() else _PASS.get()


def _make_contexts(every: int) -> tuple[_Pass, _Pass]:
    selection = _Selection(every)
    make: Any = create_selective_checkpoint_contexts
    keeping, reusing = make(selection.choose)
    return _Pass(selection, keeping, again=False), _Pass(selection, reusing, again=True)


def _find_changed(kept: Iterable[tuple[Tensor, int]]) -> Tensor | None:
    return next((tensor for tensor, version in kept if tensor._version != version), None)


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
