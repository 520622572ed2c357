"""Intervals of fits hold the truth of simulated devices as often as they state."""

from benchmarks.fits import CASES, fit_case


def test_intervals_of_144_fits_hold_the_truth() -> None:
    covered = [fit_case(case, seed) for seed, case in enumerate(CASES)]
    assert len(covered) == 144
    for place in range(3):
        assert sum(one.within[place] for one in covered) >= 0.95 * len(covered)
    assert sum(all(one.within) for one in covered) >= 0.95 * len(covered)
    assert all(one.fit.reasons for one in covered if one.fit.latency.b > 1.26 * one.case.curve.b)
