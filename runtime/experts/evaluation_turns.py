"""Calls of experts' layers by ranks that evaluate independently of each other.

A rank calls a model as often as it likes, another one less often or never. Each call of a layer
with split experts begins with an announcement of every rank of the block; a rank that has ended
its evaluation announces nothing, and takes part in the others' calls without tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seqplan.runtime.experts.blocks import ExpertBlocks

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

Call = Callable[[int, Tensor], object]
"""Calls a layer, by its number, with tokens (0, hidden)."""


class EvaluationTurns:
    """Announcements of the ranks of ``blocks`` in one evaluation; ``device``: theirs."""

    def __init__(self, blocks: ExpertBlocks, device: torch.device) -> None:
        self._blocks, self._device = blocks, device

    def announce(self, layer: int, tokens: Tensor) -> None:
        """Announce a call of layer ``layer`` with ``tokens`` (any number, hidden).

        ``RuntimeError`` on all ranks of the block if their layers, widths or dtypes differ.
        """
        self._meet([layer + 1, tokens.shape[1], _DTYPES.index(tokens.dtype)])

    def follow(self, call: Call) -> None:
        """Take part in the others' calls of layers until all ranks have ended their evaluation."""
        while (announced := self._meet([0, 0, 0])) is not None:
            layer, width, dtype = announced
            call(layer - 1, torch.zeros(0, width, dtype=_DTYPES[dtype], device=self._device))

    def _meet(self, mine: list[int]) -> tuple[int, ...] | None:
        """Return what the ranks announce that have not ended; None if all have."""
        local = torch.tensor(mine, device=self._device)
        of_ranks = self._blocks.gather(local).view(-1, len(mine)).tolist()
        calls = {tuple(call) for call in of_ranks if call[0]}
        if len(calls) > 1:
            raise RuntimeError(
                "evaluation: ranks of a block call different layers of experts or in different "
                "dtypes. Call whole models, in one dtype, within evaluation"
            )
        return calls.pop() if calls else None
