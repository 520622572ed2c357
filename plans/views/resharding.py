"""Moving parameters and gradients between optimizer shards and the layouts of pipelines.

Parameters travel in *units*, such as a layer: one flat interval of elements. The optimizer's master
copy of every unit is cut evenly over all ranks; the pipelines of a step hold parts of it by their
own tp and pp. The *mutual slices* of the two cuts (Hydraulis §5.2) go in one message for each unit
and pair of ranks:

- **pull**: what a rank owns, to every rank that holds it in the step;
- **push**: the gradient of what a rank holds, to the owners, who sum what comes in rank order.

Who contributes: every pipeline replica, and in it every sequence-parallel rank, since each has seen
its own tokens only, and every stage that uses the parameter (tied embeddings are on two). The ranks
of a tp group contribute by the parameter's ``Gradient``.

All ranges are half-open and count elements. No torch: numbers in, lists of messages out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from seqplan.plans.groups import Coordinates
from seqplan.plans.views.parameter_layout import ParameterLayout, Shard
from seqplan.plans.views.placement import PlacedPipeline
from seqplan.plans.views.sharding import Range


class Piece(NamedTuple):
    """Elements ``[start, stop)`` of a unit; a holder keeps them from ``local`` of its buffer on."""

    start: int
    stop: int
    local: int


Pieces = tuple[Piece, ...]


class Message(NamedTuple):
    """The pieces, in the order in which they are packed, that go to or come from each rank."""

    ranks: tuple[int, ...]
    pieces: Pieces


@dataclass(frozen=True, slots=True)
class UnitMoves:
    """One rank's part of a unit's exchange, itself among the ranks where it keeps what it owns.

    ``pull_to`` and ``push_from``: what this rank owns, ``local`` counting in the others' buffers;
    ``pull_from`` and ``push_to``: what it holds, by owner.
    """

    pull_to: tuple[Message, ...] = ()
    pull_from: tuple[Message, ...] = ()
    push_to: tuple[Message, ...] = ()
    push_from: tuple[Message, ...] = ()


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

    Rank r owns elements ``[r·s, (r+1)·s)``, s = ⌈elements / ranks⌉; the last owners may have fewer
    or none. ``layers``: of the whole model.
    """

    def __init__(
        self, name: str, parameters: Sequence[ParameterLayout], layers: int, ranks: int
    ) -> None:
        self.name, self.parameters = name, tuple(parameters)
        self.layers, self.ranks = layers, ranks
        self.offsets: list[int] = []
        self.elements = 0
        for parameter in self.parameters:
            self.offsets.append(self.elements)
            self.elements += parameter.numel
        self.shard_elements = -(-self.elements // ranks)

    @property
    def everywhere(self) -> bool:
        """Whether every rank holds all of the unit whatever its shard: tp cuts none of it."""
        return all(parameter.gradient == "partial" for parameter in self.parameters)

    def owned(self, rank: int) -> Range:
        """Return the elements that a rank owns."""
        start = min(rank * self.shard_elements, self.elements)
        return start, min(start + self.shard_elements, self.elements)

    def held(self, shard: Shard) -> tuple[HeldParameter, ...]:
        """List what a holder keeps, in the order of its buffer; parameters of no row left out."""
        parts = []
        local = 0
        for parameter in self.parameters:
            if shard.stage in parameter.stages(self.layers, shard.pp):
                ranges = parameter.held(shard.tp, shard.tp_rank)
                elements = sum(stop - start for start, stop in ranges)
                if elements:
                    parts.append(HeldParameter(parameter, local, elements // parameter.columns))
                local += elements
        return tuple(parts)

    def pieces(self, shard: Shard, *, gradients: bool) -> Pieces:
        """List what a holder pulls or, of ``gradients``, pushes; neighbours are one piece."""
        pieces: list[Piece] = []
        local = 0
        for parameter, offset in zip(self.parameters, self.offsets, strict=True):
            if shard.stage not in parameter.stages(self.layers, shard.pp):
                continue
            moved = (
                parameter.contributed(shard.tp, shard.tp_rank)
                if gradients
                else parameter.held(shard.tp, shard.tp_rank)
            )
            for first, last in parameter.held(shard.tp, shard.tp_rank):
                for low, high in moved:
                    start, stop = max(first, low), min(last, high)
                    if start < stop:
                        _append(pieces, offset + start, offset + stop, local + start - first)
                local += last - first
        return tuple(pieces)

    def by_owner(self, pieces: Pieces) -> dict[int, Pieces]:
        """Cut pieces at the owners' borders: what goes to or comes from each owner."""
        owners: dict[int, list[Piece]] = defaultdict(list)
        for start, stop, local in pieces:
            at = start
            while at < stop:
                owner = at // self.shard_elements
                end = min(stop, (owner + 1) * self.shard_elements)
                owners[owner].append(Piece(at, end, local + at - start))
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

        The last entry is None where all of the unit's parameters are used on the same stages.
        """
        together = len({parameter.layers for parameter in self.parameters}) == 1
        return (
            self.ranks,
            tuple(
                (parameter.blocks, parameter.columns, parameter.gradient)
                for parameter in self.parameters
            ),
            None if together else (self.name, self.layers),
        )


def _append(pieces: list[Piece], start: int, stop: int, local: int) -> None:
    if pieces:
        last = pieces[-1]
        if last.stop == start and last.local + last.stop - last.start == local:
            pieces[-1] = Piece(last.start, stop, last.local)
            return
    pieces.append(Piece(start, stop, local))


def shards_of(placement: Iterable[PlacedPipeline]) -> dict[int, Shard]:
    """Find the shard that each rank of the pipelines holds for the step; idle ranks have none.

    ``ValueError`` where a rank's pipelines want different shards, which a sound plan never has.
    """
    shards: dict[int, Shard] = {}
    for index, pipeline in enumerate(placement):
        scheme = pipeline.scheme
        for place, rank in enumerate(pipeline.ranks):
            coordinates = Coordinates.of(scheme, place)
            shard = Shard(scheme.tp, scheme.pp, coordinates.tp, coordinates.pp)
            if shards.setdefault(rank, shard) != shard:
                raise ValueError(
                    f"rank {rank}: pipeline {index} wants {shard}, an earlier one {shards[rank]}"
                )
    return shards


def all_whole(shards: Mapping[int, Shard]) -> bool:
    """Whether every rank in use holds whole parameters: tp = pp = 1 everywhere.

    Pull is then an all-gather over the world and push a reduce-scatter, idle ranks included.
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
        pull_to, push_from = [], []
        pull_from: tuple[Message, ...] = ()
        push_to: tuple[Message, ...] = ()
        for shard, ranks in holders.items():
            if shard.stage not in used[shard.pp]:
                continue
            # On whichever stage it is used, a unit that is used as one has the same parts.
            key = (kind, Shard(shard.tp, 1, shard.tp_rank, 0) if together else shard)
            known = cut.get(key)
            if known is None:
                known = cut[key] = _Cut.of(unit, shard)
            if rank in known.pulled:
                pull_to.append(Message(ranks, known.pulled[rank]))
            if rank in known.pushed:
                push_from.append(Message(ranks, known.pushed[rank]))
            if shards.get(rank) == shard:
                pull_from, push_to = known.messages
        moves.append(UnitMoves(tuple(pull_to), pull_from, push_to, tuple(push_from)))
    return moves


@dataclass(frozen=True)
class _Cut:
    """A shard's pieces of a unit by owner: what it pulls and what it pushes."""

    pulled: Mapping[int, Pieces]
    pushed: Mapping[int, Pieces]

    @classmethod
    def of(cls, unit: UnitLayout, shard: Shard) -> _Cut:
        pulled = unit.pieces(shard, gradients=False)
        pushed = unit.pieces(shard, gradients=True)
        by_owner = unit.by_owner(pulled)
        return cls(by_owner, by_owner if pushed == pulled else unit.by_owner(pushed))

    @cached_property
    def messages(self) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        """The holder's own: from the owners, and to them."""
        return _messages(self.pulled), _messages(self.pushed)


def _messages(by_owner: Mapping[int, Pieces]) -> tuple[Message, ...]:
    return tuple(Message((owner,), by_owner[owner]) for owner in sorted(by_owner))
