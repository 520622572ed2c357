"""Moving parameters and gradients between optimizer shards and the layouts of pipelines.

Parameters travel in *units*, such as a layer: one flat interval of elements. The optimizer's master
copy of every unit is cut over all ranks (``owners``); the pipelines of a step hold parts of it by
their tp and pp. The *mutual slices* of the two cuts (Hydraulis §5.2) go in one message for each
unit and pair of ranks:

- **all-gather**: the elements that a rank owns, to every rank that holds them in the step;
- **reduce-scatter**: the gradient of held ones, to the owners, who sum it in rank order.

Who contributes: every pipeline replica, and in it every sequence-parallel rank, since each has seen
its tokens only, and every stage that uses the parameter (tied embeddings are on two). The ranks
of a tp group contribute by the parameter's ``Gradient``.

All ranges are half-open and count elements. No torch: numbers in, lists of messages out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from seqplan.plans.groups import Coordinates
from seqplan.plans.views.parameter_layout import Shard
from seqplan.plans.views.placement import PlacedPipeline
from seqplan.plans.views.unit_layout import Pieces, UnitLayout


class Message(NamedTuple):
    """The pieces that go to or come from each rank, in the order of packing."""

    ranks: tuple[int, ...]
    pieces: Pieces


@dataclass(frozen=True, slots=True)
class UnitMoves:
    """One rank's part of a unit's sync; it sends to itself what it keeps.

    ``gather_to`` and ``reduce_from``: of owned elements, ``local`` counting in the others' buffers;
    ``gather_from`` and ``reduce_to``: of held ones, by owner.
    """

    gather_to: tuple[Message, ...] = ()
    gather_from: tuple[Message, ...] = ()
    reduce_to: tuple[Message, ...] = ()
    reduce_from: tuple[Message, ...] = ()

    def renumber(self, rank_of: Callable[[int], int]) -> UnitMoves:
        """Return the same messages between other ranks: ``rank_of`` each of these."""

        def renumber_all(messages: tuple[Message, ...]) -> tuple[Message, ...]:
            return tuple(
                Message(tuple(map(rank_of, message.ranks)), message.pieces) for message in messages
            )

        return UnitMoves(
            renumber_all(self.gather_to),
            renumber_all(self.gather_from),
            renumber_all(self.reduce_to),
            renumber_all(self.reduce_from),
        )


def shards_of(placement: Iterable[PlacedPipeline]) -> dict[int, Shard]:
    """Find the shard that each rank of the pipelines holds for the step; idle ranks have none.

    ``ValueError`` if a rank's pipelines need different shards, which a sound plan never has.
    """
    shards: dict[int, Shard] = {}
    for index, pipeline in enumerate(placement):
        scheme = pipeline.scheme
        for place, rank in enumerate(pipeline.ranks):
            coordinates = Coordinates.from_rank_index(scheme, place)
            shard = Shard(scheme.tp, scheme.pp, coordinates.tp, coordinates.pp)
            if shards.setdefault(rank, shard) != shard:
                raise ValueError(
                    f"rank {rank}: pipeline {index} needs {shard}, an earlier one {shards[rank]}"
                )
    return shards


def expert_holders(
    shards: Mapping[int, Shard], part: int, expert_parallel: int
) -> dict[int, Shard]:
    """Return the shards of the ranks with one part of the experts.

    By their place among these ranks. Experts are cut by stages only.
    """
    return {
        rank // expert_parallel: Shard(1, shard.pp, 0, shard.stage)
        for rank, shard in shards.items()
        if rank % expert_parallel == part
    }


def all_whole(shards: Mapping[int, Shard]) -> bool:
    """Whether every rank in use holds whole parameters: tp = pp = 1 everywhere.

    The sync is then an all-gather and a reduce-scatter over the world, idle ranks included.
    """
    return all(shard.tp == 1 and shard.pp == 1 for shard in shards.values())


def unit_moves(
    units: Sequence[UnitLayout], shards: Mapping[int, Shard], rank: int
) -> list[UnitMoves]:
    """List one rank's messages of every unit in a step whose ranks hold ``shards``.

    Ranks in a message ascend; messages are ordered by their first rank. Time grows with ranks and
    units, not with their product with each other's parameters: units of one kind share their lists.
    """
    grouped: dict[Shard, list[int]] = defaultdict(list)
    for holder in sorted(shards):
        grouped[shards[holder]].append(holder)
    holders = {shard: tuple(ranks) for shard, ranks in grouped.items()}
    kinds: dict[object, int] = {}
    cut: dict[tuple[int, Shard], _Cut] = {}
    moves = []
    for unit in units:
        kind = kinds.setdefault(unit.kind, len(kinds))
        together = unit.kind[-1] is None
        used = {pp: unit.stages(pp) for pp in {shard.pp for shard in holders}}
        gather_to, reduce_from = [], []
        gather_from: tuple[Message, ...] = ()
        reduce_to: tuple[Message, ...] = ()
        for shard, ranks in holders.items():
            if shard.stage not in used[shard.pp]:
                continue
            # On whichever stage it is used, a unit that is used as one has the same parts.
            key = (kind, Shard(shard.tp, 1, shard.tp_rank, 0) if together else shard)
            known = cut.get(key)
            if known is None:
                known = cut[key] = _Cut.of(unit, shard)
            if rank in known.gathered:
                gather_to.append(Message(ranks, known.gathered[rank]))
            if rank in known.reduced:
                reduce_from.append(Message(ranks, known.reduced[rank]))
            if shards.get(rank) == shard:
                gather_from, reduce_to = known.messages
        moves.append(UnitMoves(tuple(gather_to), gather_from, reduce_to, tuple(reduce_from)))
    return moves


@dataclass(frozen=True)
class _Cut:
    """A shard's pieces of a unit by owner, in the all-gather and the reduce-scatter."""

    gathered: Mapping[int, Pieces]
    reduced: Mapping[int, Pieces]

    @classmethod
    def of(cls, unit: UnitLayout, shard: Shard) -> _Cut:
        gathered = unit.pieces(shard, gradients=False)
        reduced = unit.pieces(shard, gradients=True)
        by_owner = unit.by_owner(gathered)
        return cls(by_owner, by_owner if reduced == gathered else unit.by_owner(reduced))

    @cached_property
    def messages(self) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        """The holder's messages: from the owners, and to them."""
        return _messages(self.gathered), _messages(self.reduced)


def _messages(by_owner: Mapping[int, Pieces]) -> tuple[Message, ...]:
    return tuple(Message((owner,), by_owner[owner]) for owner in sorted(by_owner))
