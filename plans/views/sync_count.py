"""Count the traffic of a step's parameter all-gather before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seqplan.plans.views.placement import Placement
from seqplan.plans.views.resharding import Message, all_whole, shards_of, unit_moves
from seqplan.plans.views.unit_layout import UnitLayout


@dataclass(frozen=True, slots=True)
class Moved:
    """``messages`` to or from other ranks, and the ``elements`` in them."""

    messages: int
    elements: int


@dataclass(frozen=True, slots=True)
class Gathered:
    """The most that a rank receives in a step's all-gather: elements and messages.

    Units that every rank holds come by all-gathers, which count elements and no message; if all
    units do, ``messages`` is None. As many gradients are reduce-scattered.
    """

    elements: int
    messages: int | None


def count_moved(messages: Sequence[Message], rank: int) -> Moved:
    """Count what ``rank`` sends or receives, but for what stays on it."""
    counts = [len(message.ranks) - (rank in message.ranks) for message in messages]
    elements = [sum(piece.stop - piece.start for piece in message.pieces) for message in messages]
    total = sum(count * size for count, size in zip(counts, elements, strict=True))
    return Moved(sum(counts), total)


def count_gathered(units: Sequence[UnitLayout], placement: Placement) -> Gathered:
    """Count the all-gather of a step with this placement; ``ValueError`` as ``shards_of``."""
    shards = shards_of(placement)
    whole = all_whole(shards)
    gathered = [unit for unit in units if whole or unit.everywhere]
    moved_units = [unit for unit in units if not (whole or unit.everywhere)]
    elements = messages = 0
    for rank in range(units[0].ranks):
        counts = [
            count_moved(move.gather_from, rank) for move in unit_moves(moved_units, shards, rank)
        ]
        owned = [unit.iterate_owned(rank) for unit in gathered]
        foreign = sum(unit.elements for unit in gathered) - sum(stop - at for at, stop in owned)
        elements = max(elements, foreign + sum(count.elements for count in counts))
        messages = max(messages, sum(count.messages for count in counts))
    return Gathered(elements, None if whole else messages)
