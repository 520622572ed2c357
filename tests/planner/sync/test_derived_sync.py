"""The derived sync: the published totals, and what it must depend on."""

import json
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.sync import predict_runs
from seqplan import Profile, Scheme, Strategy
from seqplan.costs.analytic.estimate import OPTIMIZER_MOVED_BYTES
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import HBM_EFFICIENCY, LINK_EFFICIENCY
from seqplan.costs.model_sizes import ModelShape
from seqplan.costs.shipped.catalogue import list_shipped, load_shipped
from seqplan.planner.proposal.proposal_sync import choose_proposal_sync
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.derive import (
    FIXED_MS_PER_UNIT,
    GATHERED_BYTES,
    OPTIMIZER_MS,
    REDUCED_BYTES,
    ParameterTraffic,
    count_parameters,
    derive_sync,
    hardware_of,
)
from seqplan.planner.sync.times import GivenSyncTimes, LayoutSyncTimes
from seqplan.plans.views.parameter_layout import Shard
from seqplan.plans.views.placement import PlacedPipeline
from seqplan.plans.views.relays import relay_moves, saves_traffic
from seqplan.plans.views.resharding import shards_of, unit_moves
from seqplan.plans.views.sync_count import count_moved
from seqplan.plans.views.unit_layout import UnitLayout
from seqplan.runtime.models.llama import ModelConfig
from seqplan.runtime.pipeline.llama_units import NORMS, llama_units

PROFILE = load_shipped("llama-32b-a800-80gb")


def test_both_published_totals_come_out() -> None:
    """Hydraulis, Table 1: 4×tp16, and different replicas; tp·pp = 8 at the smallest is assumed."""
    sync = derive_sync(PROFILE, 64)
    assert sync.of_strategy_ms(Strategy.parse("4×tp16")) == pytest.approx(1110, rel=0.05)
    different = Strategy.parse("2×tp16 + 4×tp8")
    assert sync.of_strategy_ms(different) == pytest.approx(1710, rel=0.05)
    hidden = derive_sync(PROFILE, 64, overlap=0.31)
    assert hidden.of_strategy_ms(different) == pytest.approx(1180, rel=0.05)


@pytest.mark.parametrize("gpus", [8, 64, 1024])
@pytest.mark.parametrize("name", [n for n in list_shipped() if n.endswith("a800-80gb")])
def test_more_ways_to_split_parameters_sync_less(name: str, gpus: int) -> None:
    times = dict(derive_sync(load_shipped(name), gpus).by_layout_ms)
    for pp in {pp for _, pp in times}:
        of_tp = [times[layout] for layout in sorted(times) if layout[1] == pp]
        assert all(fewer >= more for fewer, more in pairwise(of_tp))
    assert len(times) == len({(e.scheme.tp, e.scheme.pp) for e in load_shipped(name).schemes})


def test_of_whole_units_alone_it_is_that_of_collectives() -> None:
    """The runtime syncs ranks that hold whole units by collectives, also between nodes.

    Here not all nodes are full, so that there are no relays.
    """
    profile = load_shipped("llama3-8b-h100-80gb")
    sync, of_trainer = derive_sync(profile, 68), derive_sync(profile, 68, collectives=True)
    assert [layout for layout, _ in sync.alone_ms] == [(1, 1)]
    gigabytes = 6 * profile.shape.sizes.parameters / 1e9
    by_rings = 1e3 * gigabytes / (8 * 50 * LINK_EFFICIENCY)
    assert sync.whole_ms([(1, 1)]) == pytest.approx(by_rings, rel=0.15)
    assert sync.whole_ms([(1, 1), (2, 1)]) > 2 * by_rings
    assert of_trainer.alone_ms == ()
    assert of_trainer.whole_ms([(1, 1)]) == sync.whole_ms([(1, 1)])
    assert of_trainer.whole_ms([(8, 1)]) < sync.whole_ms([(8, 1)])
    assert "by messages (tp1 alone: collectives)" in sync.source
    assert "by collectives: 6 bytes" in of_trainer.source
    assert derive_sync(profile, 64).alone_ms == ()  # relays take no longer


def test_the_fixed_part_is_of_published_latencies_only() -> None:
    """Without it the sync is bytes and latency, and the optimizer moves its states' bytes."""
    document = json.loads(json.dumps(dict(PROFILE.document)))
    for entry in document["schemes"]:
        entry["origin"] = "derived"
    document["residuals"] = "derived: largest 1 %"
    profile = Profile.from_document(document, "made")
    units = profile.shape.layers + 2
    held, _ = count_parameters(profile.shape, (8, 1))
    for gpus, gb_s, share, start_us, message_us, fixed_ms in (
        (64, 25, 56 / 64, 20, 1, FIXED_MS_PER_UNIT),
        (8, 200, 7 / 8, 10, 0, FIXED_MS_PER_UNIT * 25 / 200),
    ):
        published, derived = (derive_sync(p, gpus).whole_ms([(8, 1)]) for p in (PROFILE, profile))
        bytes_ms = 1e3 * 6e-9 * held * share / (gb_s * LINK_EFFICIENCY)
        messages = min(gpus - 1, gpus / 8 + 7)
        start_ms = 2 * units * (start_us + message_us * messages) / 1e3
        assert derived == pytest.approx(bytes_ms + start_ms, abs=0.01)
        each_ms = 2 * units * messages * start_us / 1e3
        assert published == pytest.approx(bytes_ms + each_ms + units * fixed_ms, abs=0.01)
    assert "fixed part from Hydraulis Table 1" in derive_sync(PROFILE, 64).source
    assert "fixed part" not in derive_sync(profile, 64).source
    assert derive_sync(PROFILE, 64).optimizer_ms == OPTIMIZER_MS
    states = OPTIMIZER_MOVED_BYTES * count_parameters(profile.shape, (1, 1))[0] / 64
    hbm = DEVICES["a800-80gb"].hbm_gb_s * 1e6 * HBM_EFFICIENCY
    assert derive_sync(profile, 64).optimizer_ms == pytest.approx(states / hbm, rel=0.01)


@pytest.mark.parametrize("name", ["llama-7b-a800-80gb", "llama3-8b-h100-80gb"])
def test_a_layout_syncs_alike_whatever_schemes_are_left_out(name: str) -> None:
    whole = load_shipped(name)
    tp1 = whole.restrict(layout=(1, 1))
    assert {entry.origin for entry in tp1.schemes} == {"derived"}
    for_all, alone = derive_sync(whole, 16), derive_sync(tp1, 16)
    assert alone.whole_ms([(1, 1)]) == for_all.whole_ms([(1, 1)])
    assert alone.optimizer_ms == for_all.optimizer_ms


def test_published_iterations_come_out_with_the_sync_of_plans() -> None:
    """Of NVIDIA's runs, whose sync is by collectives, mostly hidden."""
    by_collectives, by_messages = (
        np.abs(predict_runs(collectives=collectives)) for collectives in (True, False)
    )
    assert len(by_collectives) > 80
    assert np.median(by_collectives) < 0.045
    assert np.quantile(by_collectives, 0.9) < 0.11
    assert np.median(by_messages) < 0.07


def test_within_a_node_it_is_faster_and_alone_there_is_none() -> None:
    across, within = (dict(derive_sync(PROFILE, gpus).by_layout_ms) for gpus in (16, 8))
    assert all(within[layout] < across[layout] / 3 for layout in across)
    assert set(dict(derive_sync(PROFILE, 1).by_layout_ms).values()) == {0.0}


def small_model(text: str) -> tuple[list[UnitLayout], dict[int, Shard], ModelShape]:
    """Units of a small model without norms, which go apart; a strategy's shards on 64 ranks."""
    config = ModelConfig(
        vocab=1024, hidden=512, layers=4, heads=16, kv_heads=16, ffn=1408, recompute="none"
    )
    units = [
        UnitLayout(name, parts, config.layers, 64)
        for name, parts in llama_units(config)
        if name != NORMS
    ]
    pipelines, first = [], 0
    for scheme, count in Strategy.parse(text).counts:
        for _ in range(count):
            pipelines.append(PlacedPipeline(scheme, tuple(range(first, first + scheme.gpus))))
            first += scheme.gpus
    shape = ModelShape(512, 4, vocab=1024, heads=16, kv_heads=16, ffn=1408)
    return units, shards_of(tuple(pipelines)), shape


@pytest.mark.parametrize("text", ["4×tp16", "2×tp16 + 4×tp8", "1×tp16 + 4×tp8 + 4×tp4"])
def test_bytes_and_messages_are_those_that_the_runtime_moves(text: str) -> None:
    """Of the fullest rank."""
    units, shards, shape = small_model(text)
    elements, messages = [], []
    for rank in range(0, 64, 3):
        moves = [move for unit in unit_moves(units, shards, rank) for move in unit.gather_from]
        elements.append(sum(piece.stop - piece.start for move in moves for piece in move.pieces))
        messages.append(sum(len(move.ranks) for move in moves))
    smallest = min(scheme.tp for scheme, _ in Strategy.parse(text).counts)
    held, count = count_parameters(shape, (smallest, 1))
    assert max(elements) == pytest.approx(held, rel=0.03)
    assert max(messages) == pytest.approx(count * (64 / smallest + 7), rel=0.25)
    assert (GATHERED_BYTES, REDUCED_BYTES) == (2, 4)


@pytest.mark.parametrize("text", ["8×tp4 + 4×tp8", "16×tp2 + 32×tp1", "8×tp2.pp2 + 4×tp8"])
def test_relays_send_what_the_fullest_rank_holds_in_its_node(text: str) -> None:
    units, shards, shape = small_model(text)
    assert saves_traffic(shards, 8)
    elements = [
        sum(count_moved(unit.gather_from, rank).elements for unit in moved)
        for rank in range(64)
        for moved in [relay_moves(units, shards, rank, 8)]
    ]
    layouts = [(scheme.tp, scheme.pp) for scheme, _ in Strategy.parse(text).counts]
    held = max(count_parameters(shape, layout)[0] for layout in layouts)
    assert held * 0.97 * 7 / 8 < max(elements) < held  # small units are cut unevenly


def test_relays_bring_parameters_to_a_node_once() -> None:
    """Each rank an even part between nodes, as a ring does, next to messages within its node."""
    profile = load_shipped("llama3-8b-h100-80gb")
    gigabytes, units = 6 * profile.shape.sizes.parameters / 1e9, profile.shape.layers + 2
    device = DEVICES["h100-80gb"]
    rail_ms = 1e3 * gigabytes / 8 * 7 / 8 / (device.inter_gb_s * LINK_EFFICIENCY)
    node_ms = 1e3 * gigabytes * 7 / 8 / (device.intra_gb_s * LINK_EFFICIENCY)
    rail_ms += 2 * units * (device.inter_latency_us + 7 * device.inter_rank_us) / 1e3
    start_ms = 2 * units * device.intra_latency_us / 1e3
    largest = profile.shape.vocab * profile.shape.hidden / profile.shape.sizes.parameters
    times = dict(derive_sync(profile, 64).by_layout_ms)
    for tp in (2, 4):
        within_ms = node_ms / tp + start_ms
        assert within_ms < rail_ms
        assert times[tp, 1] == pytest.approx(rail_ms + within_ms * largest, rel=0.01)
    assert times[8, 1] == pytest.approx(rail_ms, rel=0.05)
    whole = ModelShape(512, 4, vocab=1024, heads=16, kv_heads=16, ffn=1408)
    assert ParameterTraffic(shape=whole, gpus=64, gpus_per_node=8, links=device).relays((4, 1))
    for gpus, per_node, layout in ((64, 8, (8, 1)), (8, 8, (1, 1)), (68, 8, (1, 1))):
        assert not ParameterTraffic(
            shape=whole, gpus=gpus, gpus_per_node=per_node, links=device
        ).relays(layout)


@pytest.mark.parametrize(
    ("gpu", "device"),
    [
        ("NVIDIA A800-80GB", "a800-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA H100", "h100-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("NVIDIA H200", "h200-141gb"),
        ("NVIDIA B200", "b200-180gb"),
        ("NVIDIA GB200", "gb200-186gb"),
        ("AMD Instinct MI300X", "mi300x-192gb"),
        ("NVIDIA L20", "l20-48gb"),
        ("NVIDIA A100", None),
        ("CPU", None),
    ],
)
def test_links_are_those_of_the_profiles_gpu(gpu: str, device: str | None) -> None:
    document = json.loads(json.dumps(dict(PROFILE.document)))
    document["hardware"]["gpu"] = gpu
    profile = Profile.from_document(document, "made")
    hardware = hardware_of(profile)
    assert (None if hardware is None else hardware.name) == device
    assumed = "as the profile's GPU is not listed" in derive_sync(profile, 64).source
    document["hardware"]["values"] = {"inter_gb_s": 3}
    slow = derive_sync(Profile.from_document(document, "made"), 64).source
    assert ("links across nodes of 3 GB/s a GPU" in slow) == (device is not None)
    assert assumed == (device is None)


def test_which_sync_is_used() -> None:
    assert isinstance(choose_sync(PROFILE, 64), LayoutSyncTimes)
    stated = choose_sync(PROFILE, 64, sync_ms=(1, 2))
    assert isinstance(stated, GivenSyncTimes)
    assert stated.of_strategy_ms(Strategy.from_counts({Scheme(tp=8): 1, Scheme(tp=4): 1})) == 2
    lockstep = load_shipped("gpt-7b-a100-40gb")
    assert choose_sync(lockstep, 64).compute_exposed_ms([(1, 1), (2, 1)]) == 0
    assert choose_proposal_sync(lockstep, 64) is None
    assert choose_proposal_sync(PROFILE, 64, None) is None
    assert choose_proposal_sync(PROFILE, 64, method="eq4") is None
    hidden = choose_proposal_sync(PROFILE, 64, overlap=0.2)
    assert hidden == choose_sync(PROFILE, 64, overlap=0.2)
    with pytest.raises(ValueError, match="overlap is the share of the sync that is hidden"):
        choose_proposal_sync(PROFILE, 64, None, 0.5)
    with pytest.raises(ValueError, match="is of ZeRO-3"):
        choose_proposal_sync(lockstep, 64, (1, 2), 0.0)
