"""A bound's witness convinces a program that has costs only, and a false one does not."""

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from instances import Case, cases, fleet, random_case_with_modes
from oracles.exhaustive import step_optimum
from step_lengths import CODE, check_plan

from seqplan import Plan, Planner, Workload, find_profile
from seqplan.planner.bounds.certificate import certify
from seqplan.planner.bounds.witness import describe_class, find_witness, write_witness
from seqplan.planner.placement.fleet import Models, PipelineClass
from seqplan.planner.step.check_bounds import find_unproven, witness_of
from seqplan.plans.lint import lint

ROOT = Path(__file__).parents[3]
CHECKS: dict[str, Callable[[dict[str, Any]], str | None]] = runpy.run_path(
    str(ROOT / "examples" / "check_bound")
)["CHECKS"]


def test_a_bound_found_at_another_time_is_proven() -> None:
    """Its values solve the relaxation at a time between those that are usually tried."""
    lengths = [
        *([4096] * 10),
        *(3710, 3586, 3139, 3084, 2424, 2413, 2370, 2339, 2258, 2251, 2224, 1968, 1966, 1523, 1480),
        *(
            1480,
            1432,
            1412,
            1365,
            1354,
            1118,
            1117,
            1041,
            859,
            836,
            704,
            666,
            596,
            507,
            438,
            399,
            335,
        ),
        *(332, 298, 208, 173, 122, 98),
    ]
    planner = Planner.from_profile("llama-13b-a800-80gb", gpus=24, max_len=4096)
    plan = planner.plan(lengths)
    models = Workload(24, 4096, 100_000).models(find_profile("llama-13b-a800-80gb"))
    assert list(find_unproven(plan, models)) == []


def convinces(written: dict[str, Any], optimum: float) -> None:
    """Assert that the program without the planner accepts this, but for no time that is reached."""
    check = CHECKS[written["proof"]]
    assert check(written) is None
    beyond = {"bound_ms": optimum * (1 + 1e-6)}
    wrong = {**written, **beyond}
    if written["proof"] == "cases":
        assert check({**wrong, "cases": written["cases"][1:]}) is not None
        wrong["cases"] = [{**of_case, **beyond} for of_case in written["cases"]]
    assert check(wrong) is not None


@settings(max_examples=20)
@given(cases())
def test_no_time_that_can_be_reached_has_a_witness(case: Case) -> None:
    has_no_false_witness(case)


@pytest.mark.parametrize("seed", [0, 2, 3, 4, 5, 8, 11, 12, 13, 17])
def test_witnesses_with_modes_convince_and_false_ones_do_not(seed: int) -> None:
    has_no_false_witness(random_case_with_modes(np.random.default_rng(seed)))


def has_no_false_witness(case: Case) -> None:
    classes, batch = case
    some, optimum = fleet(classes), step_optimum(classes, batch, least=True)
    if not np.isfinite(optimum):
        return
    assert find_witness(some, batch, optimum * (1 + 1e-6)) is None
    witness = find_witness(some, batch, certify(some, batch, optimum) * (1 - 2e-3))
    if witness is not None:
        convinces(write_witness(witness), optimum)


SETTINGS = [
    ("llama-32b-a800-80gb", 64, 32_768, {}),
    ("llama-32b-a800-80gb", 64, 32_768, {"execution": "static"}),
    ("llama-7b-a800-80gb", 8, 16_384, {"layout": "tp2.pp2"}),
    ("llama3-8b-h100-80gb", 8, 32_768, {"execution": "static"}),
    ("llama3-70b-h100-80gb", 32, 32_768, {}),
    ("gpt-7b-a100-40gb", 16, 16_384, {}),
]


@cache
def planned(place: int) -> tuple[Models, list[Plan]]:
    """The models of a setting, and plans of a few steps of code lengths."""
    name, gpus, max_len, options = SETTINGS[place]
    planner = Planner.from_profile(name, gpus, max_len, **options)
    rng = np.random.default_rng(0)
    plans = [planner.plan(np.minimum(rng.choice(CODE, 90), max_len)) for _ in range(2)]
    return Workload(gpus, max_len, 1).models(find_profile(name)), plans


@pytest.mark.parametrize("place", range(len(SETTINGS)))
def test_every_bound_is_proven_anew(place: int) -> None:
    models, plans = planned(place)
    for plan in plans:
        check_plan(plan, models)
        assert plan.layout_lower_bound_ms <= plan.lower_bound_ms
    farthest = max(plans, key=lambda plan: plan.gap)
    assert farthest.gap > 1e-3
    # Bound and gap agree, and so would a digest: only a proof shows it.
    false = replace(farthest, lower_bound_ms=farthest.predicted_ms, gap=0.0)
    if farthest.layout_lower_bound_ms == farthest.lower_bound_ms:
        false = replace(false, layout_lower_bound_ms=farthest.predicted_ms)
    assert lint(false, models) == []
    assert any("is not proven" in line for line in find_unproven(false, models))


def test_a_program_without_the_planner_checks_it() -> None:
    proofs = set()
    for place in range(5):
        models, plans = planned(place)
        for plan in plans:
            written = witness_of(plan, models)
            proofs.add(written["proof"])
            check = CHECKS[written["proof"]]
            assert check(written) is None
            assert check({**written, "bound_ms": plan.predicted_ms * 1.01}) is not None
    assert proofs == {"prices", "cases", "gpu_time"}


def test_micro_batches_through_stages_are_checked() -> None:
    """Nothing but their filling and draining proves more than 48 ms, and it proves 56.5."""
    pipeline = PipelineClass(pp=2, a=0.0, b=1.0, c=2.0, capacity=10, unit=1, count=2, gpus=2)
    written = {
        "proof": "gpu_time",
        "gpus": 4,
        "lengths": [10],
        "counts": [8],
        "classes": [{"gpus": 2, **describe_class("pp2", pipeline)}],
    }
    for bound_ms, convinced in ((47.0, True), (56.4, True), (56.6, False)):
        failed = CHECKS["gpu_time"]({**written, "bound_ms": bound_ms})
        assert (failed is None) == convinced


@pytest.mark.parametrize(
    ("name", "gpus", "sequences", "options", "most"),
    [
        ("llama3-70b-h100-80gb", 64, 230, {}, 0.06),
        ("qwen3-235b-a22b-h200-141gb", 128, 700, {"expert_parallel": 16}, 0.07),
    ],
)
def test_all_plans_of_a_layout_with_stages_are_bounded_closely(
    name: str, gpus: int, sequences: int, options: dict[str, Any], most: float
) -> None:
    planner = Planner.from_profile(name, gpus, 32_768, **options)
    rng = np.random.default_rng(0)
    for _ in range(3):
        plan = planner.plan(np.minimum(rng.choice(CODE, sequences), 32_768))
        assert all(scheme.pp > 1 for scheme, _ in plan.strategy.counts)
        assert plan.predicted_ms <= plan.layout_lower_bound_ms * (1 + most)


@pytest.mark.parametrize(
    "text", ["", "[1]", "{}", '{"proof": "mine"}', '{"proof": "prices", "bound_ms": 1.0}']
)
def test_another_file_is_no_witness(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    command = [sys.executable, str(ROOT / "examples" / "check_bound"), "other.json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(r"no witness: .*\. seqplan explain --witness writes one\n", done.stderr)
