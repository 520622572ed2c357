"""A rank's work of a step, as a preparer returns it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from seqplan.runtime.device_copy import PackedCopy

Item = TypeVar("Item")


class PreparedStep(Generic[Item]):
    """The items of a step's work; iteration lets the current stream wait for their copies.

    ``has_targets``: whether the data has labels and weights (``TargetData``), the same on all
    ranks, also on those without work.
    """

    def __init__(
        self, items: Sequence[Item], copy: PackedCopy, *, has_targets: bool = False
    ) -> None:
        self._items, self._copy = tuple(items), copy
        self.has_targets = has_targets

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        self._copy.wait()
        return iter(self._items)

    def __getitem__(self, at: int) -> Item:
        self._copy.wait()
        return self._items[at]
