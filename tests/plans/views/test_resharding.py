"""Resharding, run with numpy arrays in place of ranks: nothing lost, nothing counted twice."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqplan.plans.plan import PlannedPipeline
from seqplan.plans.scheme import Scheme
from seqplan.plans.views.resharding import (
    Parameter,
    Shard,
    chunk,
    contributed,
    held,
    is_collective,
    pull,
    push,
    shards_of,
    stage_of,
)

SLOW = settings(deadline=None, max_examples=60)
"""Other work on the machine must not fail a test."""


@dataclass(frozen=True)
class Layout:
    """The pipelines of a step; ranks below ``world_size`` that are in none are idle."""

    pipelines: list[PlannedPipeline]
    world_size: int


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Up to three pipelines of any scheme; some of their ranks form others later in the step."""
    degrees = st.tuples(*[st.integers(1, most) for most in (3, 3, 2, 2)])
    whole = st.just((1, 1, 1, 1)) | st.just((1, 1, 2, 1))
    schemes = [
        Scheme(*drawn)
        for drawn in draw(st.lists(degrees, min_size=1, max_size=3) | st.lists(whole, min_size=1))
    ]
    used = sum(scheme.gpus for scheme in schemes)
    world_size = used + draw(st.sampled_from([0, 0, 1, 3]))
    order = draw(st.permutations(range(world_size)))
    pipelines = []
    for scheme in schemes:
        ranks, order = tuple(order[: scheme.gpus]), order[scheme.gpus :]
        pipelines.append(PlannedPipeline(scheme, ranks, (), 0.0))
        if scheme.sp > 1 and draw(st.booleans()):
            # The last tp groups of every stage alone: the same tp and pp, no sequence parallelism.
            stage = scheme.stage_gpus
            ends = [ranks[(p + 1) * stage - scheme.tp : (p + 1) * stage] for p in range(scheme.pp)]
            alone = Scheme(tp=scheme.tp, pp=scheme.pp)
            pipelines.append(PlannedPipeline(alone, sum(ends, ()), (), 0.0))
    return Layout(pipelines, world_size)


@st.composite
def models(draw: st.DrawFn) -> tuple[list[Parameter], int]:
    """A few parameters on any layers, even and uneven, empty and tied ones among them."""
    layers = draw(st.integers(1, 6))
    parameters = []
    for number in range(draw(st.integers(1, 5))):
        unit = draw(st.integers(1, 4))
        parameters.append(
            Parameter(
                f"p{number}",
                unit * draw(st.integers(0, 40)),
                tuple(draw(st.sets(st.integers(-1, layers), min_size=1, max_size=2))),
                draw(st.booleans()),
                unit,
            )
        )
    return parameters, layers


def stages(parameter: Parameter, layers: int, pp: int) -> set[int]:
    return {stage_of(layer, layers, pp) for layer in parameter.layers}


def owned(parameter: Parameter, world_size: int, rank: int) -> tuple[int, int]:
    """By the definition of ``torch.chunk``, element by element."""
    size = -(-parameter.numel // world_size)
    mine = [e for e in range(parameter.numel) if e // size == rank]
    return (mine[0], mine[-1] + 1) if mine else (0, 0)


@SLOW
@given(layouts(), models())
def test_pull_brings_every_held_element_once(
    layout: Layout, model: tuple[list[Parameter], int]
) -> None:
    parameters, layers = model
    shards = shards_of(layout.pipelines)
    transfers = pull(parameters, layers, shards, layout.world_size)
    assert transfers == sorted(transfers, key=lambda t: (t.parameter, t.start, t.destination))
    values = [np.arange(1, p.numel + 1) for p in parameters]
    for rank in range(layout.world_size):
        for number, parameter in enumerate(parameters):
            arrived = np.zeros(parameter.numel, dtype=np.int64)
            for t in transfers:
                assert t.start < t.stop
                if (t.parameter, t.destination) != (number, rank):
                    continue
                low, high = owned(parameter, layout.world_size, t.source)
                assert low <= t.start < t.stop <= high
                arrived[t.start : t.stop] += values[number][t.start : t.stop]
            expected = np.zeros_like(arrived)
            if rank in shards:
                shard = shards[rank]
                if shard.stage in stages(parameter, layers, shard.pp):
                    rows = parameter.numel // parameter.unit
                    size = -(-rows // shard.tp) * parameter.unit
                    span = slice(shard.tp_rank * size, (shard.tp_rank + 1) * size)
                    span = span if parameter.tp_split else slice(None)
                    expected[span] = values[number][span]
            np.testing.assert_array_equal(arrived, expected)


@SLOW
@given(layouts(), models())
def test_push_sums_every_contribution_once(
    layout: Layout, model: tuple[list[Parameter], int]
) -> None:
    """A gradient is one term for each (stage, sequence-parallel place) that uses the parameter."""
    parameters, layers = model
    shards = shards_of(layout.pipelines)
    random = np.random.default_rng(0)
    # Ranks of a tp group see the same tokens: they share a term. Who shares one is taken from the
    # first pipeline of a rank; in the others the same tp group stands together.
    terms: dict[int, int] = {}
    for pipeline in layout.pipelines:
        for place, rank in enumerate(pipeline.ranks):
            terms.setdefault(rank, pipeline.ranks[place - place % pipeline.scheme.tp])
    transfers = push(parameters, layers, shards, layout.world_size)
    assert transfers == sorted(transfers, key=lambda t: (t.parameter, t.start, t.source))
    for number, parameter in enumerate(parameters):
        term = random.integers(1, 1000, (layout.world_size, parameter.numel))
        expected = np.zeros(parameter.numel, dtype=np.int64)
        for group in set(terms.values()):
            shard = shards[group]
            if shard.stage in stages(parameter, layers, shard.pp):
                expected += term[group]
        master = np.zeros(parameter.numel, dtype=np.int64)
        for t in transfers:
            if t.parameter != number:
                continue
            low, high = owned(parameter, layout.world_size, t.destination)
            assert low <= t.start < t.stop <= high
            have = held(parameter, shards[t.source], layers)
            assert have is not None
            assert have[0] <= t.start < t.stop <= have[1]
            master[t.start : t.stop] += term[terms[t.source]][t.start : t.stop]
        np.testing.assert_array_equal(master, expected)


@SLOW
@given(layouts(), models())
def test_a_rank_derives_its_part_of_the_whole_list(
    layout: Layout, model: tuple[list[Parameter], int]
) -> None:
    parameters, layers = model
    shards = shards_of(layout.pipelines)
    for move in (pull, push):
        everything = move(parameters, layers, shards, layout.world_size)
        for rank in range(layout.world_size):
            mine = move(parameters, layers, shards, layout.world_size, rank)
            assert mine == [t for t in everything if t.kind(rank) is not None]
            for t in mine:
                ends = (t.source == rank, t.destination == rank)
                expected = {(True, True): "local", (True, False): "send", (False, True): "receive"}
                assert t.kind(rank) == expected[ends]


@SLOW
@given(layouts(), models())
def test_all_gather_is_recognised_exactly(
    layout: Layout, model: tuple[list[Parameter], int]
) -> None:
    parameters, layers = model
    shards = shards_of(layout.pipelines)
    world = range(layout.world_size)
    whole = [
        (number, *owned(parameter, layout.world_size, owner), owner, holder)
        for number, parameter in enumerate(parameters)
        for owner in world
        for holder in world
        if owned(parameter, layout.world_size, owner) != (0, 0)
    ]
    if is_collective(shards, layout.world_size):
        gathered = [tuple(t) for t in pull(parameters, layers, shards, layout.world_size)]
        assert gathered == whole
        scattered = [
            (n, a, b, owner, holder)
            for n, a, b, holder, owner in push(parameters, layers, shards, layout.world_size)
        ]
        assert scattered == whole
    elif layout.world_size > 1:
        # One replicated and one split parameter on every layer tell any other layout apart.
        every = tuple(range(-1, layout.world_size * 4 + 1))
        n = 2 * layout.world_size
        sure = [Parameter("r", n, (0,), False), Parameter("s", n, every, True)]
        got = {tuple(t) for t in pull(sure, layout.world_size * 4, shards, layout.world_size)}
        assert got != {(p, 2 * o, 2 * o + 2, o, h) for p in (0, 1) for o in world for h in world}


@SLOW
@given(st.integers(1, 24), st.integers(1, 24))
def test_even_cuts_refine_to_the_least_common_multiple(tp: int, world_size: int) -> None:
    slices = tp * world_size // gcd(tp, world_size)
    parameter = Parameter("w", slices * 3, (0,), True)
    shards = {rank: Shard(tp, 1, rank, 0) for rank in range(tp)}
    transfers = pull([parameter], 1, shards, max(world_size, tp))
    if world_size >= tp:
        cuts = {t.start for t in transfers}
        expected = {c * parameter.numel // world_size for c in range(world_size)}
        expected |= {c * parameter.numel // tp for c in range(tp)}
        assert cuts == expected
        assert {t.stop - t.start for t in transfers} <= {3 * k for k in range(1, slices + 1)}


def test_bytes_are_balanced() -> None:
    """Two replicas, tp 4 and pp 2 · tp 2, on 8 ranks: all do their part."""
    pipelines = [
        PlannedPipeline(Scheme(tp=4), (0, 1, 2, 3), (), 0.0),
        PlannedPipeline(Scheme(tp=2, pp=2), (4, 5, 6, 7), (), 0.0),
    ]
    layers = 4
    parameters = [Parameter(f"w{n}", 1600, (n,), True) for n in range(layers)]
    parameters += [Parameter(f"norm{n}", 160, (n,), False) for n in range(layers)]
    shards = shards_of(pipelines)
    total = sum(parameter.numel for parameter in parameters)
    for move in (pull, push):
        transfers = move(parameters, layers, shards, 8)
        owners = "source" if move is pull else "destination"
        load = [
            sum(t.stop - t.start for t in transfers if getattr(t, owners) == r) for r in range(8)
        ]
        assert len(set(load)) == 1
        if move is push:
            sent = [sum(t.stop - t.start for t in transfers if t.source == r) for r in range(8)]
            assert sent == [total // 4] * 8


def test_a_round_trip_restores_the_parameters() -> None:
    """Pull into one layout, hand over as gradients of one replica, push back."""
    pipelines = [PlannedPipeline(Scheme(tp=3, pp=2), (5, 0, 3, 1, 4, 2), (), 0.0)]
    shards = shards_of(pipelines)
    parameters = [
        Parameter("embedding", 70, (-1,), True, 7),
        Parameter("norm", 11, (0,), False),
        Parameter("up", 64, (1,), True, 4),
        Parameter("down", 5, (2,), True),
        Parameter("head", 1, (3,), False),
    ]
    masters = [np.random.default_rng(n).normal(size=p.numel) for n, p in enumerate(parameters)]
    holding = {(r, n): np.full(p.numel, np.nan) for r in range(7) for n, p in enumerate(parameters)}
    for t in pull(parameters, 3, shards, 7):
        part = slice(t.start, t.stop)
        holding[t.destination, t.parameter][part] = masters[t.parameter][part]
    back = [np.zeros(p.numel) for p in parameters]
    for t in push(parameters, 3, shards, 7):
        part = slice(t.start, t.stop)
        back[t.parameter][part] += holding[t.source, t.parameter][part]
    for original, returned in zip(masters, back, strict=True):
        np.testing.assert_array_equal(original, returned)


@SLOW
@given(st.integers(0, 200), st.integers(1, 30))
def test_chunks_are_those_of_torch(numel: int, parts: int) -> None:
    expected = [list(range(numel))[slice(*chunk(numel, parts, index))] for index in range(parts)]
    cut = [part.tolist() for part in torch.arange(numel).chunk(parts)] if numel else []
    assert [part for part in expected if part] == cut


@SLOW
@given(st.integers(1, 60), st.integers(1, 12))
def test_stages_are_consecutive_and_even(layers: int, pp: int) -> None:
    stages = [stage_of(layer, layers, pp) for layer in range(-1, layers + 1)]
    assert stages == sorted(stages)
    assert (stages[0], stages[-1]) == (0, pp - 1)
    counts = [stages[1:-1].count(stage) for stage in range(pp)]
    assert counts == [(s + 1) * layers // pp - s * layers // pp for s in range(pp)]


def test_a_replicated_parameter_is_contributed_once_over_tp() -> None:
    norm = Parameter("norm", 10, (0,), False)
    parts = [contributed(norm, Shard(4, 1, t, 0), 1) for t in range(4)]
    assert parts == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert held(norm, Shard(4, 1, 2, 0), 1) == (0, 10)
    assert contributed(norm, Shard(4, 2, 0, 1), 2) is None


def test_bad_parameters_and_layouts_are_refused() -> None:
    with pytest.raises(ValueError, match="parameter w: numel 10 is not a multiple of unit 3"):
        Parameter("w", 10, (0,), True, 3)
    with pytest.raises(ValueError, match="parameter w: is used in no layer"):
        Parameter("w", 10, (), True)
    with pytest.raises(ValueError, match="layer 5 is outside −1 … 4"):
        stage_of(5, 4, 2)
    both = [
        PlannedPipeline(Scheme(tp=2), (0, 1), (), 0.0),
        PlannedPipeline(Scheme(ulysses=2), (0, 1), (), 0.0),
    ]
    with pytest.raises(ValueError, match="rank 0: pipeline 1 wants"):
        shards_of(both)
