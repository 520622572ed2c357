"""Resharding, run with numpy arrays in place of ranks: nothing lost, nothing counted twice."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqplan.plans.scheme import Scheme
from seqplan.plans.views.optimizer_sharding import unit_layouts
from seqplan.plans.views.parameter_layout import Block, Gradient, ParameterLayout, Shard, stage_of
from seqplan.plans.views.placement import PlacedPipeline, Placement
from seqplan.plans.views.relays import can_relay, relay_moves, saves_traffic
from seqplan.plans.views.resharding import UnitMoves, all_whole, shards_of, unit_moves
from seqplan.plans.views.unit_layout import UnitLayout

SLOW = settings(max_examples=27)
"""Other work on the machine must not fail a test."""

Elements = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """A step's pipelines, ranks that are in none among ``world_size``, and a model's units."""

    placement: Placement
    world_size: int
    units: list[UnitLayout]


@st.composite
def placements(draw: st.DrawFn) -> tuple[Placement, int]:
    """Up to three pipelines of any scheme; some of their ranks form others later in the step."""
    degrees = st.tuples(*[st.integers(1, most) for most in (4, 3, 2, 2)])
    whole = st.just((1, 1, 1, 1)) | st.just((1, 1, 2, 1))
    drawn = st.lists(degrees, min_size=1, max_size=3) | st.lists(whole, min_size=1, max_size=3)
    schemes = [Scheme(*scheme) for scheme in draw(drawn)]
    world_size = sum(scheme.gpus for scheme in schemes) + draw(st.sampled_from([0, 0, 1, 3]))
    order = draw(st.permutations(range(world_size)))
    placed = []
    for scheme in schemes:
        ranks, order = tuple(order[: scheme.gpus]), order[scheme.gpus :]
        placed.append(PlacedPipeline(scheme, ranks))
        if scheme.sp > 1 and draw(st.booleans()):
            # The last tp groups of every stage alone: the same tp and pp, no sequence parallelism.
            stage = scheme.stage_gpus
            ends = [ranks[(p + 1) * stage - scheme.tp : (p + 1) * stage] for p in range(scheme.pp)]
            placed.append(PlacedPipeline(Scheme(tp=scheme.tp, pp=scheme.pp), sum(ends, ())))
    return tuple(placed), world_size


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Units of parameters on any layers: fused, replicated, tied, empty; some units equal."""
    placement, world_size = draw(placements())
    layers = draw(st.integers(1, 5))
    gradients: list[Gradient] = ["split", "split", "equal", "partial"]
    blocks = st.builds(Block, st.integers(0, 9), st.integers(1, 3), st.sampled_from([1, 1, 2, 4]))
    units = []
    for number in range(draw(st.integers(1, 3))):
        parameters = [
            ParameterLayout(
                f"u{number}.p{at}",
                tuple(draw(st.lists(blocks, min_size=1, max_size=3))),
                draw(st.integers(1, 4)),
                tuple(draw(st.sets(st.integers(-1, layers), min_size=1, max_size=2))),
                draw(st.sampled_from(gradients)),
            )
            for at in range(draw(st.integers(1, 3)))
        ]
        units.append(UnitLayout(f"u{number}", parameters, layers, world_size))
        if draw(st.booleans()):
            units.append(UnitLayout(f"u{number} again", parameters, layers, world_size))
    if draw(st.booleans()):
        named = [(unit.name, unit.parameters) for unit in units]
        units = unit_layouts(named, layers, world_size, "by_parameter")
    return Case(placement, world_size, units)


def held_elements(parameter: ParameterLayout, shard: Shard, layers: int) -> list[int]:
    """By the definition, element by element."""
    if shard.stage not in {stage_of(layer, layers, shard.pp) for layer in parameter.layers}:
        return []
    if parameter.gradient != "split":
        return list(range(parameter.numel))
    elements = []
    row = 0
    for block in parameter.blocks:
        needing = block.units * block.shared_by
        bounds = [t * needing // shard.tp for t in (shard.tp_rank, shard.tp_rank + 1)]
        wanted = sorted({need // block.shared_by for need in range(*bounds)})
        for unit in wanted:
            first = (row + unit * block.rows) * parameter.columns
            elements += range(first, first + block.rows * parameter.columns)
        row += block.units * block.rows
    return elements


def moves_of(case: Case) -> list[list[UnitMoves]]:
    """Of every rank, of every unit."""
    shards = shards_of(case.placement)
    return [unit_moves(case.units, shards, rank) for rank in range(case.world_size)]


def gather(
    moves: Sequence[UnitMoves], owned: Sequence[Elements], starts: Sequence[int], held: list[int]
) -> list[Elements]:
    """Return each rank's buffer of so many held elements; ``owned``: those from ``starts`` on."""
    messages: dict[tuple[int, int], Elements] = {}
    for owner, (part, first) in enumerate(zip(owned, starts, strict=True)):
        for message in moves[owner].gather_to:
            assert all(0 <= p.start - first < p.stop - first <= len(part) for p in message.pieces)
            packed = np.concatenate(
                [part[p.start - first : p.stop - first] for p in message.pieces]
            )
            messages.update({(owner, holder): packed for holder in message.ranks})
    buffers = [np.zeros(elements, dtype=np.int64) for elements in held]
    for holder, buffer in enumerate(buffers):
        for message in moves[holder].gather_from:
            (owner,) = message.ranks
            packed, at = messages.pop((owner, holder)), 0
            for start, stop, local in message.pieces:
                assert not buffer[local : local + stop - start].any()
                buffer[local : local + stop - start] = packed[at : at + stop - start]
                at += stop - start
            assert at == len(packed)
    assert not messages
    return buffers


def reduce(
    moves: Sequence[UnitMoves],
    gradients: Sequence[Elements],
    starts: Sequence[int],
    owned: Sequence[int],
) -> list[Elements]:
    """Return each rank's sums of so many ``owned`` elements, which begin at ``starts``."""
    messages: dict[tuple[int, int], Elements] = {}
    for rank, gradient in enumerate(gradients):
        for message in moves[rank].reduce_to:
            (owner,) = message.ranks
            messages[rank, owner] = np.concatenate(
                [gradient[p.local : p.local + p.stop - p.start] for p in message.pieces]
            )
    sums = [np.zeros(elements, dtype=np.int64) for elements in owned]
    for owner, first in enumerate(starts):
        for message in moves[owner].reduce_from:
            for source in message.ranks:
                packed, at = messages.pop((source, owner)), 0
                for piece in message.pieces:
                    assert 0 <= piece.start - first < piece.stop - first <= owned[owner]
                    size = piece.stop - piece.start
                    sums[owner][piece.start - first : piece.stop - first] += packed[at : at + size]
                    at += size
                assert at == len(packed)
    assert not messages
    return sums


def list_held(case: Case, unit: UnitLayout) -> list[list[int]]:
    """List the elements of a unit that each rank holds, in the order of its buffer."""
    shards = shards_of(case.placement)
    return [
        [
            offset + element
            for parameter, offset in zip(unit.parameters, unit.offsets, strict=True)
            if rank in shards
            for element in held_elements(parameter, shards[rank], unit.layers)
        ]
        for rank in range(case.world_size)
    ]


def list_owned(unit: UnitLayout, values: Elements) -> list[Elements]:
    return [values[slice(*unit.iterate_owned(rank))] for rank in range(unit.ranks)]


def list_rails(owned: Sequence[Elements], room: int, per_node: int) -> list[Elements]:
    """Concatenate what the ranks of each rank's rail have, in slices of ``room``."""
    padded = [np.pad(part, (0, room - len(part))) for part in owned]
    return [np.concatenate(padded[r % per_node :: per_node]) for r in range(len(owned))]


@SLOW
@given(cases())
def test_all_gather_brings_every_held_element_once(case: Case) -> None:
    moves = moves_of(case)
    for number, unit in enumerate(case.units):
        held = list_held(case, unit)
        owned = list_owned(unit, np.arange(1, unit.elements + 1))
        starts = [unit.iterate_owned(rank)[0] for rank in range(case.world_size)]
        of_unit = [of_rank[number] for of_rank in moves]
        buffers = gather(of_unit, owned, starts, [len(elements) for elements in held])
        assert [(buffer - 1).tolist() for buffer in buffers] == held
        for rank, shard in shards_of(case.placement).items():
            assert sum(part.numel for part in unit.held_ranges(shard)) == len(held[rank])


def list_gradients(case: Case, unit: UnitLayout) -> tuple[list[Elements], Elements]:
    """Draw each rank's gradient of what it holds; and their sum by the rule of each parameter.

    Over replicas, sequence parallel ranks and stages.
    """
    random = np.random.default_rng(0)
    terms = random.integers(1, 1000, (case.world_size, unit.elements))
    # Who shares a term: the ranks of a tp group have the same ``equal`` gradient.
    equal = {
        rank: pipeline.ranks[place - place % pipeline.scheme.tp]
        for pipeline in reversed(case.placement)
        for place, rank in enumerate(pipeline.ranks)
    }
    shards, expected = shards_of(case.placement), np.zeros(unit.elements, dtype=np.int64)
    gradients = [np.zeros(0, dtype=np.int64)] * case.world_size
    for rank, shard in shards.items():
        buffers = []
        for parameter, offset in zip(unit.parameters, unit.offsets, strict=True):
            elements = [offset + e for e in held_elements(parameter, shard, unit.layers)]
            source = equal[rank] if parameter.gradient == "equal" else rank
            buffers.append(terms[source][elements])
            if parameter.gradient != "equal" or rank == equal[rank]:
                expected[elements] += terms[source][elements]
        gradients[rank] = np.concatenate(buffers)
    return gradients, expected


@SLOW
@given(cases())
def test_reduce_scatter_sums_every_contribution_once(case: Case) -> None:
    moves = moves_of(case)
    for number, unit in enumerate(case.units):
        gradients, expected = list_gradients(case, unit)
        of_unit = [of_rank[number] for of_rank in moves]
        owned = [unit.iterate_owned(rank) for rank in range(case.world_size)]
        starts, sizes = [start for start, _ in owned], [stop - start for start, stop in owned]
        sums = np.concatenate(reduce(of_unit, gradients, starts, sizes))
        np.testing.assert_array_equal(sums, expected)


@SLOW
@given(cases(), st.integers(2, 4))
def test_relays_bring_and_sum_the_same(case: Case, per_node: int) -> None:
    """Idle ranks fill the nodes; units are of even slices."""
    world_size = -(-max(case.world_size, per_node + 1) // per_node) * per_node
    named = [(unit.name, unit.parameters) for unit in case.units]
    units = unit_layouts(named, case.units[0].layers, world_size)
    case = Case(case.placement, world_size, units)
    assert can_relay(world_size, per_node)
    shards, starts = shards_of(case.placement), [0] * world_size
    moves = [relay_moves(units, shards, rank, per_node) for rank in range(world_size)]
    for number, unit in enumerate(units):
        of_unit = [of_rank[number] for of_rank in moves]
        for rank, of_rank in enumerate(of_unit):
            node = rank // per_node
            messages = (*of_rank.gather_to, *of_rank.gather_from, *of_rank.reduce_to)
            assert all(other // per_node == node for m in messages for other in m.ranks)
        held, room = list_held(case, unit), unit.room(0)
        rails = list_rails(list_owned(unit, np.arange(1, unit.elements + 1)), room, per_node)
        buffers = gather(of_unit, rails, starts, [len(elements) for elements in held])
        assert [(buffer - 1).tolist() for buffer in buffers] == held
        gradients, expected = list_gradients(case, unit)
        sums = reduce(of_unit, gradients, starts, [len(rail) for rail in rails])
        for rank, part in enumerate(list_owned(unit, expected)):
            at = rank // per_node * room
            over_rail = np.sum(sums[rank % per_node :: per_node], axis=0)
            np.testing.assert_array_equal(over_rail[at : at + len(part)], part)


def test_relays_are_of_equal_nodes_and_for_ranks_that_hold_much() -> None:
    assert can_relay(16, 8)
    assert not any(can_relay(*sizes) for sizes in ((8, 8), (8, 1), (12, 8)))
    whole, cut = Shard(1, 1, 0, 0), Shard(8, 4, 0, 0)
    assert saves_traffic({0: cut, 1: whole}, 8)
    assert saves_traffic({0: Shard(4, 1, 0, 0)}, 8)
    assert not saves_traffic({0: Shard(4, 2, 0, 0)}, 8)


@SLOW
@given(cases())
def test_units_are_laid_out_together_as_they_are_alone(case: Case) -> None:
    shards = shards_of(case.placement)
    for rank in range(case.world_size):
        together = unit_moves(case.units, shards, rank)
        assert together == [unit_moves([unit], shards, rank)[0] for unit in case.units]


def test_cuts_of_a_model() -> None:
    """Fused query, key and value of 8 heads of width 2 on 2 key heads; gate and up of 5."""
    qkv = ParameterLayout("qkv", (Block(8, 2), Block(2, 2, 4), Block(2, 2, 4)), 1, (0,))
    assert [qkv.held_ranges(4, t)[1:] for t in range(4)] == [
        ((16, 18), (20, 22)),
        ((16, 18), (20, 22)),
        ((18, 20), (22, 24)),
        ((18, 20), (22, 24)),
    ]
    assert [qkv.held_ranges(4, t)[0] for t in range(4)] == [(0, 4), (4, 8), (8, 12), (12, 16)]
    gate_up = ParameterLayout("gate_up", (Block(5), Block(5)), 3, (0,))
    assert [gate_up.held_ranges(2, t) for t in range(2)] == [
        ((0, 6), (15, 21)),
        ((6, 15), (21, 30)),
    ]
    words = ParameterLayout("words", (Block(2),), 3, (-1,))
    assert [words.held_ranges(3, t) for t in range(3)] == [(), ((0, 3),), ((3, 6),)]
    norm = ParameterLayout("norm", (Block(7),), 1, (0,), "equal")
    assert [norm.contributing_ranges(3, t) for t in range(3)] == [((0, 2),), ((2, 4),), ((4, 7),)]
    with pytest.raises(ValueError, match="parameter x: is used in no layer"):
        ParameterLayout("x", (Block(1),), 1, ())


def test_stages_of_uneven_layers() -> None:
    assert [stage_of(layer, 7, 3) for layer in range(-1, 8)] == [0, 0, 0, 1, 1, 2, 2, 2, 2]
    for layers in range(1, 12):
        for pp in range(1, layers + 1):
            cuts = [layers * stage // pp for stage in range(pp + 1)]
            for stage in range(pp):
                for layer in range(cuts[stage], cuts[stage + 1]):
                    assert stage_of(layer, layers, pp) == stage
    with pytest.raises(ValueError, match=r"layer 8 is outside"):
        stage_of(8, 7, 3)


def test_a_rank_of_two_shards_is_rejected() -> None:
    placement = (PlacedPipeline(Scheme(tp=2), (0, 1)), PlacedPipeline(Scheme(pp=2), (0, 1)))
    with pytest.raises(ValueError, match=r"rank 0: pipeline 1 needs .*, an earlier one "):
        shards_of(placement)


def test_whole_parameters_need_no_messages() -> None:
    assert all_whole(shards_of((PlacedPipeline(Scheme(ring=2), (0, 1)),)))
    assert not all_whole(shards_of((PlacedPipeline(Scheme(pp=2), (0, 1)),)))
    assert not all_whole(shards_of((PlacedPipeline(Scheme(tp=2), (0, 1)),)))
