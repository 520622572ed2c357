"""The sync of a profile that has measured some of it."""

import pytest

from seqplan.costs.profile import Profile
from seqplan.costs.profiled_scheme import ProfileError
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.derive import OPTIMIZER_MS

PROFILE = load_shipped("llama-7b-a800-80gb")
DERIVED = {gpus: choose_sync(PROFILE, gpus) for gpus in (8, 16)}
TP1, TP2, TP4 = (1, 1), (2, 1), (4, 1)


def with_sync(*entries: dict[str, float]) -> Profile:
    return Profile.from_document({**PROFILE.document, "sync": list(entries)}, "test")


def entry(tp: int = 1, gpus: int = 8, ms: float = 100.0) -> dict[str, float]:
    """An entry of a profile's ``sync``."""
    return {"tp": tp, "pp": 1, "gpus": gpus, "ms": ms, "optimizer_ms": 4.0}


def test_measured_syncs_are_taken_as_they_are() -> None:
    sync = choose_sync(with_sync(entry(1, ms=123.4), entry(2, ms=77.0)), 8)
    assert sync.whole_ms([TP1]) == 123.4
    assert sync.whole_ms([TP2]) == 77.0
    assert sync.optimizer_ms == 4.0
    assert sync.source.startswith("measured on 8 GPUs for tp1, tp2; others derived and")
    assert "as measured on 8 GPUs" in sync.source


def test_others_are_corrected_by_it() -> None:
    """By the same layout's on other GPUs, else by the geometric mean of all."""
    low, high = 0.5, 2.0
    profile = with_sync(
        entry(1, ms=low * DERIVED[8].whole_ms([TP1])),
        entry(2, ms=high * DERIVED[8].whole_ms([TP2])),
    )
    sync = choose_sync(profile, 16)
    for layout, factor in ((TP1, low), (TP2, high), (TP4, 1.0)):
        expected = factor * DERIVED[16].whole_ms([layout])
        assert sync.whole_ms([layout]) == pytest.approx(expected, rel=1e-4)
    assert sync.optimizer_ms == 2.0  # of states over twice as many
    assert sync.source.startswith("derived and multiplied by 0.5 to 2, as measured on")


def test_the_nearest_number_of_gpus_counts() -> None:
    profile = with_sync(entry(gpus=2, ms=1.0), entry(gpus=8, ms=3.0 * DERIVED[8].whole_ms([TP1])))
    expected = 3.0 * DERIVED[16].whole_ms([TP1])
    assert choose_sync(profile, 16).whole_ms([TP1]) == pytest.approx(expected, rel=1e-4)


def test_a_profile_without_syncs_states_it() -> None:
    assert DERIVED[8].source.endswith("nothing was measured")
    assert DERIVED[8].optimizer_ms == OPTIMIZER_MS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpus": 1}, r"sync\[0\]\.gpus: 1 are too few for a sync"),
        ({"tp": 16}, "8 are too few"),
        ({"ms": 0}, "must be a time above 0: 0"),
        ({"ms": float("nan")}, r"sync\[0\]\.ms"),
        ({"pp": None}, r"sync\[0\]"),
        ({"more": 1}, r"sync\[0\]"),
    ],
)
def test_bad_entries_are_named(change: dict[str, float], message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        with_sync({**entry(), **change})


def test_an_entry_is_there_once() -> None:
    with pytest.raises(ProfileError, match="lists a layout twice"):
        with_sync(entry(), entry(ms=1.0))


def test_messages_and_collectives_are_corrected_apart() -> None:
    """Layouts next to others by the factor of their layout; of other trainers tp1 as measured."""
    profile = with_sync(entry(1, ms=2 * DERIVED[8].whole_ms([TP1])), entry(2, ms=77.0))
    sync = choose_sync(profile, 8)
    several = DERIVED[8].whole_ms([TP1, TP4])
    assert sync.whole_ms([TP1, TP4]) == pytest.approx(2 * several, rel=1e-4)
    collectives, derived = (choose_sync(of, 8, collectives=True) for of in (profile, PROFILE))
    assert collectives.whole_ms([TP1]) == sync.whole_ms([TP1])
    factor = 77.0 / DERIVED[8].whole_ms([TP2])
    expected = factor * derived.whole_ms([TP2])
    assert collectives.whole_ms([TP2]) == pytest.approx(expected, rel=1e-4)
    assert collectives.source.startswith("measured on 8 GPUs for tp1; others derived")
