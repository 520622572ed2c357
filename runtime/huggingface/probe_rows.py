"""Rows of the probe's forwards, and a mode that makes such forwards comparable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

ROWS = 521
"""Rows of a forward: more than mixing reaches back, and no size that a model has."""

_LENGTHS = (1, 2, 3, 120, 250, 145)
"""Tokens of documents, repeated until all rows are full."""

_DROPOUTS: frozenset[Any] = frozenset(
    {
        *(nn.functional.dropout, nn.functional.dropout1d, nn.functional.dropout2d),
        *(nn.functional.alpha_dropout, nn.functional.feature_alpha_dropout),
        *(torch.dropout, torch.alpha_dropout, torch.feature_dropout),
    }
)

_NOISE: dict[Any, Callable[..., float]] = {
    Tensor.uniform_: lambda low=0.0, high=1.0, **_: (low + high) / 2,
    Tensor.exponential_: lambda *_, **__: 1.0,
    Tensor.normal_: lambda mean=0.0, *_, **__: mean,
}
"""Values in place of random numbers that a tensor is filled with, such as a router's jitter."""


def make_documents(vocab: int, limit: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return tokens and positions (``ROWS``,) of several documents.

    ``limit``: positions that the model knows, 0 if all. Documents begin at the first position or
    end at the last one in turn.
    """
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab, (ROWS,), generator=generator)
    positions: list[int] = []
    number = 0
    while len(positions) < ROWS:
        length = _LENGTHS[number % len(_LENGTHS)]
        length = min(length, limit or length, ROWS - len(positions))
        start = max(limit - length, 0) if number % 2 else 0
        positions += range(start, start + length)
        number += 1
    return tokens.to(device), torch.tensor(positions, device=device)


def draw_rows(device: torch.device) -> Tensor:
    """Draw as many rows in another order, earlier ones more often: means and sums differ too."""
    draws = torch.rand(ROWS, generator=torch.Generator().manual_seed(1))
    return (draws**2 * ROWS).long().to(device)


class DeterministicForward(TorchFunctionMode):
    """Forwards without random numbers; ``numbering``: those of ``layers`` that number rows."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.numbering: list[nn.Module] = []
        self._layers = layers
        self._layer: nn.Module | None = None
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        for layer in self._layers:
            self._hooks += [
                layer.register_forward_pre_hook(self._enter_layer),
                layer.register_forward_hook(self._leave_layer),
            ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func in _NOISE:
            named = {{"from": "low", "to": "high"}.get(name, name): v for name, v in kwargs.items()}
            return args[0].fill_(_NOISE[func](*args[1:], **named))
        result = func(*args, **kwargs)
        if self._layer is not None and _numbers_rows(result):
            self.numbering.append(self._layer)
        return result

    def _enter_layer(self, layer: nn.Module, *_: Any) -> None:
        self._layer = layer

    def _leave_layer(self, *_: Any) -> None:
        self._layer = None


def _numbers_rows(result: Any) -> bool:
    """Return whether a result numbers the rows in equal steps."""
    if not isinstance(result, Tensor) or result.numel() != ROWS or result.is_complex():
        return False
    steps = result.detach().reshape(-1).double().diff()
    return bool(steps[0] != 0) and torch.allclose(steps, steps[0], rtol=1e-3, atol=0.0)
