"""The 1F1B order of one stage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqplan.plans.one_f_one_b import stage_order


def test_the_textbook_example() -> None:
    def text(stage: int) -> str:
        return " ".join(f"{kind}{index}" for kind, index in stage_order(3, stage, 4))

    assert text(0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert text(1) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert text(2) == "F0 B0 F1 B1 F2 B2 F3 B3"


@given(st.integers(1, 9), st.data())
def test_each_pass_once_and_few_in_flight(pp: int, data: st.DataObject) -> None:
    stage = data.draw(st.integers(0, pp - 1))
    count = data.draw(st.integers(0, 20))
    order = stage_order(pp, stage, count)
    for kind in "FB":
        assert [index for pass_kind, index in order if pass_kind == kind] == list(range(count))
    in_flight = 0
    for kind, _ in order:
        in_flight += 1 if kind == "F" else -1
        assert 0 <= in_flight <= pp - stage
    for index in range(count):
        assert order.index(("F", index)) < order.index(("B", index))


@pytest.mark.parametrize(("pp", "stage", "count"), [(2, 2, 1), (2, -1, 1), (1, 0, -1)])
def test_invalid_stages_are_rejected(pp: int, stage: int, count: int) -> None:
    with pytest.raises(ValueError, match="must"):
        stage_order(pp, stage, count)
