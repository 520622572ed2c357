"""What a strategy's sync takes, and the families of strategies that take equally long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqplan.planner.sync.times import (
    Family,
    GivenSyncTimes,
    LayoutSyncTimes,
    SyncTimes,
    layout_text,
    layouts_of,
    parse_layout,
)
from seqplan.plans.scheme import Scheme, Strategy

LAYOUTS = [(1, 1), (2, 1), (4, 1), (4, 2), (8, 1)]

TIMES = st.floats(0, 5000)
SYNC_OVERLAPS = st.one_of(
    st.builds(
        lambda overlap, equal, different: GivenSyncTimes(overlap, 0.0, "made", equal, different),
        st.floats(0, 1),
        TIMES,
        TIMES,
    ),
    st.builds(
        lambda overlap, times, alone: LayoutSyncTimes(
            overlap,
            0.0,
            "made",
            tuple(zip(LAYOUTS, times, strict=True)),
            tuple((LAYOUTS[at], times[at] * share) for at, share in sorted(alone.items())),
        ),
        st.floats(0, 1),
        st.tuples(*[TIMES] * len(LAYOUTS)),
        st.dictionaries(st.integers(0, len(LAYOUTS) - 1), st.floats(0, 1)),
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
).map(Strategy.from_counts)


@given(SYNC_OVERLAPS, STRATEGIES)
def test_each_strategy_is_in_a_family_that_takes_no_longer(
    sync: SyncTimes, strategy: Strategy
) -> None:
    layouts = layouts_of(scheme for scheme, _ in strategy.counts)
    families = sync.families(LAYOUTS)
    times = [family.sync_ms for family in families]
    assert any(
        layouts <= family.layouts and family.sync_ms <= sync.of_strategy_ms(strategy)
        for family in families
    )
    assert all(family.layouts <= set(LAYOUTS) for family in families)
    assert min(times) == min(sync.compute_exposed_ms([layout]) for layout in LAYOUTS) or (
        isinstance(sync, GivenSyncTimes)
    )


@given(SYNC_OVERLAPS, STRATEGIES)
def test_pipelines_of_one_layout_sync_like_equal_replicas(
    sync: SyncTimes, strategy: Strategy
) -> None:
    for scheme, _ in strategy.counts:
        alone = Strategy.from_counts({Scheme(scheme.tp, scheme.pp): 1})
        mixed = Strategy.from_counts({scheme: 1, Scheme(scheme.tp, scheme.pp, 1, 4): 2})
        assert sync.of_strategy_ms(mixed) == sync.of_strategy_ms(alone)


def test_the_layout_that_takes_longest_decides() -> None:
    sync = LayoutSyncTimes(0.5, 0.0, "made", (((1, 1), 100.0), ((4, 1), 40.0), ((8, 1), 20.0)))
    assert sync.whole_ms([(8, 1)]) == 20
    assert sync.compute_exposed_ms([(4, 1), (8, 1)]) == 20
    assert sync.of_strategy_ms(Strategy.parse("1×tp8 + 4×tp1")) == 50
    assert sync.extra_ms(Strategy.parse("1×tp4"), Strategy.parse("1×tp8")) == 10
    assert [(sorted(f.layouts), f.sync_ms) for f in sync.families([(1, 1), (4, 1)])] == [
        ([(4, 1)], 20),
        ([(1, 1), (4, 1)], 50),
    ]


def test_a_layout_may_take_less_alone() -> None:
    times = (((1, 1), 100.0), ((4, 1), 40.0), ((8, 1), 20.0))
    sync = LayoutSyncTimes(0.0, 0.0, "made", times, (((1, 1), 30.0),))
    assert sync.of_strategy_ms(Strategy.parse("4×tp1 + 2×u2")) == 30
    assert sync.of_strategy_ms(Strategy.parse("4×tp1 + 1×tp4")) == 100
    assert sync.of_strategy_ms(Strategy.parse("2×tp4")) == 40
    assert [(sorted(f.layouts), f.sync_ms) for f in sync.families([(1, 1), (4, 1)])] == [
        ([(1, 1)], 30),
        ([(4, 1)], 40),
        ([(1, 1), (4, 1)], 100),
    ]
    assert sync.families([(1, 1)]) == [Family(frozenset({(1, 1)}), 30)]
    with pytest.raises(ValueError, match=r"the sync of tp4 alone, 41\.0 ms, must not be more than"):
        LayoutSyncTimes(0.0, 0.0, "made", times, (((4, 1), 41.0),))


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
        GivenSyncTimes(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the sync of tp4 must be a number of 0 or more ms"):
        LayoutSyncTimes(0.0, 0.0, "x", (((4, 1), -1.0),))


def test_layouts_are_written_like_schemes() -> None:
    for layout in LAYOUTS:
        assert parse_layout(layout_text(layout)) == layout
    with pytest.raises(ValueError, match=r"layout must be tp and pp, as tp4\.pp2: 'tp4\.u2'"):
        parse_layout("tp4.u2")
    with pytest.raises(ValueError, match="is not understood"):
        parse_layout("four")


def test_pushes_that_wait_are_not_hidden() -> None:
    """Of stages, and of groups that regroup, the pull alone: a third of the bytes."""
    sync = GivenSyncTimes(0.6, 0.0, "given", 300.0, 600.0)
    assert sync.compute_exposed_ms([(4, 1)]) == pytest.approx(120.0)
    assert sync.compute_exposed_ms([(4, 2)]) == pytest.approx(240.0)
    assert sync.compute_exposed_ms([(4, 1)], regrouping=True) == pytest.approx(240.0)
    assert sync.compute_exposed_ms([(4, 1), (2, 2)]) == pytest.approx(480.0)
    assert min(family.sync_ms for family in sync.families([(4, 2)])) <= 240.0
