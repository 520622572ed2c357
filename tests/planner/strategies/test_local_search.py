"""Swaps of pipelines between schemes."""

from seqplan.planner.strategies.local_search import swap
from seqplan.plans.scheme import Scheme, Strategy


def test_swaps_keep_within_the_gpus_and_need_enough_pipelines() -> None:
    tp4, tp8, tp16 = Scheme(tp=4), Scheme(tp=8), Scheme(tp=16)
    start = Strategy.from_counts({tp16: 1, tp4: 11})
    assert swap(start, tp4, tp8, 1, 64) == Strategy.from_counts({tp16: 1, tp8: 1, tp4: 10})
    assert swap(start, tp16, tp8, 1, 64) == Strategy.from_counts({tp8: 2, tp4: 11})
    assert swap(start, tp16, tp8, 2, 64) is None
    assert swap(start, tp4, tp16, 4, 64) is None
