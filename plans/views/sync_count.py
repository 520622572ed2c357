"""Count the traffic of a step's parameter all-gather before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seqplan.plans.views.placement import Placement
from seqplan.plans.views.resharding import Message, all_whole, expert_holders, shards_of, unit_moves
from seqplan.plans.views.unit_layout import UnitLayout


@dataclass(frozen=True, slots=True)
class Moved:
    """``messages`` to or from other ranks, and the ``elements`` in them."""

    messages: int
    elements: int


@dataclass(frozen=True, slots=True)
class AllGathered:
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


def count_gathered(
    units: Sequence[UnitLayout],
    placement: Placement,
    experts: Sequence[UnitLayout] = (),
    expert_parallel: int = 1,
) -> AllGathered:
    """Count the all-gather of a step with this placement; ``ValueError`` as ``shards_of``.

    ``experts``: units of experts that are split over ``expert_parallel`` ranks, each owned by the
    ranks that hold the same part.
    """
    shards = shards_of(placement)
    whole = all_whole(shards)
    staged = any(shard.pp > 1 for shard in shards.values())
    gathered = [unit for unit in units if whole or unit.everywhere]
    moved_units = [unit for unit in units if not (whole or unit.everywhere)]
    elements = messages = 0
    for rank in range(units[0].ranks):
        part, place = rank % expert_parallel, rank // expert_parallel
        counts = [
            count_moved(move.gather_from, rank) for move in unit_moves(moved_units, shards, rank)
        ]
        foreign = _count_foreign(gathered, rank)
        if staged:
            holders = expert_holders(shards, part, expert_parallel)
            counts += [
                count_moved(move.gather_from, place) for move in unit_moves(experts, holders, place)
            ]
        else:
            foreign += _count_foreign(experts, place)
        elements = max(elements, foreign + sum(count.elements for count in counts))
        messages = max(messages, sum(count.messages for count in counts))
    return AllGathered(elements, None if whole else messages)


def _count_foreign(units: Sequence[UnitLayout], rank: int) -> int:
    """Count the elements of whole units that come from other ranks."""
    held = [unit.iterate_owned(rank) for unit in units]
    return sum(unit.elements for unit in units) - sum(stop - start for start, stop in held)
