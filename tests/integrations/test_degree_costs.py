"""Costs by degree: a profile's rings, the environment's, and unknown degrees."""

from types import SimpleNamespace

import numpy as np
import pytest

from seqplan import Cost, find_profile
from seqplan.integrations.degree_costs import (
    add_padding,
    by_degree,
    calibrate_by_degree,
    costs_of_environment,
    ring_costs,
)
from seqplan.integrations.megatron import _alignment
from seqplan.integrations.megatron_groups import list_chains, plan_chains
from seqplan.planner.lockstep.filling.rank_groups import plan_groups


def test_degrees_are_powers_of_two_that_divide_and_the_whole() -> None:
    costs = by_degree(Cost(1.0, 2.0, 3.0), 12)
    assert costs == {
        1: Cost(1.0, 2.0, 3.0),
        2: Cost(0.5, 1.0, 3.0),
        4: Cost(0.25, 0.5, 3.0),
        12: Cost(1 / 12, 2 / 12, 3.0),
    }
    assert set(by_degree(Cost(1.0, 2.0, 3.0), 8, smallest=4)) == {4, 8}
    assert set(by_degree(Cost(1.0, 2.0, 3.0), 12, 2, formed={1, 3, 6, 12})) == {3, 6, 12}


def test_degrees_of_a_schedule_divide_each_other() -> None:
    assert list_chains([1, 2, 4, 8]) == [(1, 2, 4, 8)]
    assert list_chains([1, 2, 3, 4, 6, 12]) == [(1, 2, 4, 12), (1, 2, 6, 12), (1, 3, 6, 12)]
    costs = {d: Cost(1e-6 / d, 0.05 / d, 10.0 + d) for d in (1, 2, 3, 4, 6, 12)}
    lengths = [24_000] * 4
    planned = plan_chains(lengths, 12, 8_192, costs)
    assert [group.degree for group in planned.micro_steps[0]] == [3] * 4
    powers = plan_groups(lengths, 12, 8_192, {d: costs[d] for d in (1, 2, 4, 12)})
    assert planned.predicted_ms < powers.predicted_ms


def test_a_degree_that_is_not_known_is_derived_from_its_neighbors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    known = {1: Cost(1.0, 2.0, 3.0), 2: Cost(0.6, 1.2, 4.0), 8: Cost(0.2, 0.6, 7.0)}
    with caplog.at_level("INFO", "seqplan.integrations"):
        costs = by_degree(known, 16)
    assert "on groups of 4, 16 are derived from those of 1, 2, 8" in caplog.text
    assert costs[2] == known[2]
    # A rank's work times the degree: 1.2 and 1.6, 2.4 and 4.8, of which a third is gained by 4.
    assert costs[4].as_dict() == pytest.approx(Cost(4 / 12, 3.2 / 4, 5.0).as_dict())
    # 2.8 ms of transfers for 7 further ranks, 6 for 15.
    assert costs[16].as_dict() == pytest.approx(Cost(0.1, 0.5, 7.0).as_dict())
    with pytest.raises(ValueError, match="that of one rank is missing"):
        by_degree({2: Cost(1.0, 1.0, 1.0)}, 8)


def test_attention_that_transfers_hide_counts_beyond_the_known_degrees() -> None:
    """Its fit on 8 ranks is linear, as transfers between nodes take longer up to 131,072 tokens."""
    known = ring_costs("llama-7b-a800-80gb", "tp2")
    assert known[8].a < 1e-12
    costs = by_degree(known, 64)
    for degree in (16, 32, 64):
        assert costs[degree].a == pytest.approx(known[1].a / degree)
        # No token gets cheaper than by its transfers, however many ranks share the rest.
        assert costs[degree].b > known[8].b - known[1].b / 8
        longest = 131_072 * degree // 8
        assert costs[degree].micro_batch_ms([longest]) > known[1].work_ms(longest) / degree


def test_rings_of_a_profile() -> None:
    profile = find_profile("llama-7b-a800-80gb")
    rings = {e.scheme.ring for e in profile.schemes if (e.scheme.tp, e.scheme.sp) == (2, 1)}
    assert rings == {1}
    assert ring_costs(profile, "tp2")[1] == Cost.from_profile(profile, "tp2")
    with pytest.raises(ValueError, match="no scheme tp3"):
        ring_costs("llama-7b-a800-80gb", "tp3")


def test_costs_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SEQPLAN_PROFILE", "SEQPLAN_SCHEME", "SEQPLAN_COST"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="no costs: set SEQPLAN_PROFILE and SEQPLAN_SCHEME"):
        costs_of_environment()
    monkeypatch.setenv("SEQPLAN_PROFILE", "llama-7b-a800-80gb")
    monkeypatch.setenv("SEQPLAN_SCHEME", "tp2")
    assert costs_of_environment()[1] == Cost.from_profile("llama-7b-a800-80gb", "tp2")
    monkeypatch.setenv("SEQPLAN_COST", "2e-6,0.1,60")
    with pytest.raises(ValueError, match="SEQPLAN_COST is set next to SEQPLAN_PROFILE"):
        costs_of_environment()
    monkeypatch.delenv("SEQPLAN_PROFILE")
    monkeypatch.delenv("SEQPLAN_SCHEME")
    assert costs_of_environment() == {1: Cost(2e-6, 0.1, 60.0)}
    monkeypatch.setenv("SEQPLAN_COST", "2e-6,fast")
    with pytest.raises(ValueError, match="SEQPLAN_COST='2e-6,fast': must be a,b,c"):
        costs_of_environment()


def test_padding_of_packed_micro_batches_is_priced() -> None:
    costs = {1: Cost(1e-6, 0.1, 60.0), 4: Cost(2.5e-7, 0.03, 65.0)}
    assert add_padding(costs, 1) == costs
    padded = add_padding(costs, 1025)
    assert padded[1].c == 60.0 + 0.1 * 512
    assert padded[4].c == 65.0 + 0.03 * 4 * 512
    scheduler = SimpleNamespace(max_seqlen_per_dp_cp_rank=8192)
    assert _alignment(scheduler) == 1
    scheduler.config = SimpleNamespace(pad_packed_seq_alignment=128)
    assert _alignment(scheduler) == 128
    scheduler.config.cuda_graph_impl = "local"
    assert _alignment(scheduler) == 8192


def steps_of(cost: Cost, count: int) -> list[tuple[list[list[int]], float]]:
    """Steps of one to three micro-batches, as long as they take."""
    rng = np.random.default_rng(0)
    steps = []
    for _ in range(count):
        micros = [rng.integers(500, 9000, 3).tolist() for _ in range(int(rng.integers(1, 4)))]
        steps.append((micros, sum(cost.micro_batch_ms(micro) for micro in micros)))
    return steps


def test_costs_of_all_degrees_follow_from_the_times_of_some() -> None:
    """19 ms a micro-batch, and 25.4 ms for each further rank, as Megatron's benchmark has."""
    believed = by_degree(Cost(1e-6, 0.05, 3.0), 8)
    added = {degree: 19.0 + 25.4 * (degree - 1) for degree in believed}
    truth = {
        degree: Cost(cost.a, cost.b, cost.c + added[degree]) for degree, cost in believed.items()
    }
    measured = {degree: steps_of(truth[degree], 12) for degree in (1, 2, 4)}
    learned, how = calibrate_by_degree(believed, measured)
    assert how.startswith("fitted: times 1.000, and 19 ms a micro-batch with 25.4 ms")
    for degree, cost in truth.items():
        assert learned[degree].c == pytest.approx(cost.c, rel=1e-3)
    # A group of all ranks paid before, and does not any more.
    lengths = [6000]
    assert believed[8].micro_batch_ms(lengths) < believed[1].micro_batch_ms(lengths) / 5
    assert learned[8].micro_batch_ms(lengths) > learned[4].micro_batch_ms(lengths)


def test_a_slower_device_is_one_factor_and_few_times_change_nothing() -> None:
    believed = by_degree(Cost(1e-6, 0.05, 3.0), 4)
    measured = {
        degree: steps_of(Cost(cost.a * 1.3, cost.b * 1.3, cost.c * 1.3), 8)
        for degree, cost in believed.items()
    }
    learned, _ = calibrate_by_degree(believed, measured)
    assert learned[4].c == pytest.approx(believed[4].c * 1.3)
    few = {1: steps_of(believed[1], 3)}
    assert calibrate_by_degree(believed, few) == (believed, "kept: 3 steps measured, 8 are needed")
    with pytest.raises(ValueError, match="measured degree 3: has no cost"):
        calibrate_by_degree(believed, {3: []})
    with pytest.raises(ValueError, match="must be times above 0"):
        calibrate_by_degree(believed, {1: [([[5]], 0.0)]})
