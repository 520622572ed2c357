"""Sync in two steps: between the nodes once, and within each node to the ranks that hold parts.

If ranks of a node hold equal parts of a unit, messages from its owners bring these elements to the
node several times. Relays bring them once: ranks of equal places in their nodes form a *rail*, over
which each rank gathers their owned elements. It then gives the ranks of its node their pieces.
Gradients go the reverse way: to the relays of the node, who sum them, and over the rails to the
owners. All ranges are half-open and count elements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from seqplan.plans.views.parameter_layout import Shard
from seqplan.plans.views.resharding import UnitMoves, unit_moves
from seqplan.plans.views.unit_layout import ParameterPiece, Pieces, UnitLayout


def can_relay(ranks: int, per_node: int) -> bool:
    """Return whether there are several nodes, of several ranks and all of the same number."""
    return 1 < per_node < ranks and ranks % per_node == 0


def saves_traffic(shards: Mapping[int, Shard], per_node: int) -> bool:
    """Return whether some rank holds more of the model than a relay: 1 / ``per_node``."""
    return min(shard.tp * shard.pp for shard in shards.values()) < per_node


def relay_moves(
    units: Sequence[UnitLayout], shards: Mapping[int, Shard], rank: int, per_node: int
) -> list[UnitMoves]:
    """List one rank's messages with the relays of its node, for units of even slices.

    As ``unit_moves``; the owned elements are those of the rail in the order of its nodes.
    """
    first = rank - rank % per_node
    of_node = {holder - first: s for holder, s in shards.items() if 0 <= holder - first < per_node}
    relayed = [_RelayedUnit(unit, per_node) for unit in units]
    moves = unit_moves(relayed, of_node, rank - first)
    return [of_unit.renumber(lambda place: first + place) for of_unit in moves]


class _RelayedUnit(UnitLayout):
    """A unit whose owners are places in a node, each with its rail's elements."""

    def __init__(self, unit: UnitLayout, per_node: int) -> None:
        super().__init__(unit.name, unit.parameters, unit.layers, unit.ranks)
        self._per_node = per_node

    def by_owner(self, pieces: Pieces) -> dict[int, Pieces]:
        """Cut pieces by place in the node; start and stop count in the rail's elements."""
        relays: dict[int, list[ParameterPiece]] = defaultdict(list)
        size = self.room(0)
        for owner, parts in sorted(super().by_owner(pieces).items()):
            node, place = divmod(owner, self._per_node)
            shift = (node - owner) * size
            relays[place] += [
                ParameterPiece(p.start + shift, p.stop + shift, p.local) for p in parts
            ]
        return {place: tuple(parts) for place, parts in relays.items()}
