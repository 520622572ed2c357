"""Ownership of a model's parameters: slices of every unit, or whole parameters.

An optimizer that works element by element, such as AdamW, steps on any slice. One that looks at a
whole matrix, such as Muon or Shampoo, needs owners of whole parameters.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Literal, get_args

from seqplan.plans.views.parameter_layout import ParameterLayout
from seqplan.plans.views.unit_layout import UnitLayout

Sharding = Literal["flat", "by_parameter"]
"""``flat``: every unit is cut evenly; ``by_parameter``: each parameter lies whole on one rank."""

NamedUnit = tuple[str, Sequence[ParameterLayout]]


def unit_layouts(
    units: Sequence[NamedUnit], layers: int, ranks: int, sharding: Sharding = "flat"
) -> list[UnitLayout]:
    """Lay out a model of ``layers`` layers in units; ``by_parameter`` in the order of owners.

    Parameters go to the rank that owns the fewest elements so far, the largest first; the vectors
    of a unit go together. The same for the same model and number of ranks. ``ValueError`` for
    another ``sharding``.
    """
    if sharding not in get_args(Sharding):
        kinds = " or ".join(get_args(Sharding))
        raise ValueError(f"sharding must be {kinds}, not {sharding!r}")
    if sharding == "flat":
        return [UnitLayout(name, parameters, layers, ranks) for name, parameters in units]
    together: list[tuple[int, int, list[int]]] = []
    for at, (_, parameters) in enumerate(units):
        vectors = [place for place, layout in enumerate(parameters) if layout.vector]
        matrices = [[place] for place, layout in enumerate(parameters) if not layout.vector]
        for places in ([vectors] if vectors else []) + matrices:
            together.append((-sum(parameters[place].numel for place in places), at, places))
    loads = [(0, rank) for rank in range(ranks)]
    owner: dict[tuple[int, int], int] = {}
    for elements, at, places in sorted(together):
        load, rank = loads[0]
        heapq.heapreplace(loads, (load - elements, rank))
        owner.update({(at, place): rank for place in places})
    layouts = []
    for at, (name, parameters) in enumerate(units):
        order = sorted(range(len(parameters)), key=lambda place: owner[at, place])
        whole = [parameters[place] for place in order]
        layouts.append(UnitLayout(name, whole, layers, ranks, [owner[at, p] for p in order]))
    return layouts
