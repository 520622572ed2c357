"""A rank's part of a parameter, and the ranks whose gradients add up to it.

A parameter is stored with the axis that tensor parallelism cuts outermost (weights that are cut by
their input are stored transposed), so that a part is a few intervals of elements: one of a plain
matrix, two of fused gate and up, three of fused query, key and value. Cuts are at ``t·n // tp``,
whatever divides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from seqplan.plans.views.sharding import Range

Gradient = Literal["split", "equal", "partial"]
"""How a parameter's gradients on the ranks of a tp group make up the whole one.

- ``split``: each rank has that of what it holds; copies of a head have seen other queries, and add
  up;
- ``equal``: all ranks have the same one, of which each gives a part;
- ``partial``: each rank has seen other tokens or heads: all of them add up. So are norms under
  sequence parallelism, and norms of queries and keys always.
"""


class Shard(NamedTuple):
    """A rank's part of the model: tp rank ``tp_rank`` of ``tp``, stage ``stage`` of ``pp``."""

    tp: int
    pp: int
    tp_rank: int
    stage: int


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of a parameter that tp cuts by themselves: ``units`` units of ``rows`` rows each.

    ``shared_by``: how many consecutive units of another block need one of these, as queries need
    key heads. A rank then holds those that its part of the other block needs, copies of a unit
    where ranks share it.
    """

    units: int
    rows: int = 1
    shared_by: int = 1

    def part(self, tp: int, tp_rank: int) -> Range:
        """Return the units that tp rank ``tp_rank`` of ``tp`` holds; an empty range for none."""
        needing = self.units * self.shared_by
        first, stop = tp_rank * needing // tp, (tp_rank + 1) * needing // tp
        if first == stop:
            return 0, 0
        return first // self.shared_by, (stop - 1) // self.shared_by + 1


@dataclass(frozen=True, slots=True)
class ParameterLayout:
    """One parameter as the layouts see it.

    - ``blocks``: its rows in storage order, ``columns`` elements each;
    - ``layers``: those that use it: 0 … layers − 1, −1 before the first layer, and
      ``layers`` after the last; two entries for tied embeddings;
    - ``gradient``: whether it is cut (``split``), else every tp rank holds all of it;
    - ``transposed``: stored as the transpose of the model's parameter;
    - ``vector``: of one axis in the model.

    ``ValueError`` if it is used nowhere.
    """

    name: str
    blocks: tuple[Block, ...]
    columns: int
    layers: tuple[int, ...]
    gradient: Gradient = "split"
    transposed: bool = False
    vector: bool = False

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError(
                f"parameter {self.name}: is used in no layer. Name a layer that uses it"
            )

    @property
    def rows(self) -> int:
        """Rows of the whole parameter."""
        return sum(block.units * block.rows for block in self.blocks)

    @property
    def numel(self) -> int:
        """Elements of the whole parameter."""
        return self.rows * self.columns

    def stages(self, layers: int, pp: int) -> frozenset[int]:
        """Return the stages of ``pp`` that use it, in a model of ``layers`` layers."""
        return frozenset(stage_of(layer, layers, pp) for layer in self.layers)

    def held_ranges(self, tp: int, tp_rank: int) -> tuple[Range, ...]:
        """Return the ranges of elements that a tp rank holds on a stage using it."""
        if self.gradient != "split":
            return ((0, self.numel),) if self.numel else ()
        ranges = []
        row = 0
        for block in self.blocks:
            first, stop = block.part(tp, tp_rank)
            if first < stop:
                ranges.append(
                    (
                        (row + first * block.rows) * self.columns,
                        (row + stop * block.rows) * self.columns,
                    )
                )
            row += block.units * block.rows
        return tuple(ranges)

    def contributing_ranges(self, tp: int, tp_rank: int) -> tuple[Range, ...]:
        """Return the ranges of elements whose gradient a tp rank contributes, within ``held``."""
        if self.gradient != "equal":
            return self.held_ranges(tp, tp_rank)
        start, stop = tp_rank * self.numel // tp, (tp_rank + 1) * self.numel // tp
        return ((start, stop),) if start < stop else ()


def stage_of(layer: int, layers: int, pp: int) -> int:
    """Find the stage of a layer: ``layers`` layers are cut into ``pp`` parts at s·layers // pp.

    −1 is on the first stage and ``layers`` on the last. ``ValueError`` for any other layer.
    """
    if not -1 <= layer <= layers:
        raise ValueError(f"layer {layer} is outside −1 … {layers}. Give a layer of the model")
    if layer == -1:
        return 0
    if layer == layers:
        return pp - 1
    return (pp * (layer + 1) - 1) // layers
