"""Whole proposals on a shipped profile."""

import numpy as np
import pytest
from instances import LLAMA_32B, batch_of

from seqplan import Infeasible, Workload, find_profile, make_proposal
from seqplan.planner.proposal.candidates import Effort, propose
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import layouts_of


def test_a_proposal_holds_the_longest_sequence_and_stands_near_its_bound() -> None:
    batches = [batch_of(seed) for seed in range(6)]
    proposal = propose(batches, LLAMA_32B, 64, 32768, Effort(judged=6))
    assert proposal.lower_bound_ms <= proposal.pool_ms <= proposal.expected_ms
    assert proposal.expected_ms <= proposal.lower_bound_ms * 1.15
    assert any(proposed.max_sequence >= 32768 for proposed in proposal.candidates)
    assert all(proposed.strategy.gpus <= 64 for proposed in proposal.candidates)
    assert sum(proposed.wins for proposed in proposal.candidates) == pytest.approx(1.0)


def test_layouts_that_hold_most_batches_are_candidates() -> None:
    """One sequence is too long for tp1, whose sync takes a fifth of the time of other layouts."""
    lengths = np.random.default_rng(0).lognormal(7, 0.8, 6000).astype(int).clip(32, 8000)
    lengths[100] = 30_000
    profile = find_profile("llama-13b-a800-80gb")
    sync = choose_sync(profile, 64, overlap=0.5)
    proposal = make_proposal(profile, Workload(64, 32_768, 200_000), lengths, sync=sync)
    layouts = proposal.layouts
    assert layouts is not None
    assert layouts.static_ms is not None
    assert layouts.chosen is None
    assert proposal.expected_ms < 0.9 * layouts.static_ms
    strategies = [candidate.strategy for candidate in proposal.candidates]
    assert frozenset({(1, 1)}) in {layouts_of(s for s, _ in of.counts) for of in strategies}
    assert layouts.static in map(str, strategies)


def test_a_strategy_takes_as_long_whatever_is_proposed_next_to_it() -> None:
    """And so do groups that regroup, though one sequence alone takes as long as a strategy."""
    lengths = np.random.default_rng(0).lognormal(6.5, 1.1, 6000).astype(int).clip(32, 60_000)
    lengths[::150] = 58_000
    whole = find_profile("qwen3-8b-h100-80gb").keep_modes({"none", "full"})
    times = []
    for profile in (whole, whole.restrict(layout=(2, 1))):
        proposal = make_proposal(profile, Workload(32, 65_536, 70_000), lengths)
        assert proposal.layouts is not None
        assert proposal.layouts.chosen == "tp2"
        assert all(row.expected_ms < 2 * proposal.expected_ms for row in proposal.layouts.rows)
        of_strategies = {str(of.strategy): of.expected_ms for of in proposal.candidates}
        of_all = {"all": proposal.expected_ms, "static": proposal.layouts.static_ms}
        times.append(of_strategies | of_all)
    common = times[0].keys() & times[1].keys()
    assert len(common) >= 4
    assert {key: times[0][key] for key in common} == pytest.approx(
        {key: times[1][key] for key in common}, rel=2e-3
    )


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([], "there are no sequences"),
        ([[1, 2]], r"sequence 0 has length \[1, 2\]"),
        ([[1, 2], [3]], r"sequence 0 has length \[1, 2\]"),
        ([3, 2.5], "sequence 1 has length 2.5"),
        ([3, 0], "sequence 1 has length 0. Give whole numbers"),
        ([0, 0], "sequence 0 has length 0. Give whole numbers"),
        ([5, -3, 7], "sequence 1 has length -3. Give whole numbers"),
        ([-1.0], "sequence 0 has length -1.0. Give whole numbers"),
        ([700, 300], "the data has 1000 tokens, fewer than a step of"),
    ],
)
def test_lengths_of_a_proposal_are_whole_numbers(lengths: list[int], message: str) -> None:
    profile, workload = find_profile("llama-7b-a800-80gb"), Workload(2, 4096, 2000)
    with pytest.raises(ValueError, match=message):
        make_proposal(profile, workload, lengths)


def test_a_plain_list_of_lengths_is_proposed_for() -> None:
    profile, workload = find_profile("llama-7b-a800-80gb"), Workload(2, 4096, 2000)
    lengths = [100, 700, 2000, 90]
    proposal = make_proposal(profile, workload, lengths)
    assert proposal.to_json() == make_proposal(profile, workload, np.array(lengths)).to_json()


def test_shards_that_leave_no_room_are_named() -> None:
    """More GPUs do not help: the states stay in as many parts."""
    profile, lengths = find_profile("llama3-70b-h100-80gb"), [700, 2000, 8000]
    few = Workload(1024, 8192, 8000, optimizer_shards=2)
    with pytest.raises(Infeasible, match=r"^optimizer_shards 2: .* Raise optimizer_shards$"):
        make_proposal(profile, few, lengths)
    too_few_gpus = Workload(8, 8192, 8000, optimizer_shards=2)
    with pytest.raises(Infeasible, match="8 GPUs are too few"):
        make_proposal(profile, too_few_gpus, lengths)
