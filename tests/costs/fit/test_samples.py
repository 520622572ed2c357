"""Only samples that belong together make a profile."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from sampled import MEASURED_ON, SIZES, sample, samples

from seqplan import Profile, Scheme
from seqplan.costs.fit.measured_profile import (
    ProfiledDevices,
    find_unfitted,
    fit_all,
    fit_memory,
    profile_document,
)
from seqplan.costs.fit.pooling import group_by_mode, merge_runs
from seqplan.costs.fit.sample_file import SampleFile
from seqplan.costs.fit.samples import Sample, SampleError
from seqplan.costs.model_sizes import ModelSizes
from seqplan.profiler.measure.design import design


def test_a_run_that_measured_nothing_makes_no_profile(tmp_path: Path) -> None:
    SampleFile(tmp_path / "s.jsonl", MEASURED_ON).close()
    with pytest.raises(SampleError, match=r"s\.jsonl: nothing was measured"):
        merge_runs([tmp_path / "s.jsonl"])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"device": "another"}, "device another, not a device"),
        ({"dtype": "bfloat16"}, "dtype bfloat16, not float32"),
        ({"model": tuple({**SIZES, "hidden": 32}.items())}, "model hidden 32, .*, not hidden 64"),
        ({"recompute": "full"}, "recompute full, not none"),
    ],
)
def test_settings_are_not_mixed(tmp_path: Path, change: dict[str, object], named: str) -> None:
    SampleFile(tmp_path / "a", MEASURED_ON).close()
    SampleFile(tmp_path / "b", replace(MEASURED_ON, **change)).close()  # type: ignore[arg-type]
    with pytest.raises(SampleError, match=named):
        merge_runs([tmp_path / "a", tmp_path / "b"])


def test_samples_of_a_run_count_once(tmp_path: Path) -> None:
    """Given twice they would make the errors of the fit look smaller."""
    for name in ("a", "b"):
        SampleFile(tmp_path / name, MEASURED_ON).close()
    with pytest.raises(SampleError, match=r"b: the samples of .*a again. Give each run once"):
        group_by_mode([tmp_path / "a", tmp_path / "b"])


def test_a_model_that_lacks_a_size_is_named(tmp_path: Path) -> None:
    some = tuple((name, size) for name, size in SIZES.items() if name != "layers")
    SampleFile(tmp_path / "s.jsonl", replace(MEASURED_ON, model=some)).close()
    with pytest.raises(SampleError, match=r"s\.jsonl, line 1: .*model\.layers: is missing"):
        merge_runs([tmp_path / "s.jsonl"])


def test_merged_runs_make_one_profile(tmp_path: Path) -> None:
    two = Scheme(1, 1, 2, 1)
    for name, scheme in (("a", Scheme()), ("b", two)):
        with SampleFile(tmp_path / name, MEASURED_ON) as file:
            for measured in samples(scheme):
                file.add(measured)
    measured_on, together = merge_runs([tmp_path / "a", tmp_path / "b"])
    document = profile_document(
        fit_all(measured_on, together),
        ProfiledDevices("a device", 8, 10_000_000.0),
        name="p",
        source="a test",
    )
    profile = Profile.from_document(document, "p")
    assert [entry.scheme for entry in profile.schemes] == [Scheme(), two]
    measured, other = profile.schemes
    assert measured.origin == "measured"
    assert measured.latency.a == pytest.approx(1e-6, rel=1e-3)
    assert other.latency.b == pytest.approx(0.005, rel=1e-3)
    assert measured.latency.c == pytest.approx(1.0, rel=1e-3)
    assert measured.fit["verdict"] == "usable"
    assert profile.forward_fraction == pytest.approx(1 / 3, abs=1e-3)
    assert profile.memory.bytes_per_token(two) == pytest.approx(500, rel=1e-3)
    # 12 bytes a parameter over 2 GPUs, 8 resident, then 1,000 bytes a token.
    room = 10_000_000 - (6 + 8) * ModelSizes.from_mapping(SIZES).parameters
    assert profile.model(measured, 2, 100).max_len == pytest.approx(room / 1000, abs=2)


def test_out_of_memory_is_data() -> None:
    several = samples(Scheme())
    empty: tuple[float, ...] = ()
    several.append(Sample(Scheme(), "fit", (9999,), 2, empty, empty, empty, 0, 0, oom=True))
    assert fit_memory(MEASURED_ON, several).errors.samples == len(several) - 1
    with pytest.raises(SampleError, match="no sample fits into memory"):
        fit_memory(MEASURED_ON, several[-1:])


def test_a_stage_has_its_share_of_the_layers_and_activations_of_all() -> None:
    measured = sample(Scheme(), "fit", (100,))
    measured = replace(measured, ends_ms=(5.0,) * 3, saved_bytes=measured.layers_saved_bytes + 70)
    stage = replace(measured, scheme=Scheme(pp=4))
    layers = measured.layers_ms[0]
    assert measured.whole_ms(8) == pytest.approx(4 * layers + 5)
    assert stage.whole_ms(8) == pytest.approx(layers + 5)
    assert stage.whole_bytes(8) == measured.whole_bytes(8) == 4 * 100 * 250 + 70


def test_the_allocators_peak_counts_where_it_was_read() -> None:
    measured = sample(Scheme(), "fit", (100,))
    assert measured.layers_saved_bytes == 25_000
    layers_more = replace(measured, layers_peak_bytes=27_000, ends_peak_bytes=1_500)
    ends_more = replace(measured, layers_peak_bytes=26_000, ends_peak_bytes=1_500)
    assert layers_more.whole_bytes(8) == 100_000 + 2_000
    assert ends_more.whole_bytes(8) == 100_000 + 1_500
    fit = fit_memory(MEASURED_ON, [layers_more])
    assert fit.of_allocator
    assert fit.bytes_per_token[1] == pytest.approx(1020)


def test_memory_is_fitted_for_each_tp() -> None:
    two = Scheme(tp=2)
    # A rank of tp 2 keeps three quarters of what one rank would.
    more = [
        replace(
            measured,
            layers_saved_bytes=measured.tokens * 375 // 2,
            saved_bytes=measured.tokens * 375 // 2,
        )
        for measured in samples(two, Scheme(tp=2, pp=2), Scheme(tp=2, ulysses=2))
        if measured.scheme.sp == 1
    ]
    fit = fit_memory(MEASURED_ON, [*samples(Scheme(), Scheme(ulysses=2)), *more])
    assert fit.bytes_per_token == pytest.approx({1: 1000, 2: 1500}, rel=2e-3)
    several = [*samples(Scheme()), *more]
    document = profile_document(
        fit_all(MEASURED_ON, several), ProfiledDevices("d", 8, 1e9), name="p", source="a test"
    )
    memory = Profile.from_document(document, "p").memory
    assert memory.bytes_per_token(Scheme(tp=2, pp=2)) == pytest.approx(750, rel=2e-3)


def test_a_scheme_that_does_not_fit_is_left_out() -> None:
    none: tuple[float, ...] = ()
    two = Scheme(tp=2)
    full = [
        Sample(two, "fit", (length,), 2, none, none, none, 0, 0, oom=True)
        for length in (64, 128, 256, 512)
    ]
    several = [*samples(Scheme()), *full]
    assert find_unfitted(several) == {two: "tp2: 0 of its lengths fit into memory, 4 are needed"}
    document = profile_document(
        fit_all(MEASURED_ON, several), ProfiledDevices("d", 8, 1e9), name="p", source="a test"
    )
    profile = Profile.from_document(document, "p")
    assert [entry.scheme for entry in profile.schemes] == [Scheme()]
    assert list(profile.memory.activation_bytes_per_token) == [1]
    with pytest.raises(SampleError, match="no scheme fits into memory: tp2: 0 of its lengths fit"):
        fit_all(MEASURED_ON, full)


def test_the_design_is_a_series_with_lengths_between_and_packings() -> None:
    points = design(64, 4096, points=8)
    single = [point for point in points if len(point.lengths) == 1]
    assert [point.role for point in single] == ["fit", "held-out"] * 7 + ["fit"]
    several = [point.role for point in points if len(point.lengths) > 1]
    assert several.count("packed") >= 4
    assert several.count("fit") >= 3
    assert several.count("held-out") == 0
    assert len({point.lengths for point in points}) == len(points)  # nothing judges its fit
    assert all(sum(point.lengths) <= 4096 for point in points)
    assert points == design(64, 4096, points=8)
    for wrong in ((0, 5), (5, 5), (9, 3)):
        with pytest.raises(ValueError, match="lengths must rise"):
            design(*wrong)


@pytest.mark.parametrize(
    ("in_use", "reserved", "share", "fragment"),
    [
        (40 * 2**30, 50 * 2**30, 0.2, "measured 20.0 %; at least 5 %"),
        (49 * 2**30, 50 * 2**30, 0.05, "measured 2.0 %; at least 5 %"),
        (2**20, 2**22, 0.05, "not measured with enough memory in use; at least 5 %"),
        (None, None, 0.05, "not measured with enough memory in use; at least 5 %"),
    ],
)
def test_fragmentation_leaves_a_margin(
    tmp_path: Path, in_use: int | None, reserved: int | None, share: float, fragment: str
) -> None:
    """That of the fullest micro-batch; smaller ones reserve more than they need."""
    peaks = {"layers_peak_bytes": 7, "ends_peak_bytes": 9}
    small = None if in_use is None else in_use // 2
    read = [
        replace(measured, **peaks, allocated_bytes=small, reserved_bytes=reserved)
        for measured in samples(Scheme())
    ]
    read[3] = replace(read[3], allocated_bytes=in_use, reserved_bytes=reserved)
    with SampleFile(tmp_path / "s.jsonl", MEASURED_ON) as file:
        for measured in read:
            file.add(measured)
    measured_on, together = merge_runs([tmp_path / "s.jsonl"])
    document = profile_document(
        fit_all(measured_on, together), ProfiledDevices("d", 8, 80e9), name="p", source="a test"
    )
    assert Profile.from_document(document, "p").memory.margin_bytes == pytest.approx(share * 80e9)
    (note,) = document["notes"]
    assert note.startswith(f"margin_bytes: {100 * share:.1f} % of the memory, ")
    assert fragment in note


def test_memory_counted_by_autograd_has_no_margin() -> None:
    document = profile_document(
        fit_all(MEASURED_ON, samples(Scheme())),
        ProfiledDevices("d", 8, 1e9),
        name="p",
        source="a test",
    )
    assert document["memory"]["margin_bytes"] == 0
    assert "notes" not in document


HOST_MS = 3.0
"""What the host takes to start the layers of any micro-batch: more than short ones run."""


def on_device(measured: Sample) -> Sample:
    """Give the sample's layers to a device that the host starts kernels on."""
    return replace(
        measured,
        layers_ms=tuple(max(ms, HOST_MS) for ms in measured.layers_ms),
        layers_host_ms=(HOST_MS,) * len(measured.layers_ms),
    )


def test_a_curve_is_not_fitted_to_the_time_of_launches() -> None:
    measured = [on_device(one) for one in samples(Scheme())]
    fit = fit_all(MEASURED_ON, measured).latencies[Scheme()]
    assert fit.latency.c == pytest.approx(1.0, rel=0.1)
    assert fit.latency.b == pytest.approx(0.01, rel=0.01)
    assert fit.verdict == "usable"
    assert fit.launch_bound.ms == pytest.approx(4 * HOST_MS)
    short = [one for one in measured if one.launch_bound]
    assert fit.launch_bound.tokens == max(one.tokens for one in short)
    assert "12 ms, for which the host starts kernels" in fit.notes[-1]
    assert fit.document()["launch_bound"] == asdict(fit.launch_bound)


def test_too_few_micro_batches_that_keep_a_device_busy_are_fitted_with_the_others() -> None:
    measured = [replace(one, layers_host_ms=one.layers_ms) for one in samples(Scheme())]
    fit = fit_all(MEASURED_ON, measured).latencies[Scheme()]
    assert fit.launch_bound is None
    assert fit.in_sample.samples == sum(one.role == "fit" for one in measured)


def test_memory_is_fitted_where_activations_exceed_the_gradients_of_weights() -> None:
    def peaks(one: Sample) -> Sample:
        ends = max(250 * one.tokens, 200_000)
        return replace(one, layers_peak_bytes=one.layers_saved_bytes, ends_peak_bytes=ends)

    memory = fit_memory(MEASURED_ON, [peaks(one) for one in samples(Scheme())])
    assert memory.of_allocator
    assert memory.bytes_per_token[1] == pytest.approx(1250)
    assert memory.errors.largest == pytest.approx(0.0, abs=1e-9)
