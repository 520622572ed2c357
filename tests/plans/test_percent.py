"""Percentages have one form, and no line ends between a number and its sign."""

from seqplan.plans.percent import percent, wrap_text


def test_percentages_have_one_form() -> None:
    assert [percent(share) for share in (0.0547, -0.2, -1e-5, 12.5)] == [
        *("5.5 %", "-20.0 %", "0.0 %", "1,250.0 %")
    ]
    assert (percent(0.0547, 2), percent(0.03, 0, "+")) == ("5.47 %", "+3 %")
    assert wrap_text("a gain of 5.5 % is none", 13) == ["a gain of", "5.5 % is none"]
