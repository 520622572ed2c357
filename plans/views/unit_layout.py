"""A unit: parameters that travel together, the owners of its elements, and a holder's part.

All ranges are half-open and count elements. No torch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from seqplan.plans.views.parameter_layout import ParameterLayout, Shard
from seqplan.plans.views.sharding import Range


class ParameterPiece(NamedTuple):
    """Elements ``[start, stop)`` of a unit; a holder keeps them from ``local`` of its buffer on."""

    start: int
    stop: int
    local: int


Pieces = tuple[ParameterPiece, ...]


@dataclass(frozen=True, slots=True)
class HeldParameter:
    """A parameter's part in a holder's buffer: from element ``local`` on, ``rows`` rows of it."""

    layout: ParameterLayout
    local: int
    rows: int

    @property
    def numel(self) -> int:
        """Elements of the part."""
        return self.rows * self.layout.columns


class UnitLayout:
    """Parameters that travel together, one after the other, over ``ranks`` ranks.

    Rank r owns elements ``[borders[r], borders[r + 1])``: slices of ⌈elements / ranks⌉, of which
    the last owners may have fewer or none, or whole parameters if ``owners`` gives their ranks,
    ascending. ``layers``: of the whole model.
    """

    def __init__(
        self,
        name: str,
        parameters: Sequence[ParameterLayout],
        layers: int,
        ranks: int,
        owners: Sequence[int] | None = None,
    ) -> None:
        self.name, self.parameters = name, tuple(parameters)
        self.layers, self.ranks = layers, ranks
        self.owners = None if owners is None else tuple(owners)
        ends = list(accumulate((parameter.numel for parameter in self.parameters), initial=0))
        self.offsets, self.elements = ends[:-1], ends[-1]
        if self.owners is None:
            size = -(-self.elements // ranks)
            self.borders = tuple(min(rank * size, self.elements) for rank in range(ranks + 1))
        else:
            self.borders = tuple(ends[bisect_left(self.owners, rank)] for rank in range(ranks + 1))

    @property
    def padded(self) -> int:
        """Elements of the unit with what makes slices equally long."""
        return self.elements if self.owners is not None else self.room(0) * self.ranks

    def room(self, rank: int) -> int:
        """Return how many elements a rank reserves for its part; of slices all the same."""
        if self.owners is None:
            return -(-self.elements // self.ranks)
        start, stop = self.iterate_owned(rank)
        return stop - start

    @property
    def everywhere(self) -> bool:
        """Whether every rank holds all of the unit whatever its shard: tp cuts none of it."""
        return all(parameter.gradient == "partial" for parameter in self.parameters)

    def iterate_owned(self, rank: int) -> Range:
        """Return the elements that a rank owns."""
        return self.borders[rank], self.borders[rank + 1]

    def held_ranges(self, shard: Shard) -> tuple[HeldParameter, ...]:
        """List a holder's parts in the order of its buffer; parameters of no row left out."""
        parts = []
        local = 0
        for parameter in self.parameters:
            if shard.stage in parameter.stages(self.layers, shard.pp):
                ranges = parameter.held_ranges(shard.tp, shard.tp_rank)
                elements = sum(stop - start for start, stop in ranges)
                if elements:
                    parts.append(HeldParameter(parameter, local, elements // parameter.columns))
                local += elements
        return tuple(parts)

    def pieces(self, shard: Shard, *, gradients: bool) -> Pieces:
        """List the pieces that a holder gathers or, of ``gradients``, sends; neighbors are one."""
        pieces: list[ParameterPiece] = []
        local = 0
        for parameter, offset in zip(self.parameters, self.offsets, strict=True):
            if shard.stage not in parameter.stages(self.layers, shard.pp):
                continue
            moved = (
                parameter.contributing_ranges(shard.tp, shard.tp_rank)
                if gradients
                else parameter.held_ranges(shard.tp, shard.tp_rank)
            )
            for first, last in parameter.held_ranges(shard.tp, shard.tp_rank):
                for low, high in moved:
                    start, stop = max(first, low), min(last, high)
                    if start < stop:
                        _append(pieces, offset + start, offset + stop, local + start - first)
                local += last - first
        return tuple(pieces)

    def by_owner(self, pieces: Pieces) -> dict[int, Pieces]:
        """Cut pieces at the owners' borders: what goes to or comes from each owner."""
        owners: dict[int, list[ParameterPiece]] = defaultdict(list)
        for start, stop, local in pieces:
            at = start
            while at < stop:
                owner = bisect_right(self.borders, at) - 1
                end = min(stop, self.borders[owner + 1])
                owners[owner].append(ParameterPiece(at, end, local + at - start))
                at = end
        return {owner: tuple(parts) for owner, parts in owners.items()}

    def stages(self, pp: int) -> frozenset[int]:
        """Return the stages of ``pp`` that use any of the unit."""
        return frozenset().union(
            *(parameter.stages(self.layers, pp) for parameter in self.parameters)
        )

    @cached_property
    def kind(self) -> tuple[object, ...]:
        """What units share whose pieces are the same on any stage that uses them.

        The last entry is None if all of the unit's parameters are used on the same stages.
        """
        together = len({parameter.layers for parameter in self.parameters}) == 1
        return (
            self.ranks,
            self.owners,
            tuple(
                (parameter.blocks, parameter.columns, parameter.gradient)
                for parameter in self.parameters
            ),
            None if together else (self.name, self.layers),
        )


def _append(pieces: list[ParameterPiece], start: int, stop: int, local: int) -> None:
    if pieces:
        last = pieces[-1]
        if last.stop == start and last.local + last.stop - last.start == local:
            pieces[-1] = ParameterPiece(last.start, stop, last.local)
            return
    pieces.append(ParameterPiece(start, stop, local))
