"""The derived sync: the published totals, and what it must depend on."""

import json
from itertools import pairwise

import pytest

from seqplan import Profile, Scheme, Strategy
from seqplan.costs.model_sizes import ModelShape
from seqplan.costs.shipped.catalogue import list_shipped, load_shipped
from seqplan.planner.proposal.proposal_sync import choose_proposal_sync
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.derive import (
    GATHERED_BYTES,
    REDUCED_BYTES,
    count_parameters,
    derive_sync,
    hardware_of,
)
from seqplan.planner.sync.times import GivenSyncTimes, LayoutSyncTimes
from seqplan.plans.views.placement import PlacedPipeline
from seqplan.plans.views.resharding import shards_of, unit_moves
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


def test_within_a_node_it_is_faster_and_alone_there_is_none() -> None:
    across, within = (dict(derive_sync(PROFILE, gpus).by_layout_ms) for gpus in (16, 8))
    assert all(within[layout] < across[layout] / 3 for layout in across)
    assert set(dict(derive_sync(PROFILE, 1).by_layout_ms).values()) == {0.0}


@pytest.mark.parametrize("text", ["4×tp16", "2×tp16 + 4×tp8", "1×tp16 + 4×tp8 + 4×tp4"])
def test_bytes_and_messages_are_those_that_the_runtime_moves(text: str) -> None:
    """Of the fullest rank, without norms, which go apart."""
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
    shards = shards_of(tuple(pipelines))
    elements, messages = [], []
    for rank in range(0, 64, 3):
        moves = [move for unit in unit_moves(units, shards, rank) for move in unit.gather_from]
        elements.append(sum(piece.stop - piece.start for move in moves for piece in move.pieces))
        messages.append(sum(len(move.ranks) for move in moves))
    shape = ModelShape(512, 4, vocab=1024, heads=16, kv_heads=16, ffn=1408)
    smallest = min(scheme.tp for scheme, _ in Strategy.parse(text).counts)
    held, count = count_parameters(shape, (smallest, 1))
    assert max(elements) == pytest.approx(held, rel=0.03)
    assert max(messages) == pytest.approx(count * (64 / smallest + 7), rel=0.25)
    assert (GATHERED_BYTES, REDUCED_BYTES) == (2, 4)


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
