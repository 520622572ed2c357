"""What the sync of a step moves, against counts made by hand."""

from seqplan.plans.scheme import Scheme
from seqplan.plans.views.parameter_layout import Block, ParameterLayout
from seqplan.plans.views.placement import PlacedPipeline
from seqplan.plans.views.resharding import Message
from seqplan.plans.views.sync_count import AllGathered, Moved, count_gathered, count_moved
from seqplan.plans.views.unit_layout import ParameterPiece, UnitLayout

RANKS = 4
MATRICES = [
    UnitLayout(
        f"layers.{layer}", [ParameterLayout("m", (Block(8),), 10, (layer,))], 2, RANKS
    )  # 80 elements, 20 of each owner
    for layer in range(2)
]
NORM = UnitLayout(
    "norms", [ParameterLayout("n", (Block(8),), 1, (0,), "partial", vector=True)], 2, RANKS
)
UNITS = [NORM, *MATRICES]


def test_elements_that_stay_on_a_rank_are_not_counted() -> None:
    messages = [
        Message((0, 2), (ParameterPiece(0, 5, 0), ParameterPiece(7, 9, 5))),
        Message((1,), (ParameterPiece(9, 10, 7),)),
    ]
    assert count_moved(messages, 2) == Moved(2, 8)
    assert count_moved(messages, 3) == Moved(3, 15)
    assert count_moved([], 0) == Moved(0, 0)


def test_whole_parameters_are_gathered() -> None:
    placement = (PlacedPipeline(Scheme(ulysses=2), (0, 1)), PlacedPipeline(Scheme(), (3,)))
    # All 8 + 80 + 80 elements but for the 2 + 20 + 20 that a rank owns.
    assert count_gathered(UNITS, placement) == AllGathered(168 - 42, None)


def test_a_rank_gathers_its_part() -> None:
    # Half of each layer is 40 elements, of two owners: rank 3 holds none of what it owns if it
    # has the first half. Of the norm, which every rank holds, 6 elements of 8 are others'.
    across = (PlacedPipeline(Scheme(tp=2), (3, 0)), PlacedPipeline(Scheme(tp=2), (1, 2)))
    assert count_gathered(UNITS, across) == AllGathered(6 + 2 * 40, 4)
    # One whole layer of 80, of which a rank owns 20, from three others.
    stages = (PlacedPipeline(Scheme(pp=2), (0, 1)), PlacedPipeline(Scheme(pp=2), (2, 3)))
    assert count_gathered(UNITS, stages) == AllGathered(6 + 60, 3)
