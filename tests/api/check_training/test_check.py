"""Rejected inputs of a training check, its model, and its result."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import call, complaint
from plan_builder import write_file
from random_plans import one_pipeline_plan

from seqplan import Plan, Scheme, from_json, read_plans
from seqplan.api.check_training.check import (
    Check,
    CheckedStep,
    count_expected_bytes,
    first_plans,
    relative,
    size_model,
)
from seqplan.plans.scheme_limits import find_unsupported


def test_plans_for_another_number_of_ranks(plans: Path) -> None:
    message = complaint(call("check", "training", "--plans", plans, "--ranks", 4))
    assert message == (
        f"{plans}: is planned for 2 ranks, not 4; give --ranks 2, or plan for 4 GPUs"
    )


def test_lost_ranks_are_left_out(plans: Path, tmp_path: Path) -> None:
    plan = next(read_plans(plans))
    lost = replace(plan, world_size=3, idle_ranks=(*plan.idle_ranks, 2), lost_ranks=(2,))
    path = write_file(tmp_path / "lost.jsonl", [lost])
    assert first_plans(path, 2, 1) == [plan]
    assert first_plans(path, 3, 1) == [lost]


def test_other_bad_input(plans: Path, tmp_path: Path) -> None:
    valid = list(read_plans(plans))
    gap = write_file(tmp_path / "gap.jsonl", [valid[0], valid[1], valid[3]])
    message = complaint(call("check", "training", "--plans", gap, "--ranks", 2))
    assert "step 3 follows step 1; ranks run steps without a gap, at most 2 here" in message
    empty, missing = tmp_path / "empty.jsonl", tmp_path / "missing.jsonl"
    empty.write_text("")
    assert "no plans" in complaint(call("check", "training", "--plans", empty, "--ranks", 2))
    absent = f"{missing}: No such file or directory. Check the path"
    for arguments, message in (
        (("--plans", missing), absent),
        (("--plans", tmp_path), f"{tmp_path}: every rank reads the plans for itself: give a file"),
        (("--plans", plans, "--data", missing), absent),
    ):
        assert complaint(call("check", "training", "--ranks", 2, *arguments)) == message
    unsound = write_file(tmp_path / "bad.jsonl", [replace(valid[0], tokens=valid[0].tokens + 1)])
    message = complaint(call("check", "training", "--plans", unsound, "--ranks", 2))
    assert "step 0: breaks a rule of the format: tokens: " in message


def test_micro_steps_through_stages_are_rejected_before_ranks_start(tmp_path: Path) -> None:
    plan = one_pipeline_plan(Scheme(pp=2), [40, 9], step=4)
    pipelines = (replace(plan.pipelines[0], micro_step=0),)
    path = write_file(tmp_path / "lockstep.jsonl", [replace(plan, pipelines=pipelines)])
    with pytest.raises(ValueError, match=r"step 4: lockstep with stages is for trainers"):
        first_plans(path, 2, 1)


def test_large_steps_are_warned_of(plans: Path) -> None:
    from seqplan.api.cli.check.check_training import LARGE_STEP, warnings

    plan = from_json(plans.read_text().splitlines()[0])
    assert warnings([plan]) == []
    assert "may take minutes each" in warnings([replace(plan, tokens=LARGE_STEP)])[0]
    assert "starting them takes long" in warnings([replace(plan, world_size=10_000)])[0]


# The verdict


def checked(plan: Plan, loss: float, norm: float, parameter: float) -> Check:
    step = CheckedStep(plan, loss, 5.0, norm, 2.0, 100.0)
    good = CheckedStep(plan, 5.0, 5.0, 2.0, 2.0, 100.0)
    return Check("float32", size_model([plan]), (good, step), "head.weight", parameter)


@pytest.mark.parametrize(
    ("loss", "norm", "parameter", "agrees"),
    [
        (5.0, 2.0, 0.0, True),
        (5.0 * (1 + 9e-6), 2.0, 0.0, True),
        (5.0 * (1 - 1.1e-5), 2.0, 0.0, False),
        (5.0, 2.0 * (1 + 1.1e-4), 0.0, False),
        (5.0, 2.0, 1.1e-4, False),
        (math.nan, 2.0, 0.0, False),
        (5.0, math.nan, 0.0, False),
        (5.0, 2.0, math.nan, False),
        (math.inf, 2.0, 0.0, False),
    ],
)
def test_the_verdict(plans: Path, loss: float, norm: float, parameter: float, agrees: bool) -> None:
    assert checked(next(read_plans(plans)), loss, norm, parameter).agrees is agrees


def test_the_fullest_stage_has_the_layers_that_pp_leaves_over(plans: Path) -> None:
    sizes = replace(size_model([next(read_plans(plans))]), layers=5)
    for pp, layers in ((2, 3), (3, 2), (4, 2), (5, 1)):
        expected = count_expected_bytes(replace(sizes, layers=layers), "float32", Scheme(), "none")
        assert count_expected_bytes(sizes, "float32", Scheme(pp=pp), "none") == expected


def test_labels_are_those_of_the_check_without_masks(plans: Path, tmp_path: Path) -> None:
    plan = next(read_plans(plans))
    masked = write_file(tmp_path / "masked.jsonl", [replace(plan, loss_tokens=7)])
    assert first_plans(masked, 2, 1) == [plan]


def test_relative_differences() -> None:
    assert relative(0.0, 0.0) == 0.0
    assert relative(1.0, 0.0) == math.inf
    assert relative(1.5, -1.0) == 2.5
    assert math.isnan(relative(math.nan, 1.0))


@pytest.mark.parametrize("ulysses", [1, 2, 3, 5, 6, 7, 8, 12, 64])
def test_a_model_has_heads_for_every_ulysses_rank(plans: Path, ulysses: int) -> None:
    plan = next(read_plans(plans))
    pipeline = replace(plan.pipelines[0], scheme=Scheme(ulysses=ulysses))
    sizes = size_model([plan, replace(plan, pipelines=(pipeline,))])
    assert sizes.heads >= ulysses
    assert sizes.hidden % (2 * sizes.heads) == 0


@pytest.mark.parametrize(
    "schemes",
    [
        [Scheme(tp=4, pp=3), Scheme(tp=3, ulysses=2), Scheme(tp=2, ulysses=8)],
        [Scheme(tp=16), Scheme(tp=6, pp=5)],
        [Scheme(tp=8, ulysses=4), Scheme(tp=5)],
    ],
)
def test_a_model_that_all_schemes_can_run(plans: Path, schemes: list[Scheme]) -> None:
    plan = next(read_plans(plans))
    pipelines = tuple(replace(plan.pipelines[0], scheme=scheme) for scheme in schemes)
    sizes = size_model([replace(plan, pipelines=pipelines)])
    assert sizes.hidden % (2 * sizes.heads) == 0
    assert sizes.heads % sizes.kv_heads == 0
    for scheme in schemes:
        reason = find_unsupported(
            scheme,
            layers=sizes.layers,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            ffn=sizes.ffn,
            vocab=sizes.vocab,
        )
        assert reason is None
