"""Where pipelines run: runs of ranks, and whether reduce-scatters may overlap backward."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from seqplan.plans.scheme import Scheme
from seqplan.plans.views.placement import (
    PlacedPipeline,
    can_overlap_reduction,
    rank_runs,
    ranks_of_runs,
)


@given(st.lists(st.integers(0, 40), unique=True))
def test_runs_keep_the_order_of_ranks(ranks: list[int]) -> None:
    runs = rank_runs(ranks)
    assert ranks_of_runs(runs) == tuple(ranks)
    assert all(before[1] != after[0] for before, after in pairwise(runs))


def test_reductions_overlap_in_stages_of_one_and_ranks_of_one_pipeline_only() -> None:
    one, ring, stages = Scheme(), Scheme(ring=2), Scheme(pp=2)
    assert can_overlap_reduction((PlacedPipeline(ring, (0, 1)), PlacedPipeline(one, (2,))))
    assert not can_overlap_reduction((PlacedPipeline(stages, (0, 1)), PlacedPipeline(one, (2,))))
    assert not can_overlap_reduction((PlacedPipeline(ring, (0, 1)), PlacedPipeline(one, (1,))))
    assert can_overlap_reduction(())
