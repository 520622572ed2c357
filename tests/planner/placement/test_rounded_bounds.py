"""Bounds are written in whole microseconds."""

from hypothesis import example, given
from hypothesis import strategies as st

from seqplan.planner.placement.assembly import floor_us


@given(st.floats(0, 1e9))
@example(129.789)
def test_a_bound_is_rounded_down_once(time_ms: float) -> None:
    """A plan's bound is its layout's if that is higher: one of them is then rounded twice."""
    assert time_ms - 1.001e-3 < floor_us(time_ms) <= time_ms
    whole = round(time_ms, 3)
    assert floor_us(whole) == whole
