"""Step times correct a profile only if they bear it."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plan_builder import plan_of

from seqplan import Plan, Profile, Scheme
from seqplan.costs.fit.calibration import find_stated_error
from seqplan.costs.fit.latency_fit import Observed
from seqplan.costs.fit.measurements import (
    Measurement,
    MeasurementError,
    MixedPipeline,
    match_measurements,
    read_measurements,
)
from seqplan.costs.fit.refit import LEAST_TO_FIT, LEAST_TO_SCALE, refit, refit_profile, write_refit
from seqplan.costs.latency import Latency
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.plans.plan import MicroBatch, PlannedPipeline

BELIEVED = Latency(1e-6, 0.05, 3.0)


def samples(truth: Latency, count: int, noise: float = 0.0) -> list[Observed]:
    rng = np.random.default_rng(0)
    pipelines = []
    for _ in range(count):
        batches = [
            rng.integers(50, 20_000, int(rng.integers(1, 5))).tolist()
            for _ in range(int(rng.integers(1, 4)))
        ]
        time = sum(truth.micro_batch_ms(batch) for batch in batches)
        lengths = tuple(length for batch in batches for length in batch)
        factor = 1 + noise * rng.normal()
        pipelines.append(Observed(lengths, time * factor, micro_batches=len(batches)))
    return pipelines


def test_a_slower_device_is_scaled_by_few_measurements() -> None:
    slower = Latency(1.2e-6, 0.06, 3.6)
    result = refit(BELIEVED, Scheme(), samples(slower, LEAST_TO_SCALE, 0.01))
    assert result.how == "scaled"
    assert result.before.median == pytest.approx(1 - 1 / 1.2, abs=0.02)
    assert result.after.median < 0.02
    assert result.latency.b == pytest.approx(0.06, rel=0.02)


def test_another_shape_is_fitted_by_many() -> None:
    other = Latency(4e-6, 0.04, 9.0)
    result = refit(BELIEVED, Scheme(), samples(other, LEAST_TO_FIT))
    assert result.how == "fitted"
    for name in "abc":
        assert getattr(result.latency, name) == pytest.approx(getattr(other, name), rel=0.01)


def test_correct_coefficients_are_kept() -> None:
    result = refit(BELIEVED, Scheme(), samples(BELIEVED, LEAST_TO_FIT))
    assert result.before.largest == pytest.approx(0, abs=1e-9)
    assert result.latency.a == pytest.approx(BELIEVED.a)
    few = refit(BELIEVED, Scheme(), samples(Latency(1e-5, 1.0, 1.0), LEAST_TO_SCALE - 1))
    assert (few.how, few.latency) == ("kept", BELIEVED)
    assert few.reason == "7 pipelines measured, 8 are needed"


def plan(step: int) -> Plan:
    """Ranks 0–1 together, 2 alone, 3 in two pipelines, 4–5 in two stages."""
    batches = [MicroBatch((at,), 100 + at, 100 + at, 1.0) for at in range(5)]
    two, one, staged = Scheme(1, 1, 2, 1), Scheme(), Scheme(1, 2)
    pipelines = (
        PlannedPipeline(two, (0, 1), (batches[0],), 1.0),
        PlannedPipeline(one, (2,), (batches[1], batches[2]), 2.0),
        PlannedPipeline(one, (3,), (batches[3],), 1.0),
        PlannedPipeline(one, (3,), (), 0.0),
        PlannedPipeline(staged, (4, 5), (batches[4],), 2.0),
    )
    return plan_of(pipelines, (100, 101, 102, 103, 104), 2.0, gap=0.0, step=step)


def test_a_pipeline_counts_where_its_ranks_were_measured_and_ran_nothing_else() -> None:
    measured = [Measurement(7, rank, 10.0 + rank) for rank in range(6)]
    seen = match_measurements([plan(7), plan(8)], measured)
    assert seen.by_scheme == {
        Scheme(1, 1, 2, 1): [Observed((100,), 11.0, micro_batches=1)],
        Scheme(): [Observed((101, 102), 12.0, micro_batches=2)],
    }
    assert (seen.rank_times, seen.unplanned, seen.unplanned_steps) == (3, 0, ())
    assert (seen.incomplete, seen.unmeasurable) == (0, 3)
    part = match_measurements([plan(7)], measured[1:])
    assert part.by_scheme == {Scheme(): [Observed((101, 102), 12.0, micro_batches=2)]}
    assert (part.rank_times, part.incomplete, part.unmeasurable) == (1, 1, 3)
    with pytest.raises(MeasurementError, match="step 7: measured on rank 6, its plan has 6"):
        match_measurements([plan(7)], [Measurement(7, 6, 1.0)])


def test_times_of_steps_without_a_plan_are_counted_apart() -> None:
    measured = [Measurement(step, rank, 10.0) for step in (7, 90, 12) for rank in range(4)]
    seen = match_measurements([plan(7)], measured)
    assert (seen.rank_times, seen.unplanned, seen.unplanned_steps) == (3, 8, (12, 90))


LLAMA = load_shipped("llama-7b-a800-80gb")


def slower(scheme: Scheme, factor: float, count: int) -> list[Observed]:
    """Samples of a scheme that takes ``factor`` times the profile's prediction."""
    latency = LLAMA.by_scheme[scheme].latency
    return samples(Latency(*(factor * getattr(latency, name) for name in "abc")), count)


def test_a_device_that_is_slower_is_slower_for_schemes_that_were_not_measured() -> None:
    two, four = Scheme(tp=2), Scheme(tp=4)
    by_scheme = {two: slower(two, 1.3, LEAST_TO_SCALE), four: slower(four, 1.3, 3)}
    refitted = refit_profile(LLAMA, by_scheme)
    assert refitted.common.factor == pytest.approx(1.3)
    assert {result.scheme for result in refitted.schemes} == set(LLAMA.by_scheme)
    hows = {result.scheme: result.how for result in refitted.schemes}
    assert hows.pop(two) == "scaled"
    assert set(hows.values()) == {"extrapolated"}
    reasons = {result.scheme: result.reason for result in refitted.schemes}
    assert reasons[four].endswith("as the measured schemes; 3 pipelines measured, 8 are needed")
    assert reasons[Scheme()] == "scaled by 1.300, as the measured schemes; not measured"
    document = write_refit(LLAMA, refitted.schemes, "refitted to a test")
    again = type(LLAMA).from_document(document, "again")
    for entry in again.schemes:
        for name in "abc":
            old = getattr(LLAMA.by_scheme[entry.scheme].latency, name)
            assert getattr(entry.latency, name) == pytest.approx(1.3 * old)
        origin = LLAMA.by_scheme[entry.scheme].origin
        assert entry.origin == ("measured" if entry.scheme == two else origin)
        assert entry.fit is not None
        assert find_stated_error(entry) is None or entry.scheme == two
    assert again.by_scheme[Scheme()].fit == {"refitted": f"extrapolated: {reasons[Scheme()]}"}


def test_measured_schemes_that_disagree_are_averaged_and_reported() -> None:
    two, four = Scheme(tp=2), Scheme(tp=4)
    by_scheme = {scheme: slower(scheme, f, 8) for scheme, f in ((two, 1.0), (four, 1.44))}
    refitted = refit_profile(LLAMA, by_scheme)
    assert refitted.common.factor == pytest.approx(1.2)  # the geometric mean, the right one with it
    other = refitted.schemes[-1]
    assert other.reason == (
        "scaled by 1.200, as the measured schemes, which disagree (1.000 to 1.440); not measured"
    )


def test_few_measurements_that_contradict_the_others_keep_their_scheme() -> None:
    two, four = Scheme(tp=2), Scheme(tp=4)
    by_scheme = {two: slower(two, 1.3, LEAST_TO_SCALE), four: slower(four, 1.0, 3)}
    kept = next(r for r in refit_profile(LLAMA, by_scheme).schemes if r.scheme == four)
    assert (kept.how, kept.latency) == ("kept", LLAMA.by_scheme[four].latency)
    assert "3 pipelines measured, 8 are needed; the measured schemes' factor" in kept.reason


def test_nothing_is_scaled_where_nothing_is_corrected() -> None:
    two = Scheme(tp=2)
    few = slower(two, 1.3, LEAST_TO_SCALE - 1)
    right, disturbed = slower(two, 1.0, LEAST_TO_SCALE), slower(two, 1.3, LEAST_TO_SCALE)
    unlike = [
        one if at % 2 else other
        for at, (one, other) in enumerate(zip(right, disturbed, strict=True))
    ]
    for measured in (few, unlike):
        refitted = refit_profile(LLAMA, {two: measured})
        assert refitted.common is None
        assert [(result.scheme, result.how) for result in refitted.schemes] == [(two, "kept")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: is no JSON: "),
        ("[" * 100_000, "line 2: is no JSON: too deeply nested"),
        ("3", "line 2: must be an object: 3"),
        ('{"step":0,"step":1}', "line 2: is no JSON: field 'step' is written twice. Remove one"),
        ('{"step":0,"rank":0}', "line 2: measured_ms: is missing"),
        ('{"step":0,"rank":0,"measured_ms":-1}', "measured_ms: must be a finite number ≥ 0: -1"),
        ('{"step":0,"rank":0,"measured_ms":0}', "measured_ms: must be a time above 0"),
        ('{"step":0,"rank":0,"measured_ms":[]}', "measured_ms: must be a finite number ≥ 0: a"),
        ('{"step":0.5,"rank":0,"measured_ms":1}', "step: must be an integer ≥ 0: 0.5. Repair"),
        ('{"step":0,"rank":0,"measured_ms":NaN}', "measured_ms: must be a finite number ≥ 0: N"),
    ],
    ids=range(10),
)
def test_bad_measurements_are_named_by_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step":0,"rank":0,"measured_ms":1.5}\n' + line + "\n")
    with pytest.raises(MeasurementError, match=message):
        read_measurements(path)


def test_a_last_line_that_is_cut_is_left_out(tmp_path: Path) -> None:
    path, notes = tmp_path / "m.jsonl", []
    path.write_text('{"step":0,"rank":0,"measured_ms":1.5}\n{"step":0,"rank":1,"meas')
    assert read_measurements(path, notes.append) == [Measurement(0, 0, 1.5)]
    assert notes == [f"{path}, line 2: is cut, and left out"]


def test_the_new_profile_states_its_source_and_keeps_the_rest() -> None:
    profile = load_shipped("llama-7b-a800-80gb")
    entry = profile.schemes[0]
    slower = Latency(*(getattr(entry.latency, name) * 1.5 for name in "abc"))
    result = refit(entry.latency, entry.scheme, samples(slower, LEAST_TO_SCALE))
    document = write_refit(profile, [result], "refitted to a test")
    again = type(profile).from_document(document, "again")
    changed = again.by_scheme[entry.scheme]
    assert changed.origin == "measured"
    assert changed.latency.b == pytest.approx(1.5 * entry.latency.b)
    assert changed.fit["refitted"].startswith("scaled: all coefficients times 1.5")
    assert again.source.endswith("; refitted to a test")
    assert again.schemes[1:] == profile.schemes[1:]
    median, p90 = (f"{100 * error:.1f} %" for error in (result.after.median, result.after.p90))
    assert again.residuals == (
        f"measured in training, worst scheme: held-out {median} (median) {p90} (p90)"
    )
    assert profile.document["schemes"] != document["schemes"]  # the old one is as it was


@pytest.mark.parametrize("factor", [0.001, 1000])
def test_times_of_another_unit_are_rejected(factor: float) -> None:
    message = f"times are {factor:.3g} of what profile llama-7b-a800-80gb predicts: must be 0.1 to"
    with pytest.raises(MeasurementError, match=re.escape(message)):
        refit_profile(LLAMA, {Scheme(tp=2): slower(Scheme(tp=2), factor, LEAST_TO_SCALE)})


MODED = load_shipped("llama3-8b-h100-80gb").keep_schemes({Scheme(), Scheme(tp=2), Scheme(tp=8)})


def mixed(scheme: Scheme, factor: float, count: int, noise: float = 0.0) -> list[MixedPipeline]:
    """Pipelines of a light and a heavy mode, ``factor`` times as long as predicted."""
    rng = np.random.default_rng(scheme.tp)
    pipelines = []
    for _ in range(count):
        by_mode = {
            "none": tuple(tuple(rng.integers(100, 900, 3).tolist()) for _ in range(2)),
            "full": ((int(rng.integers(4000, 30_000)),),),
        }
        one = MixedPipeline((1,), 1.0, micro_batches=3, by_mode=by_mode)
        ms = one.predict_ms(MODED.by_scheme[scheme].modes) * factor
        pipelines.append(replace(one, ms=ms * (1 + noise * rng.standard_normal())))
    return pipelines


def test_modes_of_a_scheme_are_scaled_together() -> None:
    by_scheme = {
        Scheme(): mixed(Scheme(), 1.25, LEAST_TO_SCALE, 0.01),
        Scheme(tp=2): mixed(Scheme(tp=2), 1.25, 3),
    }
    refitted = refit_profile(MODED, by_scheme)
    assert [result.how for result in refitted.schemes] == ["scaled", "extrapolated", "extrapolated"]
    assert refitted.common.factor == pytest.approx(1.25, rel=0.02)
    again = Profile.from_document(write_refit(MODED, refitted.schemes, "a test"), "again")
    for entry in again.schemes:
        for mode, latency in entry.modes.items():
            old = MODED.by_scheme[entry.scheme].modes[mode]
            assert latency.a / old.a == pytest.approx(1.25, rel=0.02)
            assert latency.c / old.c == pytest.approx(1.25, rel=0.02)
    assert again.schemes[0].origin == "measured"


def test_heavy_steps_are_not_taken_for_a_slow_device() -> None:
    """A pipeline that recomputes all is as long as its modes predict."""
    heavy = [
        replace(one, by_mode={"full": one.by_mode["full"] * 3})
        for one in mixed(Scheme(), 1.0, 2 * LEAST_TO_SCALE)
    ]
    modes = MODED.by_scheme[Scheme()].modes
    by_scheme = {Scheme(): [replace(one, ms=one.predict_ms(modes)) for one in heavy]}
    (result,) = refit_profile(MODED, by_scheme).schemes
    assert (result.how, result.before.median) == ("kept", pytest.approx(0.0, abs=1e-12))


def test_modes_that_the_profile_lacks_are_rejected() -> None:
    samples_of = {Scheme(): mixed(Scheme(), 1.0, 8)}
    with pytest.raises(MeasurementError, match="mode full, which profile llama3-8b-h100-80gb lack"):
        refit_profile(MODED.keep_modes({"none", "elementwise"}), samples_of)
    plain = {Scheme(): [Observed((9,), 1.0)] * 8}
    with pytest.raises(MeasurementError, match="tp1: planned without recomputation modes, profile"):
        refit_profile(MODED, plain)


def with_schemes(latencies: dict[Scheme, Latency]) -> Profile:
    """A profile of these schemes alone."""
    document = dict(LLAMA.document)
    like = {name: value for name, value in document["schemes"][0].items() if name != "fit"}
    document["schemes"] = [
        {**like, **scheme.as_dict(), **latency.as_dict()} for scheme, latency in latencies.items()
    ]
    return Profile.from_document(document, "test")


def test_overhead_that_grows_with_ranks_reaches_schemes_without_measurements() -> None:
    """Of Megatron's published benchmark: 19 ms a micro-batch, 25.4 ms more a further rank."""
    added = {Scheme(): 19.0, Scheme(ring=2): 19.0 + 25.4, Scheme(ring=4): 19.0 + 3 * 25.4}
    wide = Scheme(ring=8)
    profile = with_schemes(dict.fromkeys((*added, wide), BELIEVED))
    by_scheme = {
        scheme: samples(replace(BELIEVED, c=BELIEVED.c + ms), 2 * LEAST_TO_SCALE, 0.002)
        for scheme, ms in added.items()
    }
    refitted = refit_profile(profile, by_scheme)
    assert refitted.overhead.factor == pytest.approx(1.0, abs=0.02)
    assert refitted.overhead.rank_ms == pytest.approx(25.4, rel=0.05)
    of_scheme = {result.scheme: result for result in refitted.schemes}
    for scheme, ms in (*added.items(), (wide, 19.0 + 7 * 25.4)):
        assert of_scheme[scheme].latency.c == pytest.approx(BELIEVED.c + ms, rel=0.1), scheme
    assert of_scheme[wide].how == "extrapolated"
    assert "25" in of_scheme[wide].reason
    document = write_refit(profile, refitted.schemes, "times")
    again = Profile.from_document(document, "again").by_scheme[wide]
    assert again.latency.c == pytest.approx(3.0 + 19.0 + 7 * 25.4, rel=0.1)


def test_a_device_that_is_slower_has_no_overhead_by_degree() -> None:
    schemes = (Scheme(), Scheme(ring=2), Scheme(ring=4))
    profile = with_schemes(dict.fromkeys(schemes, BELIEVED))
    slower = BELIEVED.scale(1.3)
    by_scheme = {scheme: samples(slower, LEAST_TO_SCALE, 0.01) for scheme in schemes}
    refitted = refit_profile(profile, by_scheme)
    assert refitted.overhead is None
    assert {result.how for result in refitted.schemes} == {"scaled"}


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03])
def test_slower_attention_is_no_overhead_of_ranks(noise: float) -> None:
    """Wide groups run the long sequences, of which attention takes more."""
    schemes = (Scheme(), Scheme(ring=2), Scheme(ring=4))
    wide = Scheme(ring=8)
    profile = with_schemes(dict.fromkeys((*schemes, wide), BELIEVED))
    slower = replace(BELIEVED, a=1.5 * BELIEVED.a)
    by_scheme = {}
    for place, scheme in enumerate(schemes):
        longer = [
            replace(
                sample,
                lengths=tuple(length << place for length in sample.lengths),
                ms=slower.micro_batch_ms([length << place for length in sample.lengths]),
            )
            for sample in samples(slower, 4 * LEAST_TO_SCALE)
        ]
        generator = np.random.default_rng(place)
        by_scheme[scheme] = [
            replace(sample, ms=sample.ms * float(generator.normal(1, noise))) for sample in longer
        ]
    refitted = refit_profile(profile, by_scheme)
    assert refitted.overhead is None
    (of_wide,) = (result for result in refitted.schemes if result.scheme == wide)
    for lengths in ([2048], [2048] * 16, [32768]):
        times = [latency.micro_batch_ms(lengths) for latency in (of_wide.latency, slower)]
        assert times[0] == pytest.approx(times[1], rel=0.3)


def test_pipelines_of_each_place_are_on_both_sides() -> None:
    """Every second sample is of the first pipeline of its plan: it alone is slow."""
    steps = samples(BELIEVED, 4 * LEAST_TO_SCALE)
    mixed_speeds = [
        replace(sample, ms=sample.ms * (1.3 if place % 2 == 0 else 1.0))
        for place, sample in enumerate(steps)
    ]
    for measured in (mixed_speeds, mixed_speeds[1:] + mixed_speeds[:1]):
        result = refit(BELIEVED, Scheme(), measured)
        assert result.after.p90 == pytest.approx(0.23, abs=0.03)
