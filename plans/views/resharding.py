"""Moving parameters and gradients between optimizer shards and the layouts of pipelines.

The optimizer's master copy of every parameter is sharded evenly over all ranks; the pipelines of a
step hold parameters by their own tp and pp. Both cut a parameter, seen as an interval of elements,
into intervals, so the *mutual slices* are the common refinement of the two (Hydraulis §5.2: the
least common multiple of the degrees where both cut evenly; uneven cuts work as well). Each slice
is sent whole.

- **pull**: each slice of the updated parameters, from the rank that owns it to every rank that
  holds it in the step.
- **push**: each slice of the gradients, from every rank that contributes to it to the owner, which
  sums what comes, in transfer order.

Who contributes: every pipeline replica, and in it every sequence-parallel rank, since each has seen
its own tokens only, and every stage that uses the parameter (tied embeddings are on two). The
ranks of a tp group have seen the same tokens: of a parameter split over tp each contributes its
own part; of a replicated one, whose gradients are equal on all of them, tp rank t contributes the
t-th part, so that each element is counted once and the load is even.

All ranges are half-open and count elements. No torch: lists of numbers in, lists of transfers out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from seqplan.plans.groups import Coordinates
from seqplan.plans.plan import PlannedPipeline
from seqplan.plans.views.sharding import Range

Kind = Literal["send", "receive", "local"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter as the layouts see it.

    - ``numel``: elements, stored so that the axis tp cuts is the outermost.
    - ``layers``: where it is used: 0 … layers − 1, −1 for what comes before the first layer, and
      ``layers`` for what comes after the last; two entries for tied embeddings.
    - ``tp_split``: cut over tp, otherwise every tp rank holds all of it.
    - ``unit``: elements that tp must not separate (a row, a head); divides ``numel``.

    ``ValueError`` where these do not fit together.
    """

    name: str
    numel: int
    layers: tuple[int, ...]
    tp_split: bool
    unit: int = 1

    def __post_init__(self) -> None:
        if self.numel < 0 or self.unit < 1 or self.numel % self.unit:
            raise ValueError(
                f"parameter {self.name}: numel {self.numel} is not a multiple of unit {self.unit}"
            )
        if not self.layers:
            raise ValueError(f"parameter {self.name}: is used in no layer")


class Shard(NamedTuple):
    """What a rank holds of the model: tp rank ``tp_rank`` of ``tp``, stage ``stage`` of ``pp``."""

    tp: int
    pp: int
    tp_rank: int
    stage: int


class Transfer(NamedTuple):
    """Elements ``[start, stop)`` of parameter number ``parameter``, from one rank to another."""

    parameter: int
    start: int
    stop: int
    source: int
    destination: int

    def kind(self, rank: int) -> Kind | None:
        """Say what ``rank`` does for the transfer, None where it takes no part."""
        if rank == self.source:
            return "local" if rank == self.destination else "send"
        return "receive" if rank == self.destination else None


def chunk(numel: int, parts: int, index: int, unit: int = 1) -> Range:
    """Return part ``index`` of ``numel`` elements cut as by ``torch.chunk``, ⌈numel / parts⌉ each.

    Only whole ``unit``s; the last parts are shorter or empty.
    """
    size = -(-numel // (parts * unit)) * unit
    return min(numel, index * size), min(numel, (index + 1) * size)


def stage_of(layer: int, layers: int, pp: int) -> int:
    """Find the stage of a layer: ``layers`` layers are cut into ``pp`` parts at s·layers // pp.

    −1 is on the first stage and ``layers`` on the last. ``ValueError`` for any other layer.
    """
    if not -1 <= layer <= layers:
        raise ValueError(f"layer {layer} is outside −1 … {layers}")
    if layer == -1:
        return 0
    if layer == layers:
        return pp - 1
    return (pp * (layer + 1) - 1) // layers


def shards_of(pipelines: Iterable[PlannedPipeline]) -> dict[int, Shard]:
    """Find the shard that each rank of the pipelines holds for the step; idle ranks have none.

    ``ValueError`` where a rank's pipelines want different shards, which a sound plan never has.
    """
    shards: dict[int, Shard] = {}
    for index, pipeline in enumerate(pipelines):
        scheme = pipeline.scheme
        for place, rank in enumerate(pipeline.ranks):
            coordinates = Coordinates.of(scheme, place)
            shard = Shard(scheme.tp, scheme.pp, coordinates.tp, coordinates.pp)
            if shards.setdefault(rank, shard) != shard:
                raise ValueError(
                    f"rank {rank}: pipeline {index} wants {shard}, an earlier one {shards[rank]}"
                )
    return shards


def held(parameter: Parameter, shard: Shard, layers: int) -> Range | None:
    """Return the elements of ``parameter`` that a rank with ``shard`` holds, None for none.

    ``layers``: of the model.
    """
    if all(stage_of(layer, layers, shard.pp) != shard.stage for layer in parameter.layers):
        return None
    if not parameter.tp_split:
        return _some(0, parameter.numel)
    return _some(*chunk(parameter.numel, shard.tp, shard.tp_rank, parameter.unit))


def contributed(parameter: Parameter, shard: Shard, layers: int) -> Range | None:
    """Return the elements whose gradient a rank with ``shard`` contributes, None for none."""
    if parameter.tp_split:
        return held(parameter, shard, layers)
    if held(parameter, shard, layers) is None:
        return None
    return _some(*chunk(parameter.numel, shard.tp, shard.tp_rank))


def pull(
    parameters: Sequence[Parameter],
    layers: int,
    shards: Mapping[int, Shard],
    world_size: int,
    rank: int | None = None,
) -> list[Transfer]:
    """List every slice of the parameters from its owner to each rank that holds it.

    Rank r of ``world_size`` owns ``chunk(numel, world_size, r)`` of each parameter; ``shards`` from
    ``shards_of``. Ordered by parameter, start, destination. With ``rank`` only its own transfers,
    in the same order, so that the two ends of every pair of ranks agree on theirs; time linear in
    ranks for each parameter, where the whole list may have ``world_size``² transfers for each.
    """
    transfers: list[Transfer] = []
    for index, parameter in enumerate(parameters):
        moves = [
            Transfer(index, start, stop, owner, holder)
            for holder, shard in shards.items()
            for owner, start, stop in _owners(
                parameter, held(parameter, shard, layers), world_size, rank, holder
            )
        ]
        transfers += sorted(moves, key=lambda move: (move.start, move.destination))
    return transfers


def push(
    parameters: Sequence[Parameter],
    layers: int,
    shards: Mapping[int, Shard],
    world_size: int,
    rank: int | None = None,
) -> list[Transfer]:
    """List every slice of the gradients from each rank that contributes to it to its owner.

    Arguments as for ``pull``. Ordered by parameter, start, source. The sum over all transfers of
    an element is its gradient.
    """
    transfers: list[Transfer] = []
    for index, parameter in enumerate(parameters):
        moves = [
            Transfer(index, start, stop, holder, owner)
            for holder, shard in shards.items()
            for owner, start, stop in _owners(
                parameter, contributed(parameter, shard, layers), world_size, rank, holder
            )
        ]
        transfers += sorted(moves, key=lambda move: (move.start, move.source))
    return transfers


def is_collective(shards: Mapping[int, Shard], world_size: int) -> bool:
    """Whether pull is exactly an all-gather over the world and push a reduce-scatter.

    So it is where every rank holds whole parameters: tp = pp = 1 everywhere and no rank idle. The
    runtime then needs no list of transfers; parts are ``chunk``s, the last one padded.
    """
    return len(shards) == world_size and all(
        shard.tp == 1 and shard.pp == 1 for shard in shards.values()
    )


def _owners(
    parameter: Parameter, wanted: Range | None, world_size: int, rank: int | None, holder: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (owner, start, stop) of each slice of ``wanted``; only ``rank``'s where it is given."""
    if wanted is None:
        return
    size = -(-parameter.numel // world_size)
    owners = range(wanted[0] // size, (wanted[1] - 1) // size + 1)
    if rank is not None and rank != holder:
        owners = range(rank, rank + 1) if rank in owners else range(0)
    for owner in owners:
        first, last = chunk(parameter.numel, world_size, owner)
        yield owner, max(first, wanted[0]), min(last, wanted[1])


def _some(start: int, stop: int) -> Range | None:
    return (start, stop) if start < stop else None
