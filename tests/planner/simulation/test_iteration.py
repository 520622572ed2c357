"""The judge against hand-computed iterations, and what holds of every iteration."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqplan import Batch, Scheme
from seqplan.costs.model_sizes import ModelShape, parameters
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.simulation.flops import model_flops, peak_flops
from seqplan.planner.simulation.iteration import Execution, compute_ms, simulate_iteration
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import GivenSyncTimes
from seqplan.plans.plan import MicroBatch, PlannedPipeline

PROFILE = load_shipped("llama-32b-a800-80gb").restrict(measured=True)
NOTHING = GivenSyncTimes(0, 0, "none", 0, 0)
BATCH = Batch.from_lengths([100, 200])


def pipeline(
    scheme: str, first: int, costs: list[float], micro_step: int | None = None
) -> PlannedPipeline:
    parsed = Scheme.parse(scheme)
    micros = tuple(MicroBatch((0,), 1, 1, cost) for cost in costs)
    return PlannedPipeline(
        parsed, tuple(range(first, first + parsed.gpus)), micros, 0.0, micro_step
    )


def test_one_stage_pipelines_and_an_idle_rank() -> None:
    phase = (pipeline("tp2", 0, [10, 20]), pipeline("tp1", 2, [12]))
    sync = GivenSyncTimes(0.25, 1, "made", 5, 8)
    iteration = simulate_iteration(BATCH, Execution((phase,)), PROFILE, 4, sync)
    assert iteration.compute_ms == 30
    assert iteration.sync_ms == 6  # different replicas: 8, a quarter hidden
    assert iteration.total_ms == 37
    assert iteration.rank_busy_ms == (30, 30, 12, 0)
    assert iteration.rank_end_ms == (30, 30, 12, 0)
    assert iteration.imbalance == pytest.approx(30 / 12 - 1)
    assert iteration.bubble_ratio == pytest.approx(1 - 72 / 120)
    assert iteration.tokens_per_s == pytest.approx(300 / 37 * 1000)
    assert [span.kind for span in iteration.spans[-2:]] == ["sync", "optimizer"]
    assert iteration.spans[-1].end_ms == iteration.total_ms
    assert iteration.strategy == "1×tp2 + 1×tp1"


def test_two_stages_have_their_bubbles() -> None:
    """Two equal micro-batches of 30 on two stages: F10 F10 … B20 B20, the end at 3·30."""
    execution = Execution(((pipeline("pp2", 0, [30, 30]),),))
    iteration = simulate_iteration(BATCH, execution, PROFILE, 2, NOTHING)
    assert iteration.compute_ms == pytest.approx(90)
    assert iteration.rank_busy_ms == (60, 60)
    assert iteration.bubble_ratio == pytest.approx(1 / 3)
    assert iteration.imbalance == 0


def test_micro_steps_go_through_stages_as_micro_batches_do() -> None:
    """Two micro-steps of 30 at each of two stages; the second group of the last takes 15."""
    groups = (("pp2", 30.0, 0), ("pp2", 30.0, 0), ("pp2", 30.0, 1), ("pp2", 15.0, 1))
    phase = tuple(
        replace(pipeline(scheme, 0, [cost], number), ranks=(place % 2, place % 2 + 2))
        for place, (scheme, cost, number) in enumerate(groups)
    )
    iteration = simulate_iteration(BATCH, Execution((phase,)), PROFILE, 4, NOTHING)
    assert iteration.compute_ms == pytest.approx(90)
    assert compute_ms((phase,), PROFILE.forward_fraction) == pytest.approx(90)
    assert iteration.rank_busy_ms == pytest.approx((60, 45, 60, 45))
    assert iteration.imbalance == pytest.approx(60 / 45 - 1)
    assert max(iteration.rank_end_ms) == pytest.approx(90)


def test_phases_follow_one_another_with_switches() -> None:
    phases = ((pipeline("tp2", 0, [10]),), (pipeline("tp1", 0, [4]), pipeline("tp1", 1, [6])))
    iteration = simulate_iteration(BATCH, Execution(phases, switch_ms=100), PROFILE, 2, NOTHING)
    assert iteration.compute_ms == 16
    assert iteration.sync_ms == 100
    assert iteration.rank_end_ms == (14, 16)
    assert iteration.imbalance == pytest.approx(16 / 14 - 1)
    switch = next(span for span in iteration.spans if span.kind == "switch")
    assert (switch.start_ms, switch.end_ms) == (10, 110)
    assert iteration.spans[-1].end_ms == 116
    assert Execution(phases).layouts == [{(2, 1)}, {(1, 1)}]  # within a phase replicas are equal


def test_micro_steps_wait_for_the_slowest_group() -> None:
    phase = (pipeline("u2", 0, [10], 0), pipeline("u2", 2, [4], 0), pipeline("u4", 0, [5], 1))
    iteration = simulate_iteration(BATCH, Execution((phase,)), PROFILE, 4, NOTHING)
    assert iteration.compute_ms == 15
    assert iteration.rank_busy_ms == (15, 15, 9, 9)
    assert iteration.rank_end_ms == (15, 15, 15, 15)
    assert iteration.imbalance == pytest.approx(15 / 9 - 1)  # waiting between micro-steps left out
    assert not iteration.strategy.startswith("3")


def test_a_rank_beyond_the_gpus_is_rejected() -> None:
    with pytest.raises(ValueError, match="rank 3 is beyond the 2 GPUs"):
        simulate_iteration(BATCH, Execution(((pipeline("tp4", 0, [1]),),)), PROFILE, 2, NOTHING)


COSTS = st.lists(st.floats(0.1, 1000), min_size=1, max_size=6)


@settings(max_examples=27)
@given(st.lists(st.tuples(st.sampled_from(["tp1", "tp2", "pp2", "pp4"]), COSTS), max_size=4), COSTS)
def test_invariants_of_every_iteration(
    work: list[tuple[str, list[float]]], alone: list[float]
) -> None:
    phase, first = [], 0
    for scheme, costs in [("tp1", alone), *work]:
        phase.append(pipeline(scheme, first, costs))
        first += Scheme.parse(scheme).gpus
    iteration = simulate_iteration(BATCH, Execution((tuple(phase),)), PROFILE, first + 1, NOTHING)
    for busy, end in zip(iteration.rank_busy_ms, iteration.rank_end_ms, strict=True):
        assert busy <= end * (1 + 1e-9) <= iteration.compute_ms * (1 + 2e-9)
    assert iteration.imbalance >= 0
    assert 0 <= iteration.bubble_ratio < 1
    assert iteration.mfu is not None
    assert iteration.compute_ms == pytest.approx(compute_ms([phase], PROFILE.forward_fraction))
    total = sum(
        (span.ranks[1] - span.ranks[0]) * (span.end_ms - span.start_ms) for span in iteration.spans
    )
    assert total == pytest.approx(sum(iteration.rank_busy_ms))


def test_flops_by_hand() -> None:
    shape = ModelShape(hidden=4, layers=2, vocab=10)
    assert parameters(shape) == 2 * 12 * 16 + 2 * 10 * 4
    attention = 12 * 2 * 4 * (9 + 25) / 2
    assert model_flops(shape, [3, 5]) == 6 * (464 - 40) * 8 + attention
    assert model_flops(ModelShape(hidden=4, layers=2), [3]) is None
    for heads, ffn, tied in ((2, 16, False), (2, 7, True), (1, 7, False)):
        sizes = {"heads": 2, "kv_heads": heads, "ffn": ffn}
        layer = 2 * 4 * (4 + 2 * heads) + 3 * 4 * ffn + 2 * 4
        whole = replace(shape, **sizes, tied=tied)
        assert model_flops(whole, [3, 5]) == 6 * (2 * layer + 40) * 8 + attention
        assert parameters(whole) == 2 * layer + (1 if tied else 2) * 40 + 4
    hardware = {"NVIDIA A800-80GB": 312e12, "NVIDIA H100 PCIe": 756e12, "of another kind": None}
    for gpu, peak in hardware.items():
        assert peak_flops(replace(PROFILE, hardware=gpu)) == peak


@pytest.mark.parametrize("overlap", [-0.1, 1.5, float("nan")])
def test_an_overlap_is_a_share(overlap: float) -> None:
    with pytest.raises(ValueError, match="overlap must be a share"):
        choose_sync(PROFILE, 64, overlap=overlap)
