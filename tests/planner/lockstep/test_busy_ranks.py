"""No rank idle in a micro-step: groups split or widened, sequences moved, and the rest idle."""

import pytest

from seqplan.planner.lockstep.filling.busy_ranks import BusyRanks
from seqplan.planner.placement.fleet import PipelineClass


def classes(*degrees: int) -> list[PipelineClass]:
    """Groups of these degrees, largest first: 10 tokens a rank, and 20 % more work above one."""
    works = {d: 1.2 / d if d > 1 else 1.0 for d in degrees}
    return [PipelineClass(1, 0.0, works[d], 1.0, 10 * d, 1, 1, d) for d in degrees]


def test_a_group_is_split_or_widened_whichever_is_shorter() -> None:
    busy = BusyRanks(classes(2, 1), [8, 4, 4], 4)
    # The group of two splits; then the one of 8 tokens takes another rank.
    assert busy.occupy_idle_ranks([(1, (0,)), (1, (1, 2))]) == [(0, (0,)), (1, (1,)), (1, (2,))]


def test_a_sequence_of_another_micro_step_moves_where_no_group_can() -> None:
    busy = BusyRanks(classes(1), [9, 9, 5, 2, 2], 2)
    micro_steps = [[(0, (0,))], [(0, (1,)), (0, (2, 3, 4))]]
    assert busy.borrow_sequences(micro_steps) == [[(0, (0,)), (0, (3,))], [(0, (1,)), (0, (2, 4))]]
    assert micro_steps[0] == [(0, (0,))]


def test_ranks_stay_idle_where_every_group_has_one_sequence() -> None:
    busy = BusyRanks(classes(1), [9, 9], 3)
    (left,) = busy.borrow_sequences([[(0, (0,)), (0, (1,))]])
    assert busy.idle(left) == 1


def test_equal_groups_share_evenly() -> None:
    busy = BusyRanks(classes(1), [6, 3, 2, 1], 2)
    assert busy.micro_step_ms([(0, (0, 1)), (0, (2, 3))]) == pytest.approx(10.0)
    assert busy.micro_step_ms(busy.rebalance_groups([(0, (0, 1)), (0, (2, 3))])) == pytest.approx(
        7.0
    )
