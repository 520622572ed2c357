"""The comparison as a whole."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from settings_made import CODE

from seqplan import Profile, Workload
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.comparison.advice import (
    ablation,
    advice,
    assumptions,
    judge_gain,
    note_other_trainer,
    rivals,
)
from seqplan.planner.comparison.compare import Options, compare
from seqplan.planner.comparison.coverage import Coverage, histogram
from seqplan.planner.comparison.nearest import nearest_rival
from seqplan.planner.comparison.results import Comparison, System, mean_compute_ms
from seqplan.planner.proposal.backends import find_backend
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import GivenSyncTimes

ROOT = Path(__file__).parents[3]
QUICK = ("one-layout", "static", "megatron", "hotspa", "deepspeed", "flexsp", "megatron-dcp")


@cache
def small() -> Comparison:
    profile = load_shipped("llama-7b-a800-80gb").restrict(measured=True)
    options = Options((*QUICK, "hydraulis"), fast=True)
    sync = choose_sync(profile, 8)
    return compare(profile, Workload(8, 16384, 50_000), CODE, 3, sync, options=options)


def test_ours_is_no_slower_than_the_static_ones() -> None:
    comparison = small()
    ours = mean_compute_ms(comparison.ours)
    assert comparison.ours.key == "ours"
    keys = [system.key for system in comparison.systems]
    assert len(set(keys)) == len(keys)
    for system in comparison.systems[1:]:
        assert mean_compute_ms(system) >= ours * 0.99, system.key
        assert min(comparison.speedups(system)) > 0
        assert all(step.gap is None for step in system.iterations)
    assert all(step.gap is not None and step.planning_ms for step in comparison.ours.iterations)


def test_in_lockstep_only_lockstep_systems_are_compared() -> None:
    profile = load_shipped("llama-7b-a800-80gb")
    sync = choose_sync(profile, 8)
    comparison = compare(profile, Workload(8, 8192, 30_000), CODE, 2, sync, execution="lockstep")
    assert {system.key for system in comparison.systems} == {
        *("ours", "static", "megatron-dcp", "megatron-packing"),
        *("verl", "trl", "slime", "rebalance", "loongforge", "veomni"),
    }
    left_out = dict(comparison.left_out)
    assert set(left_out) == {
        *("One heterogeneous strategy", "Megatron-like", "HotSPa-like", "Hydraulis"),
        *("DeepSpeed-like", "FlexSP-like"),
    }
    assert left_out["Hydraulis"].endswith("here all ranks run in lockstep")
    assert any("run in lockstep" in sentence for sentence in comparison.assumptions)
    ours = mean_compute_ms(comparison.ours)
    static = next(system for system in comparison.systems if system.key == "static")
    assert comparison.ours.mean_ms <= static.mean_ms * 1.001
    assert ours > 0


def test_assumptions_state_whose_micro_steps_are_a_multiple() -> None:
    profile = load_shipped("llama-7b-a800-80gb").restrict(measured=True)
    workload, sync = Workload(8, 8192, 30_000), choose_sync(profile, 8)
    options = Options(("static",))
    sentence = (
        "Our micro-steps, and those of static strategies with our balancing, are a multiple of 2; "
        "other "
        "systems follow their rules and may have other numbers of micro-steps."
    )
    for multiple in (1, 2):
        comparison = compare(
            profile,
            workload,
            CODE,
            1,
            sync,
            options=options,
            execution="lockstep",
            micro_step_multiple=multiple,
        )
        assert (sentence in comparison.assumptions) == (multiple == 2)


def test_assumed_sizes_of_mfu_are_printed() -> None:
    for name, end in (
        ("llama-7b-a800-80gb", "12·hidden² weights is assumed, as the profile states no ffn."),
        ("qwen3-30b-a3b-h100-80gb", "attention by Σl² of the sequences."),
        ("gpt-7b-a100-40gb", "MFU is unknown: the profile states no vocabulary."),
    ):
        profile = load_shipped(name)
        workload = Workload(64, 8192, 30_000)
        listed = assumptions(profile, choose_sync(profile, 64), 0, workload)
        (counted,) = [sentence for sentence in listed if "MFU" in sentence]
        assert counted.endswith(end)


def test_utilisation_goes_with_the_mean_time() -> None:
    """The batches are the same, and so are the FLOPs: half the time is twice the utilisation."""
    assert (
        len({system.mfu and round(system.mfu * system.mean_ms, 6) for system in small().systems})
        == 1
    )


def test_all_systems_see_the_same_batches() -> None:
    for systems in zip(*(system.iterations for system in small().systems), strict=True):
        assert (
            len({(step.step, step.tokens, step.sequences, step.longest) for step in systems}) == 1
        )
        assert len({step.mfu and round(step.mfu * step.total_ms, 6) for step in systems}) == 1


def test_skipped_systems_have_reasons() -> None:
    assert {name for name, _ in small().left_out} == {
        "DeepSpeed-like",
        "FlexSP-like",
        "Megatron dynamic CP",
        "Megatron dynamic CP, packing-aware",
    }


def test_one_layout_and_regrouping_are_separate_systems() -> None:
    profile = load_shipped("llama-32b-a800-80gb").restrict(layout=(8, 1))
    workload, lengths = Workload(64, 131_072, 800_000), CODE
    options = Options(("one-layout", "megatron-dcp"))
    comparison = compare(profile, workload, lengths, 2, choose_sync(profile, 64), options=options)
    by_key = {system.key: system for system in comparison.systems}
    assert set(by_key) == {"ours", "one-layout", "regrouping", "megatron-dcp", "megatron-packing"}
    staying, regrouping = by_key["one-layout"], by_key["regrouping"]
    assert regrouping.mean_ms < staying.mean_ms * 0.99
    assert regrouping.mean_ms == pytest.approx(comparison.ours.mean_ms, rel=5e-3)
    assert by_key["megatron-packing"].mean_ms > regrouping.mean_ms * 1.02
    assert by_key["megatron-packing"].mean_ms < by_key["megatron-dcp"].mean_ms


def test_without_an_sync_there_is_no_one_layout_to_compare() -> None:
    profile = load_shipped("llama-7b-a800-80gb").restrict(measured=True)
    sync = GivenSyncTimes(0.0, 0.0, "none", 0.0, 0.0)
    options = Options(("one-layout",))
    comparison = compare(profile, Workload(4, 16384, 20_000), CODE, 1, sync, options=options)
    assert [system.key for system in comparison.systems] == ["ours"]
    ((name, why),) = comparison.left_out
    assert name == "One layout, groups that stay"
    assert "forward and backward alone" in why


def test_the_ablation_begins_at_one() -> None:
    stages = ablation(small().systems)
    assert stages[0][1] == 1
    assert [system.key for system, _ in stages] == [
        "megatron",
        "megatron-balanced",
        "one-strategy",
        "ours",
    ]
    assert ablation(small().systems[:2]) == []


def test_the_histogram_counts_everything() -> None:
    buckets = histogram(np.array([1, 2, 3, 4, 5, 8]))
    assert buckets == ((1, 1, 1), (2, 1, 2), (4, 2, 7), (8, 2, 13))


def stretched(system: System, key: str, factor: float) -> System:
    return replace(
        system,
        key=key,
        iterations=tuple(
            replace(step, compute_ms=step.compute_ms * factor) for step in system.iterations
        ),
    )


def slower(system: System, key: str, factor: float) -> System:
    """A system whose every iteration takes ``factor`` times as long, sync included."""
    return replace(
        system,
        key=key,
        iterations=tuple(
            replace(step, compute_ms=step.compute_ms + (factor - 1) * step.total_ms)
            for step in system.iterations
        ),
    )


def with_error(error: float | None) -> Profile:
    """A profile whose predictions miss measured times by this share."""
    document = dict(load_shipped("gpt-7b-a100-40gb").document)
    document["residuals"] = "unknown: nobody measured" if error is None else f"published: {error:%}"
    return Profile.from_document(document, "made")


@pytest.mark.parametrize(
    ("error", "factor", "expected"),
    [
        (0.05, 0.99, "Static is as fast. "),
        (0.05, 1.03, "Static will do, as far as predictions are right. "),
        (0.05, 1.5, "Plans pay off: they are 50.0 % faster. "),
        (None, 1.0, "Static is as fast. "),
        (None, 1.2, "Plans pay off if the profile is right within 20.0 %. "),
    ],
)
def test_advice(error: float | None, factor: float, expected: str) -> None:
    ours = small().ours
    static = replace(slower(ours, "static", factor), name="Static")
    text = advice(with_error(error), [ours, static])
    assert text.startswith(expected)
    stated = "unknown" if error is None else f"{100 * error:.0f} %"
    assert f"The prediction's error against devices is {stated}." in text
    assert advice(with_error(error), [ours]).startswith("No other system was compared")
    named = replace(static, static="8×tp1")
    expected = expected.replace("Static", "Static (8×tp1)")
    assert advice(with_error(error), [ours, named]).startswith(expected)


def test_systems_that_keep_one_strategy_state_it() -> None:
    kept = {system.key: system.static for system in small().systems}
    by_key = {system.key: system for system in small().systems}
    assert kept["static"] == by_key["static"].iterations[0].strategy
    assert kept["megatron-balanced"] is not None
    assert kept["ours"] is kept["hotspa"] is kept["hydraulis"] is None


@pytest.mark.parametrize(
    ("trainer", "key", "runs"),
    [
        ("transformers", "trl", True),
        ("transformers", "rebalance", True),
        ("transformers", "verl", False),
        ("seqplan-huggingface", "static", True),
        ("seqplan-huggingface", "megatron-packing", False),
        ("megatron", "megatron-packing", True),
        ("verl-megatron", "megatron", True),
        ("verl-megatron", "megatron-packing", False),
    ],
)
def test_rivals_of_another_trainer_are_noted(trainer: str, key: str, runs: bool) -> None:
    ours = small().ours
    systems = [ours, slower(ours, key, 1.1)]
    baseline = (trainer, "", find_backend(trainer).baseline)
    note = note_other_trainer(systems, baseline)
    assert note == ("" if runs else f"{trainer} does not run the nearest rival: {ours.name}.")
    assert note_other_trainer(systems, None) == ""


def test_steps_without_the_longest_sequences_give_no_answer() -> None:
    """Unless plans would pay off without any gain on these sequences."""
    ours, profile = small().ours, with_error(0.04)
    lacking = Coverage(longest_of_steps=500, longest=900_000, unseen=0.9, epoch=62)
    for factor, gap, pays in ((1.3, 0.9, None), (1.0, 0.9, None), (1.5, 0.9, True), (1.3, 0, True)):
        systems = [ours, slower(ours, "static", factor)]
        assert judge_gain(profile, systems, replace(lacking, unseen=gap)).pays is pays
    assert judge_gain(with_error(None), systems, lacking).sentence.startswith("The steps lack")
    text = advice(profile, [ours, slower(ours, "static", 1.5)], None, lacking)
    assert "50.0 % faster in these steps, 5.0 % if longer sequences gain nothing. " in text


def test_work_of_sequences_longer_than_the_steps_have() -> None:
    profile = load_shipped("llama3-8b-h100-80gb")
    workload, lengths = Workload(8, 900_000, 25_000), np.array([900_000] + [500] * 3000)
    sampler, models = Sampler(lengths, 25_000, 900_000, 0), workload.models(profile)
    few = Coverage.from_steps(tuple(sampler.batches(20)), sampler, models, 8)
    assert (few.longest_of_steps, few.longest, few.epoch) == (500, 900_000, 62)
    assert few.unseen > 0.9
    assert not few.is_sufficient
    assert Coverage.from_steps(tuple(sampler.batches(few.epoch)), sampler, models, 8).unseen == 0


def test_headline_is_the_nearest_rival() -> None:
    """Neither a slower static strategy nor a part of our plans."""
    ours = small().ours
    systems = [
        ours,
        slower(ours, "static", 1.35),
        replace(slower(ours, "flexsp", 1.09), name="FlexSP-like"),
        slower(ours, "one-layout", 1.01),
        slower(ours, "hydraulis-balanced", 1.02),
        slower(ours, "deepspeed", 1.09),  # as fast: the one before it counts
    ]
    rival = nearest_rival(systems)
    assert (rival.key, round(rival.speedup, 2)) == ("flexsp", 1.09)
    text = advice(with_error(None), systems)
    assert text.startswith("Plans pay off if the profile is right within 9.0 %. ")
    assert "nearest rival, FlexSP-like: 1.09× (no interval: 3 steps; 16 or more give one)" in text
    label, first = rivals(systems)[0]
    assert (label, first.key) == ("the nearest rival", "flexsp")


def test_interval_of_many_steps_is_wide_as_they_differ() -> None:
    ours = small().ours
    many = replace(ours, iterations=ours.iterations * 8)
    apart = slower(many, "static", 1.1)
    rival = nearest_rival([many, apart])
    assert rival.interval == pytest.approx((1.1, 1.1))
    assert rival.text == "1.10× (no interval: 24 steps that hardly differ)"
    assert nearest_rival([many, apart]) == rival
    # Every other step twice as fast or as slow: no system is ahead.
    factors = [0.5, 2.0] * 12
    steps = zip(many.iterations, factors, strict=True)
    uneven = tuple(replace(s, compute_ms=s.compute_ms * f) for s, f in steps)
    rival = nearest_rival([many, replace(apart, iterations=uneven)])
    assert rival.interval is not None
    low, high = rival.interval
    assert low < rival.speedup < high
    assert high - low > 0.3


def test_errors_against_devices_are_no_fit_errors() -> None:
    """How far a derived profile's coefficients are from the analytic model is none."""
    derived = load_shipped("llama3-8b-h100-80gb")
    assert "within 3" in derived.residuals
    assert derived.device_error == 0.04  # of published training runs, by its notes
    for name in ("llama3-8b-h200-141gb", "gpt-oss-20b-h100-80gb"):  # a device, experts: unchecked
        assert load_shipped(name).device_error is None
    bare = {**derived.document, "notes": []}
    assert Profile.from_document(bare, "made").device_error is None
    assert load_shipped("gpt-7b-a100-40gb").device_error == 0.05
    assert load_shipped("llama-7b-a800-80gb").device_error is None
    assert load_shipped("llama-7b-a800-80gb").restrict(measured=True).device_error is None
    measured = Profile.load(ROOT / "examples" / "data" / "llama-small-cpu.json")
    medians = [
        e.fit[k]["median"] for e in measured.schemes if e.fit for k in ("held_out", "packed")
    ]
    assert measured.device_error == max(medians)


def test_short_contexts_leave_little_to_gain() -> None:
    ours = small().ours
    profile = load_shipped("llama-7b-a800-80gb")

    def advice_for(factor: float, context: int) -> str:
        return advice(profile, [ours, stretched(ours, "trl", factor)], context)

    assert "Contexts up to 8K leave little to gain: " in advice_for(1.01, 8_192)
    assert "little" not in advice_for(1.5, 8_192)
    assert "little" not in advice_for(1.01, 32_768)
