"""Neighbors of the best strategies are found by exact times, the same ones every time."""

from seqplan import Batch, Strategy, Workload, find_profile
from seqplan.planner.bounds.with_sync import Families
from seqplan.planner.proposal.batch_times import BatchTimes
from seqplan.planner.proposal.neighbors import find_neighbors
from seqplan.planner.sync.times import NO_SYNC

GPUS = 64


def judge(known: list[Strategy]) -> list[BatchTimes]:
    """Time strategies on two batches of one long sequence each and many short ones."""
    models = Workload(GPUS, 32_768, 200_000).models(find_profile("llama-32b-a800-80gb"))
    families = Families(models, GPUS, NO_SYNC)
    batches = [Batch.from_lengths([longest, *[2_000] * 80]) for longest in (30_000, 28_000)]
    judged = [BatchTimes(batch, families, NO_SYNC) for batch in batches]
    for batch_times in judged:
        for strategy in known:
            batch_times.try_strategy(strategy)
    return judged


def mean_best_ms(strategies: list[Strategy], judged: list[BatchTimes]) -> float:
    return sum(min(map(one.time_ms, strategies)) for one in judged) / len(judged)


def test_a_neighbor_is_faster_than_what_was_known() -> None:
    known = [Strategy.parse("4×tp16"), Strategy.parse("2×tp16 + 4×tp8")]
    judged = judge(known)
    before_ms = mean_best_ms(known, judged)
    neighbors = find_neighbors(known, judged, GPUS)
    assert mean_best_ms([*known, *neighbors], judged) < before_ms
    assert Strategy.parse("1×tp16 + 6×tp8") in neighbors
    assert not set(neighbors) & set(known)
    assert len(set(neighbors)) == len(neighbors)
    assert all(strategy.gpus <= GPUS for strategy in neighbors)
    assert find_neighbors(known, judge(known), GPUS) == neighbors


def test_a_lone_strategy_of_one_scheme_has_none() -> None:
    known = [Strategy.parse("4×tp16")]
    assert find_neighbors(known, judge(known), GPUS) == []
