"""What a strategy's exchange takes, and the families of strategies that take equally long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqplan.planner.sync.times import (
    Exchange,
    GivenExchange,
    LayoutExchange,
    layout_text,
    layouts_of,
    parse_layout,
)
from seqplan.plans.scheme import Scheme, Strategy

LAYOUTS = [(1, 1), (2, 1), (4, 1), (4, 2), (8, 1)]

TIMES = st.floats(0, 5000)
EXCHANGES = st.one_of(
    st.builds(
        lambda overlap, equal, different: GivenExchange(overlap, 0.0, "made", equal, different),
        st.floats(0, 1),
        TIMES,
        TIMES,
    ),
    st.builds(
        lambda overlap, times: LayoutExchange(
            overlap, 0.0, "made", tuple(zip(LAYOUTS, times, strict=True))
        ),
        st.floats(0, 1),
        st.tuples(*[TIMES] * len(LAYOUTS)),
    ),
)
STRATEGIES = st.dictionaries(
    st.builds(
        lambda layout, ulysses: Scheme(*layout, ulysses),
        st.sampled_from(LAYOUTS),
        st.sampled_from([1, 2]),
    ),
    st.integers(1, 3),
    min_size=1,
).map(Strategy.of)


@given(EXCHANGES, STRATEGIES)
def test_each_strategy_is_in_a_family_that_takes_no_longer(
    exchange: Exchange, strategy: Strategy
) -> None:
    layouts = layouts_of(scheme for scheme, _ in strategy.counts)
    families = exchange.families(LAYOUTS)
    times = [family.exchange_ms for family in families]
    assert any(
        layouts <= family.layouts and family.exchange_ms <= exchange.of_strategy_ms(strategy)
        for family in families
    )
    assert all(family.layouts <= set(LAYOUTS) for family in families)
    assert min(times) == min(exchange.compute_exposed_ms([layout]) for layout in LAYOUTS) or (
        isinstance(exchange, GivenExchange)
    )


@given(EXCHANGES, STRATEGIES)
def test_pipelines_of_one_layout_exchange_like_equal_replicas(
    exchange: Exchange, strategy: Strategy
) -> None:
    for scheme, _ in strategy.counts:
        alone = Strategy.of({Scheme(scheme.tp, scheme.pp): 1})
        mixed = Strategy.of({scheme: 1, Scheme(scheme.tp, scheme.pp, 1, 4): 2})
        assert exchange.of_strategy_ms(mixed) == exchange.of_strategy_ms(alone)


def test_the_layout_that_takes_longest_decides() -> None:
    exchange = LayoutExchange(0.5, 0.0, "made", (((1, 1), 100.0), ((4, 1), 40.0), ((8, 1), 20.0)))
    assert exchange.whole_ms([(8, 1)]) == 20
    assert exchange.compute_exposed_ms([(4, 1), (8, 1)]) == 20
    assert exchange.of_strategy_ms(Strategy.parse("1×tp8 + 4×tp1")) == 50
    assert exchange.extra_ms(Strategy.parse("1×tp4"), Strategy.parse("1×tp8")) == 10
    assert [(sorted(f.layouts), f.exchange_ms) for f in exchange.families([(1, 1), (4, 1)])] == [
        ([(4, 1)], 20),
        ([(1, 1), (4, 1)], 50),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.5, 0.0, "x", 1.0, 1.0), "overlap must be a share from 0 to 1, not 1.5"),
        ((0.0, -1.0, "x", 1.0, 1.0), "optimizer_ms must be a number of 0 or more, not -1"),
        ((0.0, 0.0, "x", 1.0, float("inf")), "heterogeneous_ms must be a number of 0 or more"),
    ],
)
def test_times_are_not_negative(arguments: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GivenExchange(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the exchange of tp4 must be a number of 0 or more ms"):
        LayoutExchange(0.0, 0.0, "x", (((4, 1), -1.0),))


def test_layouts_are_written_like_schemes() -> None:
    for layout in LAYOUTS:
        assert parse_layout(layout_text(layout)) == layout
    with pytest.raises(ValueError, match=r"layout wants tp and pp, as tp4\.pp2, not 'tp4\.u2'"):
        parse_layout("tp4.u2")
    with pytest.raises(ValueError, match="is not understood"):
        parse_layout("four")


def test_pushes_that_wait_are_not_hidden() -> None:
    """Of stages, and of groups that re-form, the pull alone: a third of the bytes."""
    exchange = GivenExchange(0.6, 0.0, "given", 300.0, 600.0)
    assert exchange.compute_exposed_ms([(4, 1)]) == pytest.approx(120.0)
    assert exchange.compute_exposed_ms([(4, 2)]) == pytest.approx(240.0)
    assert exchange.compute_exposed_ms([(4, 1)], re_forming=True) == pytest.approx(240.0)
    assert exchange.compute_exposed_ms([(4, 1), (2, 2)]) == pytest.approx(480.0)
    assert min(family.exchange_ms for family in exchange.families([(4, 2)])) <= 240.0
