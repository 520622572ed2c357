"""Every baseline runs each sequence once, within memory and ranks, or gives a reason."""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from settings_made import CODE, dense, lockstep, rings

from seqplan import Batch, Scheme, Strategy
from seqplan.costs.latency import Latency
from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.simulation.iteration import compute_ms
from seqplan.planner.systems.deepspeed import deepspeed
from seqplan.planner.systems.flexsp import flexsp_like
from seqplan.planner.systems.hotspa import hotspa
from seqplan.planner.systems.hydraulis import hydraulis
from seqplan.planner.systems.karmarkar_karp import (
    differencing,
    karmarkar_karp,
    verl_micro_batches,
)
from seqplan.planner.systems.loongforge import rebalance
from seqplan.planner.systems.megatron import megatron
from seqplan.planner.systems.megatron_dcp import megatron_dcp
from seqplan.planner.systems.megatron_packing import megatron_packing, next_micro_batch
from seqplan.planner.systems.setting import ComparedSystem, Setting, Skipped
from seqplan.planner.systems.static_best import static_best
from seqplan.planner.systems.static_table import HOTSPA, MEGATRON, find_published_strategies, parse
from seqplan.planner.systems.trainers import trainer_rules
from seqplan.planner.systems.windows import FirstFit, first_fit_decreasing, round_robin

Offers = list[ComparedSystem | Skipped]
BY_NAME: dict[str, Callable[[Setting], Offers]] = {
    "static": lambda s: static_best(s, [Strategy.parse("1×tp16 + 6×tp8")]),
    "megatron": megatron,
    "megatron-searched": lambda s: megatron(s, search=True),
    "hotspa": hotspa,
    "hydraulis": lambda s: hydraulis(s, np.minimum(CODE, s.workload.max_len), cbc_s=0.1),
    "hydraulis-fast": lambda s: hydraulis(s, np.minimum(CODE, s.workload.max_len), fast=True),
    "deepspeed": deepspeed,
    "flexsp": lambda s: flexsp_like(s, limit_s=0.5),
    "megatron-dcp": megatron_dcp,
    "megatron-packing": megatron_packing,
    "verl": karmarkar_karp,
    "trainers": trainer_rules,
}
SETTINGS = {
    "dense": dense,
    "lockstep": lockstep,
    "rings": rings,
    "rings-in-micro-steps": lambda: replace(rings(), lockstep=True, micro_step_multiple=2),
}
RULES = ["trl", "slime", "rebalance", "loongforge", "veomni"]
APPLY = {
    ("dense", "static"): ["static", "one-strategy"],
    ("dense", "megatron"): ["megatron", "megatron-dense", "megatron-balanced"],
    ("dense", "megatron-searched"): ["megatron", "megatron-dense", "megatron-balanced"],
    ("dense", "hotspa"): ["hotspa", "hotspa-balanced"],
    ("dense", "hydraulis"): ["hydraulis", "hydraulis-balanced"],
    ("dense", "hydraulis-fast"): ["hydraulis", "hydraulis-balanced"],
    ("lockstep", "deepspeed"): ["deepspeed", "deepspeed-balanced"],
    ("lockstep", "flexsp"): ["flexsp"],
    ("rings", "megatron"): ["megatron", "megatron-dense", "megatron-balanced"],
    ("rings", "megatron-dcp"): ["megatron-dcp"],
    ("rings", "megatron-packing"): ["megatron-packing"],
    ("dense", "verl"): ["verl"],
    ("rings", "verl"): ["verl"],
    ("dense", "trainers"): RULES,
    ("rings-in-micro-steps", "static"): ["static"],
    ("rings-in-micro-steps", "megatron-dcp"): ["megatron-dcp"],
    ("rings-in-micro-steps", "megatron-packing"): ["megatron-packing"],
    ("rings-in-micro-steps", "verl"): ["verl"],
    ("rings-in-micro-steps", "trainers"): RULES,
}
"""(setting, baseline) → the systems that it gives."""


@pytest.mark.parametrize(("where", "name"), APPLY)
def test_each_sequence_once_within_memory_and_ranks(where: str, name: str) -> None:
    setting = SETTINGS[where]()
    offers = [offer for offer in BY_NAME[name](setting) if isinstance(offer, ComparedSystem)]
    assert [offer.key for offer in offers] == APPLY[where, name]
    for offer in offers:
        for batch in setting.batches:
            execution = offer.step(batch)
            placed: list[int] = []
            for pipeline in execution.pipelines:
                assert len(pipeline.ranks) == pipeline.scheme.gpus
                assert max(pipeline.ranks) < setting.workload.gpus
                model = setting.models[pipeline.scheme]
                for micro in pipeline.micro_batches:
                    placed += micro.sequences
                    lengths = [batch.lengths[i] for i in micro.sequences]
                    if offer.key == "rebalance":  # which pads a micro-batch to its longest
                        lengths = [max(lengths)] * len(lengths)
                    assert micro.tokens == sum(lengths)
                    assert micro.padded_tokens <= model.max_len
                    if offer.key != "megatron-dense":
                        cost = model.latency.micro_batch_ms(lengths)
                        assert micro.cost_ms == pytest.approx(cost, abs=1e-3)
            assert sorted(placed) == list(range(len(batch.lengths))), offer.key
            if setting.in_lockstep:
                assert all(pipeline.micro_step is not None for pipeline in execution.pipelines)
            if offer.key == "megatron-packing":  # whose ranks go from group to group
                _aligned(execution.phases[0], setting.workload.gpus)
                continue
            for phase in execution.phases:
                _no_rank_twice_at_once(phase)


def _aligned(phase: object, gpus: int) -> None:
    """Groups begin at multiples of their size, and every rank has work in each micro-batch."""
    work = [0] * gpus
    for pipeline in phase:  # type: ignore[attr-defined]
        assert pipeline.ranks[0] % pipeline.scheme.gpus == 0
        for rank in pipeline.ranks:
            work[rank] += 1
    assert len(set(work)) == 1, work


def _no_rank_twice_at_once(phase: object) -> None:
    occupied: set[tuple[int | None, int]] = set()
    for pipeline in phase:  # type: ignore[attr-defined]
        for rank in pipeline.ranks:
            assert (pipeline.micro_step, rank) not in occupied
            occupied.add((pipeline.micro_step, rank))


@pytest.mark.parametrize(
    ("where", "name", "why"),
    [
        ("dense", "deepspeed", "no sequence-parallel schemes"),
        ("dense", "flexsp", "no sequence-parallel schemes"),
        ("dense", "megatron-dcp", "no ring"),
        ("lockstep", "megatron", "lockstep"),
        ("lockstep", "hotspa", "ZeRO-3"),
        ("lockstep", "hydraulis", "lockstep"),
        ("lockstep", "megatron-dcp", "no ring"),
        ("dense", "megatron-packing", "no context-parallel schemes"),
    ],
)
def test_skipped_baselines_state_a_reason(where: str, name: str, why: str) -> None:
    (offer,) = BY_NAME[name](SETTINGS[where]())
    assert isinstance(offer, Skipped)
    assert why in offer.why


@pytest.mark.parametrize("name", ["verl", "trainers"])
def test_a_trainer_runs_on_a_scheme_that_holds_all_data(name: str) -> None:
    setting = dense()
    batches = [Batch.from_lengths([min(n, 4096) for n in b.lengths]) for b in setting.batches]
    short = replace(setting, batches=batches, longest=4096)
    (offer, *_) = BY_NAME[name](short)
    assert isinstance(offer, ComparedSystem)
    assert offer.description.startswith("16×tp4")
    (offer, *_) = BY_NAME[name](replace(short, longest=32768))
    assert isinstance(offer, ComparedSystem)
    assert offer.description.startswith("4×tp16")


def test_differencing_makes_parts_of_about_equal_sums() -> None:
    # Korf's example: 4, 5, 6, 7, 8 differ by 2 where the best differ by 0.
    assert differencing([4, 5, 6, 7, 8], 2) == [[0, 1, 3], [2, 4]]
    numbers = np.random.default_rng(0).integers(1, 1000, 240).tolist()
    for equal_size in (False, True):
        parts = differencing(numbers, 8, equal_size=equal_size)
        assert sorted(i for part in parts for i in part) == list(range(240))
        sums = [sum(numbers[i] for i in part) for part in parts]
        assert max(sums) - min(sums) <= (5 if equal_size else 1)
        if equal_size:
            assert {len(part) for part in parts} == {30}
    assert differencing([3], 3) == [[0], [], []]


def test_rebalancing_moves_samples_of_slow_ranks_only() -> None:
    costs = [9.0, 8.0, 3.0, 2.0, 1.0]
    near = [[0, 4], [1, 3, 2]]  # 10 and 13 of 11.5
    assert rebalance(near, costs, [1] * 5) == near
    assert rebalance([[0, 1, 2, 3], [4]], costs, [1] * 5, room=inf) == [[0, 3, 4], [1, 2]]
    # A rank takes at most 1.2 times the mean tokens, so the second one takes the fourth sample.
    assert rebalance([[0, 1, 2, 3], [4]], costs, [10, 1, 1, 8, 1]) == [[0, 4], [1, 2, 3]]
    # Largest first leaves 11, 8 and 8: the slowest and the fastest rank then swap samples.
    level = [[4, 6, 5], [0, 2], [3, 1]]
    costs = [5.0, 5.0, 4.0, 4.0, 3.0, 3.0, 3.0]
    assert rebalance([[*range(7)], [], []], costs, [1] * 7, room=inf) == level
    alone = [[0, 1], [2]]  # one sample as long as both ranks
    assert rebalance(alone, [9.0, 1.0, 1.0], [1] * 3) == alone


def test_dense_attention_is_never_faster() -> None:
    setting = dense()
    varlen, whole, _ = (o for o in megatron(setting) if isinstance(o, ComparedSystem))
    for batch in setting.batches:
        times = [compute_ms(o.step(batch).phases, 1 / 3) for o in (varlen, whole)]
        assert times[0] <= times[1]


def test_a_searched_configuration_is_no_worse_than_the_published() -> None:
    setting = dense()
    published, searched = (
        sum(compute_ms(o.step(batch).phases, 1 / 3) for batch in setting.batches)
        for o in (megatron(setting)[0], megatron(setting, search=True)[0])
        if isinstance(o, ComparedSystem)
    )
    assert searched <= published


def test_the_published_table() -> None:
    assert parse("DP4TP8PP2") == Strategy.from_counts({Scheme(tp=8, pp=2): 4})
    assert parse("DP8") == Strategy.from_counts({Scheme(): 8})
    name = "llama-32b-a800-80gb"
    assert [str(s) for s in find_published_strategies(MEGATRON, name, 64, 16384)] == ["4×tp8.pp2"]
    assert [str(s) for s in find_published_strategies(MEGATRON, name, 64, 32768)] == ["4×tp16"]
    assert find_published_strategies(MEGATRON, name, 64, 65536) == []
    assert find_published_strategies(MEGATRON, name, 128, 32768) == []
    assert len(find_published_strategies(HOTSPA, name, 32, 32768)) == 3


@given(st.lists(st.integers(1, 50), min_size=1), st.integers(50, 120), st.sampled_from([1, 4]))
def test_windows(lengths: list[int], window: int, unit: int) -> None:
    window += 2  # room for the padding of the longest
    windows = first_fit_decreasing(lengths, window, unit)
    assert sorted(i for part in windows for i in part) == list(range(len(lengths)))
    padded = [sum(-(-lengths[i] // unit) * unit for i in part) for part in windows]
    assert max(padded) <= window
    # Any two windows together exceed one: first fit would have joined them.
    assert all(sum(pair) > window for pair in pairwise(padded))
    assigned = round_robin(windows, 3)
    assert sorted(map(len, assigned))[-1] - sorted(map(len, assigned))[0] <= 1


@given(st.lists(st.integers(1, 20), min_size=1), st.integers(20, 60))
def test_each_sequence_goes_into_the_first_window_with_room(lengths: list[int], size: int) -> None:
    windows, room = FirstFit(size, len(lengths)), [size] * len(lengths)
    for length in lengths:
        first = next(number for number, left in enumerate(room) if left >= length)
        assert windows.place(length) == first
        room[first] -= length
    with pytest.raises(ValueError, match=r"exceeds the window of \d+\. Use a longer window"):
        windows.place(size + 1)


@given(st.lists(st.integers(1, 99), min_size=1), st.sampled_from([4, 16]), st.integers(25, 150))
def test_megatrons_packing_looks_at_every_group(lengths: list[int], ranks: int, limit: int) -> None:
    """An oracle that goes through all groups of all degrees for each sequence."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    groups: list[tuple[int, list[int]]] = []
    later, free, largest = [], ranks, 0.0
    for position in order:
        options = [
            (max(largest, sum(lengths[i] ** 2 for i in [*held, position]) / sp), sp, number)
            for sp in (1, 2, 4)
            for number, (degree, held) in enumerate([*groups, (sp, [])])
            if degree == sp
            and sum(lengths[i] for i in [*held, position]) / sp <= limit
            and (held or free >= sp)
        ]
        allowed = [of for of in options if of[0] <= 1.05 * lengths[order[0]] * limit]
        if not groups:  # the longest takes the fewest ranks that hold it
            allowed = sorted(options, key=lambda of: of[1])[:1]
        if not allowed:
            later.append(position)
            continue
        largest, sp, number = min(allowed, key=lambda of: of[0])
        if number == len(groups):
            groups.append((sp, []))
            free -= sp
        groups[number][1].append(position)
    schemes = [Scheme(ulysses=degree) for degree in (1, 2, 4)]
    placed, rest = next_micro_batch(lengths, order, schemes, ranks, limit)
    assert rest == later
    assert [group.positions for group in placed] == [held for _, held in groups]


def test_without_pulp_the_published_packing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs no CBC is compared all the same."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *_: None if name == "pulp" else find(name)
    )
    published, balanced = BY_NAME["hydraulis"](dense())
    assert isinstance(published, Skipped)
    assert published.why.endswith("needs the pulp package: pip install 'seqplan[reference]'")
    assert isinstance(balanced, ComparedSystem)
    assert all(isinstance(system, ComparedSystem) for system in BY_NAME["hydraulis-fast"](dense()))


def test_verl_adds_a_micro_batch_while_one_is_too_long() -> None:
    """Two would hold 18 of 20 tokens, but not 12 and 6 of 10 each."""
    model = SchemeModel(Scheme(), Latency(0.0, 1.0, 1.0, 0.0), 10)
    (of_rank,) = verl_micro_batches([6, 6, 6], 1, model)
    assert sorted(of_rank) == [[0], [1], [2]]
